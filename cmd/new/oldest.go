package main

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
)

// recorded is a commit or a tag of the template: services of this version and of later ones can be upgraded,
// because their migrations are in every later version, unchanged. If it is empty, a service of any version can be upgraded.
//
//go:embed oldest
var recorded string

// checkAge refuses a service that is older than the oldest version that can be upgraded.
func (s *service) checkAge(ctx context.Context, from template, recorded string) error {
	oldest := strings.TrimSpace(recorded)
	if oldest == "" {
		return nil
	}
	for _, commit := range []string{oldest, s.Template} {
		if err := command(ctx, from.root, "git", "cat-file", "-e", commit+"^{commit}"); err != nil {
			return fmt.Errorf("the template at %s has no version %s, so nobody knows whether the service can be upgraded: if it is a shallow clone, git fetch --unshallow there: %w", from.root, commit, err)
		}
	}
	if err := command(ctx, from.root, "git", "merge-base", "--is-ancestor", oldest, s.Template); err != nil {
		return fmt.Errorf("%s has version %.12s of the template, and upgrades begin at %.12s: make a new service with cmd/new, and copy your files into it", s.Service, s.Template, oldest)
	}
	return nil
}
