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
// the settings of the option, with their defaults. If an option has migrations, its part has
// them.
func TestOptionsAreListedAndDocumented(t *testing.T) {
	t.Parallel()
	listed := make(map[string]bool)
	for _, part := range parts() {
		listed[part.Name] = true
		path := filepath.Join("../../options", part.Name, "README.md")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("the option %s has no README: %v", part.Name, err)
			continue
		}
		if found, err := filepath.Glob(filepath.Join("../../options", part.Name, "migrations/*.sql")); err != nil || (len(found) > 0) != (part.Migrations != nil) {
			t.Errorf("the option %s brings migrations: %t, and has the files %q, %v", part.Name, part.Migrations != nil, found, err)
		}
		settings := settingsOf(part)
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
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		if !listed[filepath.Base(folder)] {
			t.Errorf("cmd/server/parts.go lacks the option of %s", folder)
		}
	}
}

// settingsOf returns the fields with the settings of an option.
func settingsOf(part app.Part) (all []reflect.StructField) {
	if part.Settings != nil {
		for field := range reflect.TypeOf(part.Settings).Elem().Fields() {
			all = append(all, field)
		}
	}
	return all
}
