package main

import (
	"testing"

	"example.com/videocatalog/lab/internal/size"
)

// This repository is within its budget. The tests of lab/scaffold check the budget of a service.
func TestRepository(t *testing.T) {
	t.Parallel()
	tree, err := size.Of(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	over, err := tree.Over("repository")
	if err != nil || len(over) > 0 {
		t.Errorf("this repository is larger than its budget: %q, %v", over, err)
	}
}
