// Command prove runs the proofs of the engine in a service that was made from the template:
//
//	go run ./prove DIR [flags of go test]
//
// It copies lab/engine into the service, with the module and the schema of the service, runs it
// there with go test, and removes it, also if it is interrupted. Run it in lab.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "engine", os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		stop()
		os.Exit(1)
	}
}

// run proves the service in the folder args[0] with the packages below engine. The other
// arguments are for go test.
func run(ctx context.Context, engine string, args []string, out io.Writer) (err error) {
	if len(args) == 0 {
		return errors.New("want the folder of a service")
	}
	dir := args[0]
	words, err := wordsOf(dir)
	if err != nil {
		return err
	}
	place := filepath.Join(dir, "lab")
	if err := os.Mkdir(place, 0o750); err != nil { // it must not exist: all of it is removed
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(place)) }()
	if err := copyTo(filepath.Join(place, "engine"), engine, words); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "./lab/engine/..."}, args[1:]...)...) //nolint:gosec // flags of its caller
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	// An interrupt is for the tests, too: go test does not pass it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	return cmd.Run()
}

// wordsOf returns what replaces the words of the template in a service.
func wordsOf(dir string) (*strings.Replacer, error) {
	text, err := os.ReadFile(filepath.Join(dir, "template.json")) //nolint:gosec // the folder of its caller
	if err != nil {
		return nil, err
	}
	var service struct{ Module, Schema string }
	if err := json.Unmarshal(text, &service); err != nil {
		return nil, fmt.Errorf("read template.json: %w", err)
	}
	return strings.NewReplacer("example.com/videocatalog", service.Module, "video_catalog", service.Schema), nil
}

// copyTo copies a folder and replaces words in its files.
func copyTo(to, from string, words *strings.Replacer) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o750)
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of the lab
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), []byte(words.Replace(string(text))), 0o600)
	})
}
