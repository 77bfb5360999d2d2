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
	must(t, err)
	flag, err := overlay(root, "example.com/videocatalog", t.TempDir())
	must(t, err)
	must(t, goBuild(t.Context(), root, os.DevNull, flag))
	for _, point := range failpoint.Points() {
		hits := slices.DeleteFunc(slices.Clone(seams), func(s seam) bool { return !strings.Contains(s.with, `failpoint.Hit("`+point+`")`) })
		if len(hits) != 1 {
			t.Errorf("%s is hit in %d places, want 1", point, len(hits))
		}
	}
}
