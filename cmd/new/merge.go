package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"example.com/servicekit/naming"
)

// errInMerge means that the service is in the middle of a merge, which its owner completes.
var errInMerge = errors.New("git is in the middle of the merge")

// merge merges a commit of the branch template into the current branch, and moves the
// branch template to it. It merges in a worktree of its own first, and generates there, so
// only the last two commands change the service. A crash between them leaves the branch
// template ahead, and the next upgrade begins with its merge.
func (s *service) merge(ctx context.Context, next string, stdout io.Writer) error {
	var merged string
	var failure error
	if command(ctx, s.root, "git", "merge-base", "--is-ancestor", next, s.head) == nil {
		merged = s.head
		if _, err := fmt.Fprintln(stdout, "The current branch is up to date."); err != nil {
			return err
		}
	} else {
		merged, failure = s.mergeApart(ctx, next, stdout)
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	if now, err := output(ctx, s.root, "git", "rev-parse", "HEAD"); err != nil || now != s.start {
		return errors.Join(errors.New("the current branch has changed meanwhile: run the upgrade again"), err)
	}
	ctx = context.WithoutCancel(ctx)
	if s.local != next {
		old := s.local
		if old == "" {
			old = strings.Repeat("0", len(next)) // git's name for a branch that does not exist
		}
		if err := command(ctx, s.root, "git", "update-ref", "-m", "upgrade", "refs/heads/template", next, old); err != nil {
			return err
		}
	}
	if failure != nil {
		return s.leaveMerge(ctx, next, failure)
	}
	return command(ctx, s.root, "git", "merge", "--quiet", "--ff-only", "--no-overwrite-ignore", merged)
}

// mergeApart merges in a worktree, generates there, and returns the commit.
func (s *service) mergeApart(ctx context.Context, next string, stdout io.Writer) (merged string, err error) {
	err = s.inWorktree(ctx, s.head, func(tree string) error {
		var m merging
		steps := []step{
			{"merge", func() error {
				m, err = mergeInto(ctx, tree, next)
				if err == nil && len(m.open) > 0 {
					err = errors.New("it has conflicts")
				}
				return err
			}},
			{"generate from the merged sources", func() error {
				for _, generator := range m.generators() {
					if err := command(ctx, tree, generator[0], generator[1:]...); err != nil {
						return err
					}
				}
				return command(ctx, tree, "git", "add", "--all")
			}},
			{"commit the merge", func() error {
				message := "Merge the branch template: " + next[:12] + s.changed
				return command(ctx, tree, "git", append(identity(ctx, tree), "commit", "--quiet", "--message", message)...)
			}},
		}
		if err := inSteps(stdout, steps); err != nil {
			return err
		}
		if len(m.generated) > 0 {
			if _, err := fmt.Fprintf(stdout, "  generated files with conflicts, generated again: %s\n", strings.Join(m.generated, ", ")); err != nil {
				return err
			}
		}
		merged, err = output(ctx, tree, "git", "rev-parse", "HEAD")
		return err
	})
	return merged, err
}

// leaveMerge begins the merge in the service itself, and returns an error that says what
// its owner can do.
func (s *service) leaveMerge(ctx context.Context, next string, failure error) error {
	if err := command(ctx, s.root, "git", "merge", "--quiet", "--ff-only", s.head); err != nil {
		return err
	}
	m, err := mergeInto(ctx, s.root, next)
	if err != nil {
		return err
	}
	var generators []string
	for _, generator := range m.generators() {
		generators = append(generators, strings.Join(generator, " "))
	}
	then := strings.Join(generators, ", ") + ", go vet ./..., git add --all, and git commit"
	if len(m.open) == 0 {
		return fmt.Errorf("%w, which has no conflicts, but this failed: %w\nCorrect the sources, then %s. Or take all back with git merge --abort", errInMerge, failure, then)
	}
	return fmt.Errorf("%w: both sides changed\n  %s\nResolve these conflicts, then %s. Or take all back with git merge --abort.\n"+
		"After git config rerere.enabled true, git remembers how you resolve a conflict, and does it again after an abort",
		errInMerge, strings.Join(m.open, "\n  "), then)
}

// merging is a merge before its commit.
type merging struct {
	open      []string   // sources with conflicts, each with its deletion
	generated []string   // files that had conflicts, to be generated again
	further   [][]string // generators of these files that make generate does not run
}

// generators returns the commands that generate all files again. Further generators need
// generated code, and make generate reads their output, so it runs before and after them.
func (m merging) generators() [][]string {
	first := []string{"make", "generate"}
	if len(m.further) == 0 {
		return [][]string{first}
	}
	return slices.Concat([][]string{first}, m.further, [][]string{first})
}

// mergeInto merges a commit or branch into what a worktree has checked out. In a conflict of a
// generated file it takes the service's side; if the file has its own generator, it keeps the
// lines of both sides until the generator runs. It takes the released contract from the service,
// and template.json, which says what was rendered, from the template.
func mergeInto(ctx context.Context, tree, from string) (m merging, err error) {
	failure := command(ctx, tree, "git", append(identity(ctx, tree), "merge", "--no-commit", "--no-ff", from)...)
	if err := command(ctx, tree, "git", "rev-parse", "--verify", "--quiet", "MERGE_HEAD"); err != nil {
		return m, errors.Join(failure, err)
	}
	if err := errors.Join(take(ctx, tree, "HEAD", "api/baseline.binpb"), take(ctx, tree, "MERGE_HEAD", "template.json"), takeOwnMigrations(ctx, tree), takeDescriptions(ctx, tree)); err != nil {
		return m, err
	}
	list, err := output(ctx, tree, "git", "diff", "--name-only", "--diff-filter=U", "-z")
	if err != nil {
		return m, err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		if name == "" {
			continue
		}
		generator, ok := generatorOf(ctx, tree, name)
		if !ok {
			m.open = append(m.open, name+deletion(ctx, tree, name))
			continue
		}
		m.generated = append(m.generated, name)
		if len(generator) == 0 {
			err = take(ctx, tree, "HEAD", name)
		} else {
			m.further = append(m.further, generator)
			err = unite(ctx, tree, name)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// deletion returns what to do with a file that one side of a merge has removed, or "". Git leaves the version of the other side.
func deletion(ctx context.Context, tree, name string) string {
	for commit, side := range map[string]string{"HEAD": "you", "MERGE_HEAD": "the template"} {
		if _, err := output(ctx, tree, "git", "cat-file", "-e", commit+":"+name); err != nil {
			return ", which " + side + " removed: git rm " + naming.ForShell(name) + ", or keep it"
		}
	}
	return ""
}

// takeOwnMigrations stages the migrations of the service as it has them. The branch template
// has only the migrations of entities, without later edits.
func takeOwnMigrations(ctx context.Context, tree string) error {
	list, err := output(ctx, tree, "git", "ls-tree", "--name-only", "-z", "HEAD", "--", "db/migrations/")
	if err != nil {
		return err
	}
	var errs []error
	for name := range strings.SplitSeq(list, "\x00") {
		if number(name) >= firstOwn {
			errs = append(errs, take(ctx, tree, "HEAD", name))
		}
	}
	return errors.Join(errs...)
}

// takeDescriptions stages the descriptions of entities from the branch template. They describe
// the same entities as the service's own, and have the hashes of the new version's files.
func takeDescriptions(ctx context.Context, tree string) error {
	list, err := output(ctx, tree, "git", "ls-tree", "--name-only", "-z", "HEAD", "--", path.Dir(entities)+"/")
	if err != nil {
		return err
	}
	var errs []error
	for name := range strings.SplitSeq(list, "\x00") {
		if ok, err := path.Match(entities, name); err == nil && ok {
			errs = append(errs, take(ctx, tree, "MERGE_HEAD", name))
		}
	}
	return errors.Join(errs...)
}

// take stages a file as a commit has it. A file that the commit does not have is removed.
func take(ctx context.Context, tree, commit, name string) error {
	if _, err := output(ctx, tree, "git", "cat-file", "-e", commit+":"+name); err != nil {
		return command(ctx, tree, "git", "rm", "--quiet", "--force", "--ignore-unmatch", "--", name)
	}
	return command(ctx, tree, "git", "checkout", "--quiet", commit, "--", name)
}

// unite stages the lines of both sides of a file with conflicts. Until the generator of the
// file has run, other generators can read the additions of both sides there.
func unite(ctx context.Context, tree, name string) error {
	if err := command(ctx, tree, "git", "-c", "merge.conflictStyle=merge", "checkout", "--merge", "--", name); err != nil {
		return take(ctx, tree, "HEAD", name) // one side has removed it
	}
	path := filepath.Join(tree, filepath.FromSlash(name))
	text, err := os.ReadFile(path) //nolint:gosec // a file that git lists
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, border.ReplaceAll(text, nil), 0o644); err != nil { //nolint:gosec // a source, which exists
		return err
	}
	return command(ctx, tree, "git", "add", "--", name)
}

// border matches the lines of git around the sides of a conflict.
var border = regexp.MustCompile(`(?m)^(<{7}|={7}|>{7})( .*)?\n`)

var (
	// made matches the paths of the files that make generate writes.
	made = regexp.MustCompile(`^api/.*\.pb(\.gw)?\.go$|^api/openapi\.json$|^internal/(pg|store)/internal/sqlcgen/|^deploy/names\.sh$|^deploy/observe/(monitoring/|dashboard\.json$)`)
	// mark matches the first line of a generated file, and the go command that makes it.
	mark = regexp.MustCompile(`(?m)^\W*Code generated (?:by (go (?:test|run) .*)[.;]|.*) DO NOT EDIT\.`)
)

// generatorOf reports whether a file is generated, on each side of a merge that has it. It also
// returns the file's own generator; none if make generate writes the file.
func generatorOf(ctx context.Context, tree, name string) (generator []string, ok bool) {
	if made.MatchString(name) {
		return nil, true
	}
	for _, side := range []string{"MERGE_HEAD", "HEAD"} {
		text, err := output(ctx, tree, "git", "show", side+":"+name)
		if err != nil {
			continue // this side does not have it
		}
		found := mark.FindStringSubmatch(head(text))
		if found == nil {
			return nil, false
		}
		generator, ok = strings.Fields(found[1]), true
	}
	return generator, ok
}

// head returns the first ten lines of a text. Further below, a source may mention the mark of
// generated files.
func head(text string) string {
	lines := strings.SplitN(text, "\n", 11)
	return strings.Join(lines[:min(len(lines), 10)], "\n")
}
