// Command generate writes the alert policies and the dashboard of deploy/observe from their
// sources, and removes those that have lost their source. It runs in the root of the
// repository.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"example.com/videocatalog/deploy/observe"
)

const dir = "deploy/observe"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	files, err := observe.Files(dir) // before anything is removed: a source may have a mistake
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, "monitoring")); err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a folder of sources
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // everybody may read it
			return err
		}
	}
	return nil
}
