package names_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/videocatalog/internal/deep"
)

// After a change of names.yaml and make generate nothing has the old names, and
// the alerts fire on the metrics of the new ones.
func TestRename(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	clone := filepath.Join(t.TempDir(), "clone")
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = clone
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	copyTree(t, "../..", clone, strings.NewReplacer("service: videocatalog", "service: filmlibrary", "name: video.events", "name: film.changes"))
	run("make", "--silent", "generate-names")
	run("go", "test", "./deploy/observe", "-run", "TestFilesAreUpToDate|TestRulesWithPromtool")

	// The module path and the domain of the API are not names of this kind.
	other := regexp.MustCompile(`example\.com/videocatalog|videocatalog\.example\.com|com\.example\.videocatalog`)
	old := regexp.MustCompile(`\b(?:videocatalog|video\.events)\b`)
	knows := regexp.MustCompile(strings.Join([]string{ // files that have the names for another reason
		"^cmd/new/",
		"^internal/names/rename_test.go$",
	}, "|"))
	err := filepath.WalkDir(clone, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) == ".binpb" {
			return err
		}
		name, _ := filepath.Rel(clone, path)
		if strings.Contains(name, "videocatalog") {
			t.Errorf("%s has the old name", name)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(string(content)) {
			n++
			if old.MatchString(other.ReplaceAllString(line, "")) && !knows.MatchString(name) {
				t.Errorf("%s:%d: %s", name, n, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// copyTree copies the repository, without the folders that git does not have. It
// renames in names.yaml only.
func copyTree(t *testing.T, from, to string, rename *strings.Replacer) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", ".local", "node_modules"}, entry.Name()) {
				return filepath.SkipDir
			}
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if name == "internal/names/names.yaml" {
			content = []byte(rename.Replace(string(content)))
		}
		return os.WriteFile(filepath.Join(to, name), content, info.Mode())
	})
	if err != nil {
		t.Fatal(err)
	}
}
