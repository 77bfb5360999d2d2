package chaos

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/videocatalog/lab/internal/failpoint"
)

// The service builds with the seams. Every point is hit in one place.
func TestSeams(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	flag, err := overlay(root, "example.com/videocatalog", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := goBuild(t.Context(), root, os.DevNull, flag); err != nil {
		t.Error(err)
	}
	for _, point := range failpoint.Points() {
		hits := slices.DeleteFunc(slices.Clone(seams), func(s seam) bool { return !strings.Contains(s.with, `failpoint.Hit("`+point+`")`) })
		if len(hits) != 1 {
			t.Errorf("%s is hit in %d places, want 1", point, len(hits))
		}
	}
}

// A file that has a seam not at all, or twice, is an error with the file and the text that it should have.
func TestSeamIsMissing(t *testing.T) {
	t.Parallel()
	for _, s := range seams {
		for _, with := range []string{"", s.text + s.text} {
			root := t.TempDir()
			for _, other := range seams {
				source, err := os.ReadFile(filepath.Join("../../..", other.file))
				if err != nil {
					t.Fatal(err)
				}
				if other.file == s.file {
					source = []byte(strings.Replace(string(source), s.text, with, 1))
				}
				path := filepath.Join(root, other.file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, source, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := changed(root, "example.org/module"); err == nil || !strings.Contains(err.Error(), s.file) || !strings.Contains(err.Error(), s.text) {
				t.Errorf("seam of %s replaced by %q: error %v, want the file and %q in it", s.file, with, err, s.text)
			}
		}
	}
}
