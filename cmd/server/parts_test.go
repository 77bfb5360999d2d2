package main

import (
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The migrations of options are those of their folders, which the tests of the database use.
func TestPartsHaveTheirMigrations(t *testing.T) {
	t.Parallel()
	var got []string
	for _, part := range parts() {
		if part.Migrations == nil {
			continue
		}
		names, err := fs.Glob(part.Migrations, "migrations/*.sql")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			got = append(got, filepath.Join("../../options", part.Name, name))
		}
	}
	want, err := filepath.Glob("../../options/*/migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("migrations (-in the folders of options +in their parts):\n%s", diff)
	}
}
