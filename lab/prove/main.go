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
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.com/servicekit/tool"
)

func main() {
	tool.Main("prove", "", func(ctx context.Context, args []string, stdout io.Writer) error {
		return run(ctx, "engine", args, stdout)
	})
}

// run proves the service in the folder args[0] with the packages below engine. The other
// arguments are for go test.
func run(ctx context.Context, engine string, args []string, out io.Writer) (err error) {
	if len(args) == 0 {
		return errors.New("want the folder of a service")
	}
	service, err := os.OpenRoot(args[0])
	if err != nil {
		return err
	}
	defer service.Close()
	words, err := wordsOf(service)
	if err != nil {
		return err
	}
	if err := service.Mkdir("lab", 0o750); err != nil { // it must not exist: all of it is removed
		return err
	}
	defer func() { err = errors.Join(err, service.RemoveAll("lab")) }()
	if err := copyTo(service, os.DirFS(engine), words); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "./lab/engine/..."}, args[1:]...)...) //nolint:gosec // flags of its caller
	cmd.Dir, cmd.Stdout, cmd.Stderr = args[0], out, out
	// An interrupt is for the tests, too: go test does not pass it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	return cmd.Run()
}

// wordsOf returns what replaces the words of the template in a service.
func wordsOf(service *os.Root) (*strings.Replacer, error) {
	text, err := service.ReadFile("template.json")
	if err != nil {
		return nil, err
	}
	var names struct{ Module, Schema string }
	if err := json.Unmarshal(text, &names); err != nil {
		return nil, fmt.Errorf("read template.json: %w", err)
	}
	return strings.NewReplacer("example.com/videocatalog", names.Module, "video_catalog", names.Schema), nil
}

// copyTo copies the files of the engine's proofs into lab/engine of a service, and replaces words.
func copyTo(service *os.Root, engine fs.FS, words *strings.Replacer) error {
	return fs.WalkDir(engine, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join("lab", "engine", name)
		if entry.IsDir() {
			return service.MkdirAll(to, 0o750)
		}
		text, err := fs.ReadFile(engine, name)
		if err != nil {
			return err
		}
		return service.WriteFile(to, []byte(words.Replace(string(text))), 0o600)
	})
}
