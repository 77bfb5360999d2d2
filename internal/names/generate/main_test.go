package main

import (
	"os"
	"strings"
	"testing"

	"example.com/videocatalog/internal/names"
)

// What is in the tree is what names.yaml says.
func TestNamesAreUpToDate(t *testing.T) {
	t.Chdir("../../..")
	const remedy = "run make generate"
	for path, want := range map[string]string{
		script:            string(render()),
		"cloudbuild.yaml": "  _SERVICE: " + names.Service() + " ",
	} {
		got, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s is stale (%v): %s", path, err, remedy)
		}
	}
}
