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

// The help and every README list every setting with its default, and nothing else.
func TestEverySettingIsDocumented(t *testing.T) {
	t.Parallel()
	var help strings.Builder
	if err := printHelp(&help); err != nil {
		t.Fatal(err)
	}
	for _, setting := range settings() {
		if !strings.Contains(help.String(), setting[0]) || setting[2] == "" {
			t.Errorf("the help lacks %s", setting[0])
		}
	}
	files, err := filepath.Glob("../../README*.md") // a service may have only one
	if err != nil || len(files) == 0 {
		t.Fatalf("find READMEs: %q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rows := regexp.MustCompile("(?m)^\\| `[A-Z_]+` \\| .*\\|").FindAllString(string(text), -1)
		if got, want := len(rows), len(settings()); got != want {
			t.Errorf("%s has %d settings, want %d", file, got, want)
		}
		for _, setting := range settings() {
			name, byDefault := setting[0], setting[1]
			if byDefault != "" {
				byDefault = "`" + byDefault + "`"
			}
			if row := "| `" + name + "` | " + byDefault + " |"; !strings.Contains(string(text), row) {
				t.Errorf("%s lacks the row %q", file, row)
			}
		}
	}
}

// Documents, manifests and Terraform name no setting that the server does not
// have.
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
		for _, name := range unknownSettings(names.FindAllString(string(text), -1)) {
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
		check(file)
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
