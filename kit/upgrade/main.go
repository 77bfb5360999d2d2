// Package upgrade is a command that brings a service to a later version of the template that it was made
// from.
//
//	go run ./cmd/upgrade           to the newest version
//	go run ./cmd/upgrade v1.2.0    to a tag, a branch or a commit of the template
//	go run ./cmd/upgrade --with console    adds an option, at the version that the service has
//	go run ./cmd/upgrade --without console removes it
//
// It clones the template into a temporary folder, and runs cmd/new of that version, which renders the
// service again and merges: so the newer version decides how. CONTRIBUTING.md says what it promises.
package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"example.com/servicekit/tool"
)

const usage = `go run ./cmd/upgrade [REF] brings this service to a later version of its template.

  REF             tag, branch or commit of the template; default: its default branch
  --with LIST     options that the service gets, separated by commas or spaces. Without REF its version stays
  --without LIST  options that it loses
  --from PLACE    path or URL of the template; default: "source" in template.json, then the place of the last upgrade
`

// Main runs the command in the root of a service.
func Main() { tool.Main("upgrade", usage, run) }

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	from, ref, change, err := parse(args)
	if err != nil {
		return err
	}
	s, err := findService(ctx)
	if err != nil {
		return err
	}
	if from != "" {
		s.Source = from
		if path, err := filepath.Abs(from); err == nil && exists(path) {
			s.Source = path
		}
	}
	if len(change) > 0 && ref == "" {
		ref = s.Template
	}
	if s.Source == "" { // the last place is in the git configuration of this clone
		s.Source, _ = tool.Output(ctx, s.root, "git", "config", "--get", "template.source") // it fails without a setting
	}
	if s.Source == "" {
		return errors.New("template.json does not say where the template is: say it with --from PLACE, a path or a URL")
	}
	work, err := os.MkdirTemp("", "upgrade-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	template, program := filepath.Join(work, "template"), filepath.Join(work, "new")
	fmt.Fprintln(stdout, "clone the template")
	if err := prepare(ctx, s, ref, template, program); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted: the service is as it was")
		}
		return err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{s.root, "--upgrade"}, change...)...) //nolint:gosec // built above
	cmd.Dir, cmd.Stdout, cmd.Stderr = template, stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it tidies up
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %w", tool.ErrTold, err)
	}
	if from == "" {
		return nil
	}
	_, err = tool.Output(ctx, s.root, "git", "config", "template.source", s.Source)
	return err
}

// parse reads the command line. change are the flags that change the options.
func parse(args []string) (from, ref string, change []string, err error) {
	flags := flag.NewFlagSet("upgrade", flag.ContinueOnError)
	flags.StringVar(&from, "from", "", "")
	for _, name := range []string{"with", "without"} {
		flags.Func(name, "", func(list string) error {
			change = append(change, "--"+name, list)
			return nil
		})
	}
	refs, err := tool.Parse(flags, args)
	if err == nil && len(refs) > 1 {
		err = fmt.Errorf("want one version, and not %q: a list with spaces needs quotes; try go run ./cmd/upgrade --help", refs)
	}
	return from, strings.Join(refs, ""), change, err
}

// service has the fields of template.json.
type service struct {
	Template string // the commit of the template from which the service was made
	Source   string // where the template is
	root     string
}

// findService reads template.json at the top of the current repository.
func findService(ctx context.Context) (s service, err error) {
	if s.root, err = tool.Output(ctx, ".", "git", "rev-parse", "--show-toplevel"); err != nil {
		return s, fmt.Errorf("this folder is in no git repository: an upgrade is a merge: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(s.root, "template.json"))
	if err != nil && exists(filepath.Join(s.root, "cmd", "new")) {
		return s, errors.New("this is the template itself: run the command in a service that was made from it")
	}
	if err != nil {
		return s, fmt.Errorf("%s was not made from a template: %w", s.root, err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("template.json: %w", err)
	}
	return s, nil
}

// prepare clones the template, checks out the version, and builds its command.
func prepare(ctx context.Context, s service, ref, template, program string) error {
	if _, err := tool.Output(ctx, ".", "git", "clone", "--quiet", "--no-checkout", "--", s.Source, template); err != nil {
		return fmt.Errorf("clone the template from %s, which may have moved: --from PLACE says where it is: %w", s.Source, err)
	}
	commit, err := find(ctx, template, ref)
	if err != nil {
		return fmt.Errorf("the template at %s has no tag, branch or commit %q, or it is a shallow clone without it (git fetch --unshallow there): %w", s.Source, ref, err)
	}
	if commit != s.Template {
		if _, err := tool.Output(ctx, template, "git", "merge-base", "--is-ancestor", commit, s.Template); err == nil {
			return fmt.Errorf("the service has version %.12s of the template, which is later than %.12s: there is no way back", s.Template, commit)
		}
	}
	if _, err := tool.Output(ctx, template, "git", "checkout", "--quiet", "--detach", commit); err != nil {
		return err
	}
	// The program itself, not go run, gets the signals and prints the error.
	_, err = tool.Output(ctx, template, "go", "build", "-o", program, "./cmd/new")
	return err
}

// find returns the commit of a version. A branch name means the branch of the source, not of
// the clone. It fetches a ref that the clone does not have.
func find(ctx context.Context, template, ref string) (string, error) {
	if strings.HasPrefix(ref, "-") {
		return "", errors.New("it looks like a flag")
	}
	names := []string{"refs/tags/" + ref, "refs/remotes/origin/" + ref, ref}
	if ref == "" {
		names = []string{"refs/remotes/origin/HEAD", "HEAD"} // HEAD: the source has a detached HEAD
	}
	for _, name := range names {
		if commit, err := tool.Output(ctx, template, "git", "rev-parse", "--verify", "--quiet", name+"^{commit}"); err == nil {
			return commit, nil
		}
	}
	if _, err := tool.Output(ctx, template, "git", "fetch", "--quiet", "origin", ref); err != nil {
		return "", err
	}
	return tool.Output(ctx, template, "git", "rev-parse", "--verify", "FETCH_HEAD^{commit}")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
