package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// firstOwn is the number of a service's first own migration. The template's are smaller.
const firstOwn = 1000

// optionMigrations matches the migrations of options.
const optionMigrations = optionsDir + "/*/migrations/*"

// number returns the number of a migration, or 0 for another file.
func number(name string) int {
	digits, _, _ := strings.Cut(path.Base(name), "_")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// checkMigrations returns an error if a new version of the template, a tree or a commit,
// changes or removes a migration, or adds one whose number the service uses. A database never
// runs a migration again, so a template changes the schema only by a new migration. A rename
// counts as a removal and an addition.
func (s *service) checkMigrations(ctx context.Context, next string) error {
	base, err := output(ctx, s.root, "git", "merge-base", s.head, s.base)
	if err != nil {
		return err
	}
	list, err := output(ctx, s.root, "git", "diff", "--name-status", "--no-renames", "-z", base, next, "--", "db/migrations", optionMigrations)
	if err != nil {
		return err
	}
	var own []string
	for _, pattern := range []string{"db/migrations/*", optionMigrations} {
		files, err := s.files(ctx, s.head, pattern)
		if err != nil {
			return err
		}
		own = append(own, files...)
	}
	fields := strings.Split(strings.TrimSuffix(list, "\x00"), "\x00") // status and name, by turns
	var errs []error
	for i := 0; i+1 < len(fields); i += 2 {
		status, name := fields[i], fields[i+1]
		if number(name) >= firstOwn && status != "A" {
			continue // of an entity: its owner has changed or removed it
		}
		folders := strings.Split(name, "/")
		switch {
		case status == "D" && folders[0] == optionsDir && !s.Full && !slices.Contains(s.With, folders[1]):
			// The service no longer has the option. Its tables stay.
		case status == "D":
			errs = append(errs, fmt.Errorf("the template removed the migration %s (or gave it another name)", name))
		case status == "A":
			errs = append(errs, s.checkNumber(ctx, next, name, own))
		default:
			if err := s.sameMigration(ctx, base, next, name); err != nil {
				errs = append(errs, fmt.Errorf("the template changed the migration %s: %w", name, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("databases of this service may have run its migrations, so they must not change; nothing was upgraded:\n%w\n"+
			"A template brings what is new as a new migration: upgrade to a version of it that does", err)
	}
	return nil
}

// checkNumber returns an error if the service has another migration with the number of an
// added one. Goose knows migrations by their numbers only.
func (s *service) checkNumber(ctx context.Context, next, added string, own []string) error {
	for _, name := range own {
		if number(name) != number(added) {
			continue
		}
		if name == added && s.sameMigration(ctx, s.head, next, name) == nil {
			return nil
		}
		return fmt.Errorf("the template adds the migration %s, and the service has its number in %s: number your own from %05d on,"+
			" in the name of the file and, where databases have run it, in version_id and name of their table %s_migrations", added, name, firstOwn, s.Schema)
	}
	return nil
}

// sameMigration returns an error if a migration does something else in one commit than in
// another. Comments and empty space may differ: goose records only the number, so a template
// may explain a migration better.
func (s *service) sameMigration(ctx context.Context, one, other, name string) error {
	before, err := output(ctx, s.root, "git", "show", one+":"+name)
	if err != nil {
		return err
	}
	after, err := output(ctx, s.root, "git", "show", other+":"+name)
	if err != nil {
		return err
	}
	if essence(before) != essence(after) {
		return errors.New("more than comments differs")
	}
	return nil
}

// sqlToken matches the tokens of SQL that may have spaces and hyphens: quoted text, bodies
// of functions, comments, and empty space. PostgreSQL keeps the body of a function as it is,
// with its comments.
var sqlToken = regexp.MustCompile(`(?s)[eE]'(?:[^'\\]|\\.)*'|'[^']*'|"[^"]*"|\$\w*\$.*?\$\w*\$|--[^\n]*|/\*.*?\*/|\s+`)

// essence returns SQL without what has no effect: comments, except those that goose reads,
// and the length of empty space.
func essence(sql string) string {
	return strings.Trim(spaces.ReplaceAllString(sqlToken.ReplaceAllStringFunc(sql, func(token string) string {
		switch {
		case strings.ContainsRune(`eE'"$`, rune(token[0])), strings.HasPrefix(strings.TrimLeft(token, "- "), "+goose"):
			return token
		default:
			return "\x00"
		}
	}), "\x00"), "\x00")
}

// spaces matches what essence puts in place of empty space and comments.
var spaces = regexp.MustCompile("\x00+")
