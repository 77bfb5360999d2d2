// Package tool has what the programs of a service's tools share.
package tool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// ErrTold means that the user has already read why the command failed.
var ErrTold = errors.New("the command failed")

// Main runs a command with the arguments of the process. A signal ends its context. It prints usage if run returns
// flag.ErrHelp. Another error ends the process with status 1.
func Main(name, usage string, run func(ctx context.Context, args []string, stdout io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(os.Stdout, usage)
	}
	if err != nil && !errors.Is(err, ErrTold) {
		fmt.Fprintln(os.Stderr, name+":", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// Parse parses flags before, between and after other arguments, and returns those.
func Parse(flags *flag.FlagSet, args []string) (words []string, err error) {
	flags.SetOutput(io.Discard) // the error says enough
	for {
		if err := flags.Parse(args); err != nil {
			return nil, fmt.Errorf("%w: try go run ./cmd/%s --help", err, flags.Name())
		}
		if flags.NArg() == 0 { // the flag package stops at the first argument that is not a flag
			return words, nil
		}
		words, args = append(words, flags.Arg(0)), flags.Args()[1:]
	}
}

// Output runs git or go in a folder, and returns its output.
func Output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // git and go
	cmd.Dir = dir
	// If a hook of git runs this command, these variables name the repository of the hook.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GIT_DIR=") || strings.HasPrefix(v, "GIT_INDEX_FILE=") || strings.HasPrefix(v, "GIT_WORK_TREE=")
	})
	cmd.Env = append(cmd.Env, "GOWORK=off") // a workspace around the folder may not have its module
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, stderr.String(), out)
	}
	return strings.TrimSpace(string(out)), nil
}
