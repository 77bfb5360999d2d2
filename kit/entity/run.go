package entity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// generate generates Go from messages and queries.
func generate(ctx context.Context) error {
	return command(ctx, "make", "--silent", "generate-code")
}

// generateNames generates the files that depend on the topics.
func generateNames(ctx context.Context) error {
	if err := command(ctx, "go", "test", "./internal/names", "-run", "^TestScript$", "-update"); err != nil || !isThere("deploy/observe/generate") {
		return err
	}
	return command(ctx, "go", "run", "./deploy/observe/generate")
}

// samples writes the golden samples of events, which are then never written again.
func samples(ctx context.Context, all []entity) error {
	var names []string
	for _, e := range all {
		if !e.Replica() && !e.overwrite && len(e.only) == 0 { // else the owner has the samples, or the service
			names = append(names, e.Go())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return command(ctx, "go", "test", "./internal/event", "-run", "^Test("+strings.Join(names, "|")+")Samples$")
}

// command runs a program. Its error has the output of the program. After it returns, the
// program and its children write no more.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // of this folder
	// The tests of events then write the samples that are missing.
	cmd.Env = append(os.Environ(), "UPDATE_SAMPLES=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // and what it runs
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w:\n%s", name, strings.Join(args, " "), errors.Join(context.Cause(ctx), err), indent(string(out)))
	}
	return nil
}

// generated returns the paths of the files that are generated from the files of entities.
func generated(all []entity) []string {
	// api is last, because the scan for secrets takes the text after it for a key.
	paths := []string{"internal/pg/internal/sqlcgen", "internal/store/internal/sqlcgen", "options", "deploy/names.sh", "deploy/observe", "api"}
	for _, e := range all {
		paths = append(paths, "internal/event/testdata/"+e.Name)
	}
	return paths
}

// undo remembers files, to bring them back.
type undo struct{ steps []func() error }

// write writes a file.
func (u *undo) write(path string, content []byte) error {
	before, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	switch {
	case errors.Is(err, fs.ErrNotExist):
		u.steps = append(u.steps, func() error { return removeFile(path) })
	case err != nil:
		return err
	default:
		u.steps = append(u.steps, func() error { return writeFile(path, before) })
	}
	return writeFile(path, content)
}

// remember saves files and folders that other programs will write.
func (u *undo) remember(paths []string) error {
	before, err := read(paths)
	if err != nil {
		return err
	}
	u.steps = append(u.steps, func() error {
		now, err := read(paths)
		errs := []error{err}
		for path, content := range now {
			if was, ok := before[path]; !ok {
				errs = append(errs, removeFile(path))
			} else if !bytes.Equal(was, content) {
				errs = append(errs, writeFile(path, was))
			}
		}
		for path, content := range before {
			if _, ok := now[path]; !ok {
				errs = append(errs, writeFile(path, content))
			}
		}
		return errors.Join(errs...)
	})
	return nil
}

// restore brings all files back.
func (u *undo) restore() error {
	var errs []error
	for _, step := range slices.Backward(u.steps) {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}

// read returns the content of files, and of all files below folders.
func read(paths []string) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			files[path], err = os.ReadFile(path) //nolint:gosec // a file of this repository
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a folder of sources
		return err
	}
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, content) { //nolint:gosec // a file of this repository
		return nil // the Go command rebuilds less
	}
	return os.WriteFile(path, content, 0o644) //nolint:gosec // a source
}

// removeFile removes a file, if it exists, and the folders that are then empty.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) && err != nil {
		return err
	}
	dir := filepath.Dir(path)
	for dir != "." && os.Remove(dir) == nil { // Remove refuses a folder with files
		dir = filepath.Dir(dir)
	}
	return nil
}

// indent begins each line of a text with two spaces.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}
