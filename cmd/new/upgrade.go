package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// record is the content of template.json.
type record struct {
	Template string `json:"template"` // the commit that was rendered
	options
}

// upgrade brings a service to the version of this template. It renders the template with
// the recorded options, commits that to the branch template, and merges the branch into
// the current one with git.
//
// It refuses a service with changes that are not committed, and a template that changed a
// migration which the service has: databases have run it. Until the merge nothing but the
// branch template changes. A conflict is git's: the service is then in the middle of a
// merge, as after git merge.
func upgrade(ctx context.Context, from template, dir string, stdout io.Writer) error {
	before, err := readRecord(ctx, dir)
	if err != nil {
		return err
	}
	if before.Template != from.commit {
		if err := renderAgain(ctx, from, before.options, dir); err != nil {
			return err
		}
	} // else an earlier merge may have been aborted
	out, err := output(ctx, dir, "git", append(identity(ctx, dir), "merge", "--no-edit", "template")...)
	if err != nil {
		return fmt.Errorf("git merge stopped: resolve the conflicts and git commit, or git merge --abort: %w", err)
	}
	_, err = fmt.Fprintf(stdout, "%s\n\n%s has the template at %s. Next:\n\n  cd %s\n  go test ./...\n", out, before.Service, from.commit, dir)
	return err
}

// renderAgain renders the template in a worktree of its own, and commits it to the branch
// template. If it fails, the branch stays as it was.
func renderAgain(ctx context.Context, from template, o options, dir string) (err error) {
	work, err := os.MkdirTemp("", "upgrade-")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(work), command(context.WithoutCancel(ctx), dir, "git", "worktree", "prune"))
	}()
	tree := filepath.Join(work, "tree")
	r := &renderer{ctx: ctx, from: from, options: o, dir: tree}
	for _, step := range []func() error{
		func() error { return from.check(ctx, o) },
		func() error { return command(ctx, dir, "git", "worktree", "add", "--quiet", tree, "template") },
		func() error { return command(ctx, tree, "git", "rm", "-r", "--quiet", ".") },
		r.copy,
		r.generate,
		func() error { return command(ctx, tree, "git", "add", "--all") },
		func() error { return checkMigrations(ctx, tree) },
		func() error { return r.commitAs("Template at " + from.commit) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// readRecord reads the options with which a service was made. Its error says why the
// service cannot be upgraded.
func readRecord(ctx context.Context, dir string) (record, error) {
	var r record
	text, err := output(ctx, dir, "git", "show", "template:template.json")
	if err != nil {
		return r, fmt.Errorf("%s has no branch template with template.json, so this command did not make it: %w", dir, err)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, fmt.Errorf("template.json on the branch template: %w", err)
	}
	changes, err := output(ctx, dir, "git", "status", "--porcelain")
	if err != nil {
		return r, err
	}
	if changes != "" {
		first, _, _ := strings.Cut(changes, "\n")
		return r, fmt.Errorf("%s has changes that are not committed, such as %q: commit or stash them", dir, first)
	}
	branch, err := output(ctx, dir, "git", "branch", "--show-current")
	if err == nil && (branch == "template" || branch == "") {
		err = fmt.Errorf("%s is on the branch %q: check out the one that the new version is for", dir, branch)
	}
	return r, err
}

// checkMigrations returns an error if the new rendering changes or removes a migration.
func checkMigrations(ctx context.Context, tree string) error {
	changed, err := output(ctx, tree, "git", "diff", "--cached", "--name-only", "--no-renames", "--diff-filter=MD", "--", "db/migrations")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the template changed migrations that databases of this service may have run, and they must not change: %s."+
			" Write what is new as a migration of your own, and upgrade to a template that has the old ones", strings.Join(strings.Fields(changed), ", "))
	}
	return nil
}
