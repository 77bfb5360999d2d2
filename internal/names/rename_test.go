package names_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// After a change of names.yaml and make generate nothing has the old names, and
// the alerts fire on the metrics of the new ones.
func TestRename(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a copy of the repository")
	}
	t.Parallel()
	clone := filepath.Join(t.TempDir(), "clone")
	run := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	// What is in the working tree, committed or not.
	files := run("../..", "git", "ls-files", "--cached", "--others", "--exclude-standard")
	for file := range strings.Lines(files) {
		file = strings.TrimSpace(file)
		content, err := os.ReadFile(filepath.Join("../..", file))
		if os.IsNotExist(err) {
			continue // deleted, and not committed
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		if file == "internal/names/names.yaml" {
			content = []byte(strings.NewReplacer("service: videocatalog", "service: filmlibrary",
				"name: video.events", "name: film.changes").Replace(string(content)))
		}
		to := filepath.Join(clone, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	run(clone, "make", "--silent", "generate-names")
	run(clone, "go", "test", "./deploy/observe", "-run", "TestFilesAreUpToDate|TestRulesWithPromtool")

	// The module path and the domain of the API are not names of this kind.
	other := regexp.MustCompile(`example\.com/videocatalog|videocatalog\.example\.com|com\.example\.videocatalog`)
	old := regexp.MustCompile(`\bvideocatalog\b|\bvideo\.events\b`)
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
			if old.MatchString(other.ReplaceAllString(line, "")) && name != "internal/names/rename_test.go" {
				t.Errorf("%s:%d: %s", name, n, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
