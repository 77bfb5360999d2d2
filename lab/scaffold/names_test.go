package scaffold

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/videocatalog/lab/internal/clone"
)

// After a change of the names and make generate nothing has the old names, and
// the alerts fire on the metrics of the new ones.
func TestRename(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "clone")
	clone.Tree(t, "../..", dir)
	names := filepath.Join(dir, "internal", "names")
	edit(t, filepath.Join(names, "names.yaml"), "service: videocatalog\n", "service: filmlibrary\n")
	edit(t, filepath.Join(names, "topics", "video.yaml"), "name: video.events\n", "name: film.changes\n")
	clone.Run(t, dir, "make", "--silent", "generate-names")
	clone.Run(t, dir, "go", "test", "./deploy/observe", "-run", "TestFilesAreUpToDate|TestRulesWithPromtool")

	// The module path and the domain of the API are not names of this kind.
	other := regexp.MustCompile(`example\.com/videocatalog|videocatalog\.example\.com|com\.example\.videocatalog`)
	old := regexp.MustCompile(`\b(?:videocatalog|video\.events)\b`)
	about := regexp.MustCompile(`^(cmd/new|lab/scaffold)/`) // the names of the template, on purpose
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) == ".binpb" {
			return err
		}
		name, _ := filepath.Rel(dir, path)
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
			if old.MatchString(other.ReplaceAllString(line, "")) && !about.MatchString(name) {
				t.Errorf("%s:%d: %s", name, n, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
