package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"example.com/videocatalog/internal/app"
)

// Each folder of an option has its line in the list. The README of each option lists exactly
// the settings of the option, with their defaults. If an option has migrations, its line has
// them.
func TestOptionsAreListedAndDocumented(t *testing.T) {
	t.Parallel()
	listed := make(map[string]bool)
	for _, option := range options() {
		listed[option.Name] = true
		path := filepath.Join("../../options", option.Name, "README.md")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("the option %s has no README: %v", option.Name, err)
			continue
		}
		if found, err := filepath.Glob(filepath.Join("../../options", option.Name, "migrations/*.sql")); err != nil || (len(found) > 0) != (option.Migrations != nil) {
			t.Errorf("the option %s brings migrations: %t, and has the files %q, %v", option.Name, option.Migrations != nil, found, err)
		}
		settings := settingsOf(option)
		if got := regexp.MustCompile("(?m)^\\| `[A-Z_]+` \\|").FindAllString(string(text), -1); len(got) != len(settings) {
			t.Errorf("%s has the settings %q, want %d", path, got, len(settings))
		}
		for _, setting := range settings {
			byDefault := setting.Tag.Get("envDefault")
			if byDefault != "" {
				byDefault = "`" + byDefault + "`"
			}
			if row := "| `" + setting.Tag.Get("env") + "` | " + byDefault + " | " + setting.Tag.Get("help") + " |"; !strings.Contains(string(text), row) {
				t.Errorf("%s lacks the row %q", path, row)
			}
		}
	}
	folders, err := filepath.Glob("../../options/*")
	must(t, err)
	for _, folder := range folders {
		if !listed[filepath.Base(folder)] {
			t.Errorf("cmd/server/options.go lacks the option of %s", folder)
		}
	}
}

// settingsOf returns the fields with the settings of an option.
func settingsOf(option app.Option) (all []reflect.StructField) {
	if option.Settings != nil {
		for field := range reflect.TypeOf(option.Settings).Elem().Fields() {
			all = append(all, field)
		}
	}
	return all
}
