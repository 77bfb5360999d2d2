package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// Databases of services have run the migrations of the oldest version that can be upgraded. So this version
// keeps these migrations unchanged, and its new migrations have later numbers.
func TestMigrationsOfTheOldestVersion(t *testing.T) {
	t.Parallel()
	if _, err := output(t.Context(), "../..", "git", "cat-file", "-e", strings.TrimSpace(recorded)+"^{commit}"); err != nil {
		t.Skipf("a shallow clone has no version %s: %v", recorded, err)
	}
	if err := keepsMigrations(t.Context(), "../..", recorded); err != nil {
		t.Error(err)
	}
}

// keepsMigrations returns an error if the files of a template changed or removed a migration of its recorded
// version, or have a new one whose number is not above all of them.
func keepsMigrations(ctx context.Context, root, recorded string) error {
	oldest := strings.TrimSpace(recorded)
	if oldest == "" {
		return nil
	}
	list, err := output(ctx, root, "git", "ls-tree", "-r", "--name-only", "--full-tree", oldest)
	if err != nil {
		return fmt.Errorf("version %s of cmd/new/oldest is not in this clone, so its migrations cannot be compared: git fetch --unshallow --tags: %w", oldest, err)
	}
	var errs []error
	last := make(map[string]int) // numbers by folder
	kept := make(map[string]bool)
	for name := range strings.FieldsSeq(list) {
		if !isBelow(name, []string{"db/migrations/*", optionMigrations}) {
			continue
		}
		kept[name] = true
		last[path.Dir(name)] = max(last[path.Dir(name)], number(name))
		before, err := output(ctx, root, "git", "show", oldest+":"+name)
		if err != nil {
			return err
		}
		after, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) || essence(before) != essence(strings.TrimSpace(string(after))) {
			err = fmt.Errorf("%s is not what databases of version %s have run: restore it, and add a migration", name, oldest)
		}
		errs = append(errs, err)
	}
	for _, pattern := range []string{"db/migrations/*", optionMigrations} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		errs = append(errs, err)
		for _, file := range files {
			name, err := filepath.Rel(root, file)
			if dir := path.Dir(name); err == nil && !kept[name] && number(name) <= last[dir] {
				errs = append(errs, fmt.Errorf("%s is new, and databases of version %s are beyond its number: number it from %05d on", name, oldest, last[dir]+1))
			}
		}
	}
	return errors.Join(errs...)
}

func TestOldestVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	git(t, dir, "config", "user.name", "test")
	git(t, dir, "config", "user.email", "test@localhost")
	git(t, dir, "commit", "--quiet", "--allow-empty", "--message", "begin")
	const first, second, ofOption = "db/migrations/00001_a.sql", "db/migrations/00003_b.sql", "options/o/migrations/00100_o.sql"
	commitOn(t, dir, "main", map[string]string{"x": "before"})
	before, _ := output(t.Context(), dir, "git", "rev-parse", "HEAD")
	commitOn(t, dir, "main", map[string]string{first: "SELECT 1;\n", second: "SELECT 2;\n", ofOption: "SELECT 3;\n"})
	git(t, dir, "tag", "v1.0.0")
	commitOn(t, dir, "main", map[string]string{"x": "after"})
	after, _ := output(t.Context(), dir, "git", "rev-parse", "HEAD")
	for _, test := range []struct{ name, text, want string }{
		{"x", "", ""},
		{first, "-- A comment.\nSELECT 1;\n", ""},
		{"db/migrations/00004_c.sql", "SELECT 4;\n", ""},
		{first, "SELECT 9;\n", first + " is not what databases of version v1.0.0 have run"},
		{ofOption, "", ofOption + " is not what"},
		{"db/migrations/00003_c.sql", "SELECT 4;\n", "db/migrations/00003_c.sql is new, and databases of version v1.0.0 are beyond its number: number it from 00004 on"},
	} {
		file := filepath.Join(dir, filepath.FromSlash(test.name))
		if test.text == "" {
			must(t, os.Remove(file))
		} else {
			writeFile(t, dir, test.name, test.text)
		}
		if err := keepsMigrations(t.Context(), dir, "v1.0.0\n"); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s is %q: keepsMigrations() = %v, want %q", test.name, test.text, err, test.want)
		}
		git(t, dir, "reset", "--quiet", "--hard")
		git(t, dir, "clean", "--quiet", "-d", "--force")
	}
	shallow := filepath.Join(t.TempDir(), "shallow")
	git(t, dir, "clone", "--quiet", "--depth", "1", "--no-tags", "file://"+dir, shallow)
	if err := keepsMigrations(t.Context(), shallow, "v1.0.0"); err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Errorf("keepsMigrations() of a shallow clone = %v", err)
	}
	for _, test := range []struct{ root, version, recorded, want string }{
		{dir, before, "", ""},
		{dir, after, "v1.0.0\n", ""},
		{dir, before, "v1.0.0", "upgrades begin at v1.0.0: make a new service with cmd/new"},
		{dir, strings.Repeat("0", 40), "v1.0.0", "has no version 0000"},
		{shallow, after, "v1.0.0", "has no version v1.0.0, so nobody knows whether the service can be upgraded: if it is a shallow clone, git fetch --unshallow"},
	} {
		s := service{record: record{Template: test.version}}
		if err := s.checkAge(t.Context(), template{root: test.root}, test.recorded); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("checkAge() of %s, recorded %q = %v, want %q", test.version, test.recorded, err, test.want)
		}
	}
}
