// Package clone copies this repository for tests that change it.
package clone

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Tree copies the working tree at from into the new folder to, without .git, .local,
// node_modules and the named folders.
func Tree(t testing.TB, from, to string, without ...string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.Name() == ".git" && !entry.IsDir() {
			return nil // of a worktree: git in the copy would change the repository that it names
		}
		if entry.IsDir() {
			if slices.Contains(without, name) || slices.Contains([]string{".git", ".local", "node_modules"}, entry.Name()) {
				return fs.SkipDir
			}
			return os.MkdirAll(filepath.Join(to, name), 0o750)
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path) //nolint:gosec // a file of this repository
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, info.Mode()) //nolint:gosec // the same
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Run runs a program in a folder, and returns what it printed. A program that fails ends
// the test.
func Run(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...) //nolint:gosec // of a test
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
