package app

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The help and every README list every setting with its default, and nothing else: those of an
// option are in its own README.
func TestEverySettingIsDocumented(t *testing.T) {
	t.Parallel()
	var help strings.Builder
	if err := empty.printHelp(&help); err != nil {
		t.Fatal(err)
	}
	for _, setting := range empty.settings() {
		if !strings.Contains(help.String(), setting.Name) || setting.Help == "" {
			t.Errorf("the help lacks %s", setting.Name)
		}
	}
	files, err := filepath.Glob("../../README*.md") // make slim leaves one
	if err != nil || len(files) == 0 {
		t.Fatalf("find READMEs: %q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rows := regexp.MustCompile("(?m)^\\| `[A-Z_]+` \\| .*\\|").FindAllString(string(text), -1)
		if got, want := len(rows), len(empty.settings()); got != want {
			t.Errorf("%s has %d settings, want %d", file, got, want)
		}
		for _, setting := range empty.settings() {
			name, byDefault := setting.Name, setting.Default
			if byDefault != "" {
				byDefault = "`" + byDefault + "`"
			}
			if row := "| `" + name + "` | " + byDefault + " |"; !strings.Contains(string(text), row) {
				t.Errorf("%s lacks the row %q", file, row)
			}
		}
	}
}

// Documents, manifests and Terraform name no setting that a server without options does not
// have, so that each option can be left out.
func TestTextsNameOnlySettings(t *testing.T) {
	t.Parallel()
	others := []string{
		"AUTH_PORT", "OUTBOX_RETENTOIN", // examples of what is no setting
		"SERVER_STOPPING",                                 // a reason of an error
		"PUBSUB_PROJECT_ID", "PUBSUB_CONFORMANCE_PROJECT", // of other programs
	}
	names := regexp.MustCompile(`\b[A-Z]+_[A-Z_]*[A-Z]\b`)
	check := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range empty.unknownSettings(names.FindAllString(string(text), -1)) {
			if !slices.Contains(others, name) {
				t.Errorf("%s names %s, which is no setting", path, name)
			}
		}
	}
	files, err := filepath.Glob("../../*.md")
	if err != nil || len(files) < 4 {
		t.Fatalf("documents: %q, %v", files, err)
	}
	for _, file := range files {
		if file != "../../CHANGELOG.md" { // it has settings of older versions, too
			check(file)
		}
	}
	for _, root := range []string{"../../docs", "../../deploy"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && slices.Contains([]string{".md", ".yaml", ".tf"}, filepath.Ext(path)) {
				check(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
