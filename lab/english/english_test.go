package english

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// No comment and no page has a habit that makes a reader stop.
func TestEnglish(t *testing.T) {
	t.Parallel()
	const root = "../.."
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Log("these sources are in no git repository, so no file was read")
		return
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if isOfOthers(name) {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // it is deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range Mistakes(name, string(source)) {
			t.Errorf("%s:%d: %q: %s", name, m.Line, m.Text, m.Advice)
		}
	}
}

// isOfOthers reports whether a file is generated, quotes the habits, or describes the past.
func isOfOthers(name string) bool {
	for _, part := range []string{"/sqlcgen/", ".pb.go", ".pb.gw.go", "kit/protos/", "lab/english/", "docs/style.md", "CHANGELOG.md"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// Each habit is found in each kind of file, with its line. Code, headings and questions are not read.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, source string
		lines        string
	}{
		{"x.go", "package x\n\n// X is like that\n// of Y.\nvar x = \"that of Y\"\n", "3"},
		{"x.go", "package x\n\nvar x int // it does so\n\n// # What it promises\n//\n// Why? What else?\n", "3"},
		{"x.sql", "-- What is pending.\nSELECT 1;\n-- n is up to how many rows.\n", "1 3"},
		{"x.proto", "// A is new; so is B.\nmessage X {}\n", "1"},
		{"x.md", "# What is there\n\nA `that of` x.\n```\nthose of\n```\n- Those of others.\n", "7"},
		{"x.yaml", "# that of\n", ""},
	} {
		var lines []string
		for _, m := range Mistakes(tt.name, tt.source) {
			lines = append(lines, string(rune('0'+m.Line)))
		}
		if got := strings.Join(lines, " "); got != tt.lines {
			t.Errorf("Mistakes(%s, %q) in lines %q, want %q", tt.name, tt.source, got, tt.lines)
		}
	}
}
