package main

import (
	"context"
	"io"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// The descriptions of the entities that a service has made with cmd/entity.
const entities = "internal/entities/*.yaml"

// adopt commits, on top of the branch template, the entities that the service has made since
// its last upgrade, as the service's cmd/entity renders them, without the owner's edits. It
// merges this commit into the current branch without changing a file. So git merges the new
// version from there, and keeps the owner's edits, as it does in all other files.
//
// The commits are on no branch yet: a failure later leaves the service as it was.
func (s *service) adopt(ctx context.Context, stdout io.Writer) error {
	merged, err := output(ctx, s.root, "git", "merge-base", s.head, s.base)
	if err != nil {
		return err
	}
	before, err := s.descriptions(ctx, merged)
	if err != nil {
		return err
	}
	now, err := s.descriptions(ctx, s.head)
	if err != nil || maps.Equal(before, now) {
		return err
	}
	return inSteps(stdout, []step{{"entities, as they were made", func() error {
		return s.inWorktree(ctx, merged, func(tree string) error { return s.adoptIn(ctx, tree, merged) })
	}}})
}

// adoptIn makes the commits of adopt in a worktree of merged, which is the commit of the branch
// template that the current branch has merged.
func (s *service) adoptIn(ctx context.Context, tree, merged string) error {
	if _, err := s.keep(ctx, tree); err != nil {
		return err
	}
	if err := command(ctx, tree, "git", "-c", "core.excludesFile=/dev/null", "add", "--all"); err != nil {
		return err
	}
	files, err := output(ctx, tree, "git", "write-tree")
	if err != nil {
		return err
	}
	made, err := s.commitTree(ctx, files, "Entities as they were made", merged)
	if err != nil {
		return err
	}
	if s.head, err = s.commitTree(ctx, s.head, "Merge the entities of the branch template", s.head, made); err != nil {
		return err
	}
	s.adopted = true
	if s.base == merged {
		s.base = made
		return nil
	}
	// A later version is on the branch template already: its merge was aborted.
	s.base, err = s.commitTree(ctx, s.base, "Merge the entities", s.base, made)
	return err
}

// descriptions returns the texts of the descriptions in a commit, by path, without the hashes
// of the rendered files: each version has its own.
func (s *service) descriptions(ctx context.Context, commit string) (map[string]string, error) {
	paths, err := s.files(ctx, commit, entities)
	if err != nil {
		return nil, err
	}
	say := make(map[string]string)
	for _, path := range paths {
		text, err := output(ctx, s.root, "git", "show", commit+":"+path)
		if err != nil {
			return nil, err
		}
		say[path], _, _ = strings.Cut(text, "\nrendered:")
	}
	return say, nil
}

// keep takes the entities of the current branch into a worktree with a rendering of the
// template, and renders them there. It takes what a rendering must not change: their
// descriptions, their migrations (databases have run them), the golden samples of their events,
// and the contracts of replicas (copies of the owners' contracts). It reports whether there are entities.
func (s *service) keep(ctx context.Context, tree string) (found bool, err error) {
	descriptions, err := s.descriptions(ctx, s.head)
	if err != nil || len(descriptions) == 0 {
		return false, err
	}
	migrations, err := s.files(ctx, s.head, "db/migrations/*")
	if err != nil {
		return false, err
	}
	checkout := []string{"checkout", "--quiet", s.head, "--"}
	for description, text := range descriptions {
		name := strings.TrimSuffix(path.Base(description), ".yaml")
		samples, err := s.files(ctx, s.head, "internal/event/testdata/"+name+"/*/*")
		if err != nil {
			return false, err
		}
		checkout = append(append(checkout, description), samples...)
		if strings.Contains(text, "\nreplica_of: ") {
			checkout = append(checkout, "api/proto/"+name+"/v1/"+name+"_event.proto")
		}
		for _, of := range ofEntity.FindAllStringSubmatch(text, -1) {
			for _, migration := range migrations {
				if strconv.Itoa(number(migration)) == of[1] {
					checkout = append(checkout, migration)
				}
			}
		}
	}
	if err := command(ctx, tree, "git", checkout...); err != nil {
		return false, err
	}
	return true, command(ctx, tree, "go", "run", "./cmd/entity", "render", "--overwrite")
}

// ofEntity matches the numbers of the migrations of an entity in its description.
var ofEntity = regexp.MustCompile(`(?m)^\s*(?:migration|audited|tenant): (\d+)$`)
