package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A minimal service is without the example and the tests that need it, and has all else.
func TestIsOfExample(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, content string
		want          bool
	}{
		{"internal/store/videos.go", "", true},
		{"internal/store/catalog.go", "", true},
		{"internal/search/search.go", "", true},
		{"internal/outbox/pass_test.go", "a video", true},
		{"internal/outbox/pass_test.go", `import "example.com/videocatalog/internal/outbox" // video_catalog.outbox, pg_catalog`, false},
		{"internal/outbox/pass.go", "a video", false},
		{"internal/store/videosize.go", "", false},
		{"internal/searching/x.go", "", false},
	} {
		if got := isOfExample(c.name, c.content); got != c.want {
			t.Errorf("isOfExample(%s, %q) = %v, want %v", c.name, c.content, got, c.want)
		}
	}
}

// Every path of a part and of the example is there.
func TestPathsExist(t *testing.T) {
	t.Parallel()
	paths := slices.Clone(exampleFiles)
	for _, of := range parts {
		paths = append(paths, of...)
	}
	for _, pattern := range paths {
		if found, err := filepath.Glob(filepath.Join("../..", pattern)); err != nil || len(found) == 0 {
			t.Errorf("no file is like %s: %v", pattern, err)
		}
	}
}

// The marks of all files are complete.
func TestMarks(t *testing.T) {
	t.Parallel()
	files, err := template{root: "../.."}.files(t.Context())
	if err != nil {
		t.Log("these sources are in no git repository, so no marks were checked")
		return
	}
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil || isBelow(name, notCopied) || strings.HasSuffix(name, ".binpb") {
			continue // a file that is not committed yet has no content
		}
		if _, err := unmark(string(content), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
