package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The printed commands run as they are, also for a folder with a space or a quote.
func TestNextStepsRunInAShell(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"orders", "my orders", "Bob's $HOME"} {
		target := filepath.Join(t.TempDir(), name)
		must(t, os.Mkdir(target, 0o755))
		_, commands, _ := strings.Cut(nextSteps(target, "pwd -P"), "\n")
		want, err := filepath.EvalSymlinks(target)
		must(t, err)
		if got, err := exec.CommandContext(t.Context(), "sh", "-e", "-c", commands).Output(); err != nil || string(got) != want+"\n" {
			t.Errorf("%s leads to %q, %v, want %s", commands, got, err, want)
		}
	}
}
