package dev

import (
	"path/filepath"
	"strings"
	"testing"
)

// The printed commands have the path of a clone whose folder has a space in quotes.
func TestPrintedPathsAreQuoted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	getenv := func(string) string { return "" }
	s := &Stack{screen: newScreen(&out, getenv, nil), Root: filepath.Join(t.TempDir(), "my orders"), addr: "127.0.0.1:8080"}
	s.present()
	if want := "-modfile='" + filepath.Join(s.Root, "tools", "go.mod") + "'"; !strings.Contains(out.String(), want) {
		t.Errorf("screen = %s, want %s", out.String(), want)
	}
}
