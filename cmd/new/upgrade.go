package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// record is the content of template.json.
type record struct {
	Form     int    `json:"form"`             // of this file: recordForm
	Template string `json:"template"`         // the commit that was rendered
	Source   string `json:"source,omitempty"` // where cmd/upgrade finds the template
	options
}

// recordForm is the form of template.json that this command writes and reads.
const recordForm = 3

// service is the repository that is upgraded.
type service struct {
	record
	root string
	base string // the newest commit of the branch template
	head string // the newest commit of the current branch, with the merges of recall and adopt
	// start is the newest commit of the current branch itself.
	start string
	// adopted reports whether adopt has added entities of the service to base.
	adopted bool
	changed string // the parts that change, for the subjects of commits
	local   string // the commit of refs/heads/template, or "" if only the remote has the branch
	work    string // a temporary folder
}

// errInterrupted means that a signal came before anything of the service had changed.
var errInterrupted = errors.New("interrupted: the service is as it was")

// upgrade brings a service to the version of this template. It renders the template with
// the recorded options, commits that to the branch template, and merges the branch into
// the current one. The service then also has the parts of with, and no longer the parts of without.
//
// It refuses a service with uncommitted changes or one that checkAge refuses, and a template that checkMigrations
// refuses.
// It renders and merges in temporary worktrees, so a failure or a crash before the last step
// leaves the service as it was. If the merge has conflicts, or generating after it fails, the
// service is left in the middle of a merge, as after git merge.
func upgrade(ctx context.Context, from template, dir string, with, without []string, stdout io.Writer) (err error) {
	s, err := openService(ctx, dir)
	if err != nil {
		return err
	}
	if err := errors.Join(s.checkAge(ctx, from, recorded), s.change(from, with, without)); err != nil {
		return err
	}
	if from.url == "" && !isLocal(s.Source) {
		from.url = s.Source
	}
	if s.work, err = os.MkdirTemp("", "upgrade-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.work)) }()
	if err := s.recall(ctx); err != nil {
		return err
	}
	if err := s.adopt(ctx, stdout); err != nil {
		return err
	}
	next := s.base
	if s.Template != from.commit || s.adopted || len(with)+len(without) > 0 {
		next, err = s.render(ctx, from, stdout)
	} else { // an earlier merge may have been aborted
		err = s.checkMigrations(ctx, next)
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	err = s.merge(ctx, next, stdout)
	if err == nil || errors.Is(err, errInMerge) {
		err = errors.Join(s.reportMoves(context.WithoutCancel(ctx), next, stdout), err)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\n%s has the template at %s. %s", s.Service, from.commit, nextSteps(dir, "go test ./..."))
	return err
}

// openService returns the service in a folder. Its error says why it cannot be upgraded.
func openService(ctx context.Context, dir string) (s service, err error) {
	if _, err := exec.LookPath("make"); err != nil {
		return s, errors.New("make is not installed: the generated files of the service are made with it")
	}
	if s.root, err = output(ctx, dir, "git", "rev-parse", "--show-toplevel"); err != nil {
		return s, fmt.Errorf("%s is in no git repository: %w", dir, err)
	}
	if err := s.findBranch(ctx); err != nil {
		return s, err
	}
	text, err := output(ctx, s.root, "git", "show", s.base+":template.json")
	if err != nil {
		return s, fmt.Errorf("the branch template of %s has no template.json, so this command did not make it: %w", dir, err)
	}
	if err := json.Unmarshal([]byte(text), &s.record); err != nil {
		return s, fmt.Errorf("template.json on the branch template: %w", err)
	}
	if s.Form != recordForm {
		return s, fmt.Errorf("%s was made by an older version of this command, whose services cannot be upgraded: make a new service with cmd/new, and copy your files into it", dir)
	}
	if _, err := output(ctx, s.root, "git", "rev-parse", "--verify", "--quiet", "MERGE_HEAD"); err == nil {
		return s, fmt.Errorf("%s is in the middle of a merge: git commit, or git merge --abort", dir)
	}
	changes, err := output(ctx, s.root, "git", "status", "--porcelain", "--untracked-files=normal")
	if err != nil {
		return s, err
	}
	if changes != "" {
		first, _, _ := strings.Cut(changes, "\n")
		return s, fmt.Errorf("%s has changes that are not committed, such as %q: commit or stash them", dir, first)
	}
	if s.head, err = output(ctx, s.root, "git", "rev-parse", "HEAD"); err != nil {
		return s, err
	}
	s.start = s.head
	branch, err := output(ctx, s.root, "git", "branch", "--show-current")
	switch {
	case err != nil:
		return s, err
	case branch == "":
		return s, fmt.Errorf("%s is on no branch (detached HEAD): check out the one that the new version is for", dir)
	case branch == "template":
		return s, fmt.Errorf("%s is on the branch template: check out the one that the new version is for", dir)
	}
	if _, err := output(ctx, s.root, "git", "merge-base", "HEAD", s.base); err != nil {
		return s, fmt.Errorf("the branch %s of %s has no common history with the branch template: %s%w", branch, dir, s.advice(ctx), err)
	}
	return s, nil
}

// change adds parts to the service, and takes others away.
func (s *service) change(from template, with, without []string) (err error) {
	for _, part := range without {
		if !slices.Contains(s.With, part) {
			return fmt.Errorf("--without %s: %s was not made with --with %[1]s", part, s.Service)
		}
		s.With = slices.DeleteFunc(s.With, func(name string) bool { return name == part })
		s.changed += ", without " + part
	}
	for _, part := range with {
		if s.Full || slices.Contains(s.With, part) {
			return fmt.Errorf("--with %s: %s has it", part, s.Service)
		}
		s.With = append(s.With, part)
		s.changed += ", with " + part
	}
	if s.offered, err = from.optionNames(); err != nil {
		return err
	}
	var all mistakes
	s.checkWith(&all)
	return all.join()
}

// findBranch finds the branch template. After a git clone it is on the remote only; after a
// colleague's upgrade the one of the remote is newer.
func (s *service) findBranch(ctx context.Context) error {
	find := func(ref string) string {
		commit, err := output(ctx, s.root, "git", "rev-parse", "--verify", "--quiet", ref+"^{commit}")
		if err != nil {
			return ""
		}
		return commit
	}
	contains := func(newer, older string) bool {
		return command(ctx, s.root, "git", "merge-base", "--is-ancestor", older, newer) == nil
	}
	s.local = find("refs/heads/template")
	remote := find("refs/remotes/origin/template")
	switch {
	case s.local == "" && remote == "":
		return fmt.Errorf("%s has no branch template, and no origin/template: git fetch origin template:template, if this command made the service. %s", s.root, s.advice(ctx))
	case s.local == "" || remote != "" && contains(remote, s.local):
		s.base = remote
	case remote == "" || contains(s.local, remote):
		s.base = s.local
	default:
		return fmt.Errorf("template and origin/template of %s have both gone on: git branch --force template origin/template takes the one of the others", s.root)
	}
	return nil
}

// advice returns a hint for a shallow clone, or "".
func (s *service) advice(ctx context.Context) string {
	if shallow, err := output(ctx, s.root, "git", "rev-parse", "--is-shallow-repository"); err != nil || shallow != "true" {
		return ""
	}
	return "This is a shallow clone: git fetch --unshallow origin '+refs/heads/*:refs/remotes/origin/*'. "
}

// inWorktree calls use with a temporary worktree of a commit, on no branch. All worktrees have
// the same path, so that the build cache of Go is used again.
func (s *service) inWorktree(ctx context.Context, commit string, use func(tree string) error, flags ...string) (err error) {
	tree := filepath.Join(s.work, "tree")
	args := append([]string{"worktree", "add", "--quiet", "--detach"}, flags...)
	failure := command(ctx, s.root, "git", append(args, tree, commit)...)
	defer func() {
		// git worktree prune would also forget the owner's worktrees on an absent disk. The second
		// --force is for a worktree that an interrupt has left locked.
		err = errors.Join(err, os.RemoveAll(tree))
		forgotten := command(context.WithoutCancel(ctx), s.root, "git", "worktree", "remove", "--force", "--force", tree)
		if failure == nil {
			err = errors.Join(err, forgotten)
		}
	}()
	if failure != nil {
		return failure
	}
	return use(tree)
}

// render renders the template, and returns a commit on top of the branch template. The branch
// does not change.
func (s *service) render(ctx context.Context, from template, stdout io.Writer) (commit string, err error) {
	err = s.inWorktree(ctx, s.base, func(tree string) error {
		r := &renderer{ctx: ctx, from: from, options: s.options, dir: tree}
		steps := []step{
			{"copy and rename", r.copy},
			{once, r.tools},
			{"entities of the service", func() error { r.generated, err = s.keep(ctx, tree); return err }},
			{"check the migrations", func() error { return s.checkRendered(ctx, tree) }},
			{"generate Go and OpenAPI", r.generate},
			{"commit to the branch template", func() error {
				if err := command(ctx, tree, "git", "-c", "core.excludesFile=/dev/null", "add", "--all"); err != nil {
					return err
				}
				return r.commitAs("Template at " + from.commit + s.changed)
			}},
		}
		if err := inSteps(stdout, steps); err != nil {
			return err
		}
		commit, err = output(ctx, tree, "git", "rev-parse", "HEAD")
		return err
	}, "--no-checkout")
	return commit, err
}

// checkRendered checks the migrations of a worktree, before the long steps.
func (s *service) checkRendered(ctx context.Context, tree string) error {
	if err := command(ctx, tree, "git", "-c", "core.excludesFile=/dev/null", "add", "--all"); err != nil {
		return err
	}
	staged, err := output(ctx, tree, "git", "write-tree")
	if err != nil {
		return err
	}
	return s.checkMigrations(ctx, staged)
}

// files returns the files of a commit whose paths match a pattern of filepath.Match.
func (s *service) files(ctx context.Context, commit, pattern string) ([]string, error) {
	list, err := output(ctx, s.root, "git", "ls-tree", "-r", "--name-only", "-z", commit)
	var files []string
	for name := range strings.SplitSeq(list, "\x00") {
		if ok, err := filepath.Match(pattern, name); err == nil && ok {
			files = append(files, name)
		}
	}
	return files, err
}
