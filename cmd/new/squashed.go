package main

import (
	"context"
	"encoding/json"
	"strings"
)

// recall finds the commit of the branch template whose files the current branch has without its
// history, because an upgrade was squashed or rebased. It merges that commit without changing a
// file, so that git merges the next version from there. The proof is template.json of the current
// branch: only a merge of that commit can have brought this version of the file.
//
// The commit is on no branch yet: a failure later leaves the service as it was.
func (s *service) recall(ctx context.Context) error {
	merged, err := output(ctx, s.root, "git", "merge-base", s.head, s.base)
	if err != nil {
		return err
	}
	has, known := s.versionOf(ctx, s.head)
	if before, ok := s.versionOf(ctx, merged); !known || ok && before == has {
		return nil
	}
	list, err := output(ctx, s.root, "git", "rev-list", "--first-parent", "--reverse", merged+".."+s.base)
	if err != nil {
		return err
	}
	// The first of several commits with this version: a later one has the version with more
	// entities, which the current branch may not have.
	for commit := range strings.FieldsSeq(list) {
		if version, ok := s.versionOf(ctx, commit); ok && version == has {
			s.head, err = s.commitTree(ctx, s.head, "Merge the branch template: the current branch has it, without its history", s.head, commit)
			return err
		}
	}
	return nil
}

// versionOf returns the commit of the template that a commit of the service has, as its
// template.json says.
func (s *service) versionOf(ctx context.Context, commit string) (version string, ok bool) {
	text, err := output(ctx, s.root, "git", "show", commit+":template.json")
	if err != nil {
		return "", false
	}
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return "", false
	}
	return r.Template, r.Template != ""
}

// commitTree makes a commit with the files of a tree or a commit. No branch has it.
func (s *service) commitTree(ctx context.Context, files, message string, parents ...string) (string, error) {
	args := append(identity(ctx, s.root), "commit-tree", files+"^{tree}", "-m", message)
	for _, parent := range parents {
		args = append(args, "-p", parent)
	}
	return output(ctx, s.root, "git", args...)
}
