package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"example.com/servicekit/tool"
)

// template is the repository that is copied.
type template struct {
	root, commit string
	url, path    string // where an upgrade finds it: a URL, or a path of this machine
}

// findTemplate returns the repository of the current folder. It refuses uncommitted changes,
// because template.json could not say what was rendered.
func findTemplate(ctx context.Context) (template, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return template{}, errors.New("git is not installed: the template is read from its repository")
	}
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return template{}, fmt.Errorf("this folder is in no git repository: clone the template, and run it there: %w", err)
	}
	if _, err := os.Stat(filepath.Join(root, "cmd", "new")); err != nil {
		return template{}, fmt.Errorf("%s is not the template: it has no cmd/new", root)
	}
	changes, err := output(ctx, root, "git", "status", "--porcelain")
	if err != nil {
		return template{}, err
	}
	if changes != "" {
		first, _, _ := strings.Cut(changes, "\n")
		return template{}, fmt.Errorf("the template has changes that are not committed, such as %q: commit or stash them", first)
	}
	commit, err := output(ctx, root, "git", "rev-parse", "HEAD")
	t := template{root: root, commit: commit}
	if t.url = source(ctx, root); isLocal(t.url) {
		t.url, t.path = "", t.url
	}
	return t, err
}

// source returns the URL of the remote origin, or the path of a repository without that remote.
// It returns no password, because template.json is published with the service.
func source(ctx context.Context, root string) string {
	origin, err := output(ctx, root, "git", "config", "--get", "remote.origin.url")
	if err != nil || origin == "" {
		return root
	}
	if u, err := url.Parse(origin); err == nil && (u.Scheme == "https" || u.Scheme == "http") {
		u.User = nil
		return u.String()
	}
	for _, path := range []string{filepath.Clean(origin), filepath.Join(root, origin)} {
		if _, err := os.Stat(path); err == nil && filepath.IsAbs(path) {
			return path
		}
	}
	return origin
}

// isLocal reports whether a place is a path of this machine, or a file URL. As in git, any other colon before
// the first slash means a URL, or HOST:PATH.
func isLocal(place string) bool {
	before, _, hasColon := strings.Cut(place, ":")
	return !hasColon || strings.Contains(before, "/") || before == "file"
}

// files returns the committed files.
func (t template) files(ctx context.Context) ([]string, error) {
	list, err := output(ctx, t.root, "git", "ls-files", "-z")
	return strings.Split(strings.TrimSuffix(list, "\x00"), "\x00"), err
}

// once is the step that takes minutes, on a machine without the tools.
const once = "build the tools, once on a machine"

// tools builds the tools that generate.
func (r *renderer) tools() error { return command(r.ctx, r.dir, "make", "--silent", "tools") }

// generate generates what depends on the names: the released contract, alerts and, unless cmd/entity has run the
// generators, Go and OpenAPI from api/proto and Go from db.
func (r *renderer) generate() error {
	steps := [][]string{
		{"make", "--silent", "baseline"},
		{"gofmt", "-w", "."}, // all modules
	}
	if !r.generated {
		steps[0] = append(steps[0], "generate-code")
	}
	if !slices.Contains(r.options.without(), "observe") {
		steps = append(steps, []string{"go", "run", "./deploy/observe/generate"})
	}
	if !r.options.Full { // a collision of words of the entity ends here
		steps = append(steps, []string{"go", "vet", "./..."})
	}
	for _, args := range steps {
		if err := command(r.ctx, r.dir, args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// commit makes the repository: the branch template has the rendered files, and main begins
// there.
func (r *renderer) commit() error {
	for _, args := range [][]string{{"init", "--quiet", "--initial-branch=template"}, {"add", "--all"}} {
		if err := command(r.ctx, r.dir, "git", args...); err != nil {
			return err
		}
	}
	if err := r.commitAs("Template at " + r.from.commit); err != nil {
		return err
	}
	if r.from.path != "" { // not in template.json, which others read
		if err := command(r.ctx, r.dir, "git", "config", "template.source", r.from.path); err != nil {
			return err
		}
	}
	return command(r.ctx, r.dir, "git", "checkout", "--quiet", "-b", "main")
}

// commitAs commits what is staged.
func (r *renderer) commitAs(message string) error {
	return command(r.ctx, r.dir, "git", append(identity(r.ctx, r.dir), "commit", "--quiet", "--allow-empty", "--message", message)...)
}

// identity returns options of git that name a committer, if git has none.
func identity(ctx context.Context, dir string) []string {
	if email, err := output(ctx, dir, "git", "config", "user.email"); err == nil && email != "" {
		return nil
	}
	return []string{"-c", "user.name=template", "-c", "user.email=template@localhost"}
}

// inWorkspace reports whether the go command finds a go.work from a folder. The folder must then be in it.
func inWorkspace(ctx context.Context, dir string) bool {
	cmd := exec.CommandContext(ctx, "go", "env", "GOWORK")
	cmd.Dir = dir
	found, err := cmd.Output()
	return err == nil && strings.HasSuffix(strings.TrimSpace(string(found)), ".work")
}

// command runs a program. Its error has what the program printed.
func command(ctx context.Context, dir, name string, args ...string) error {
	_, err := output(ctx, dir, name, args...)
	return err
}

// always are arguments of a program. The hooks and signatures of the owner are for the owner's work.
var always = map[string][]string{"git": {"-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "merge.verifySignatures=false"}}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	return tool.Output(ctx, dir, name, slices.Concat(always[name], args)...)
}
