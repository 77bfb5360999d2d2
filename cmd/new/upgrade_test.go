package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newService makes a small service with the branches template and main.
func newService(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "--quiet", "--initial-branch=template")
	git(t, dir, "config", "user.name", "test")
	git(t, dir, "config", "user.email", "test@localhost")
	writeFile(t, dir, "template.json", `{"form": 3, "template": "abc", "module": "github.com/acme/orders", "schema": "orders_db"}`)
	writeFile(t, dir, "go.mod", "module github.com/acme/orders\n")
	git(t, dir, "add", "--all")
	git(t, dir, "commit", "--quiet", "--message", "template")
	git(t, dir, "checkout", "--quiet", "-b", "main")
	return dir
}

func writeFile(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// commitOn commits files on a branch, and goes back to main. An empty text removes a file.
func commitOn(t *testing.T, dir, branch string, files map[string]string) {
	t.Helper()
	git(t, dir, "checkout", "--quiet", branch)
	for name, text := range files {
		if text == "" {
			git(t, dir, "rm", "--quiet", name)
			continue
		}
		writeFile(t, dir, name, text)
	}
	git(t, dir, "add", "--all")
	git(t, dir, "commit", "--quiet", "--message", "changes")
	git(t, dir, "checkout", "--quiet", "main")
}

// A service that is not ready for a merge is refused, and the error says what to do.
func TestServiceIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"a file that is not committed": {func(t *testing.T, dir string) { t.Helper(); writeFile(t, dir, "x", "x") }, "not committed"},
		"on the branch template":       {func(t *testing.T, dir string) { t.Helper(); git(t, dir, "checkout", "--quiet", "template") }, "on the branch template"},
		"detached":                     {func(t *testing.T, dir string) { t.Helper(); git(t, dir, "checkout", "--quiet", "--detach") }, "detached HEAD"},
		"no branch template":           {func(t *testing.T, dir string) { t.Helper(); git(t, dir, "branch", "--delete", "template") }, "git fetch origin template:template"},
		"no template.json": {func(t *testing.T, dir string) {
			t.Helper()
			commitOn(t, dir, "template", map[string]string{"template.json": ""})
		}, "no template.json"},
		"another template.json": {func(t *testing.T, dir string) {
			t.Helper()
			commitOn(t, dir, "template", map[string]string{"template.json": "x"})
		}, "template.json on the branch"},
		"an older form": {func(t *testing.T, dir string) {
			t.Helper()
			commitOn(t, dir, "template", map[string]string{"template.json": `{"template": "abc", "minimal": true}`})
		}, "make a new service with cmd/new, and copy your files into it"},
		"no common history": {func(t *testing.T, dir string) {
			t.Helper()
			git(t, dir, "checkout", "--quiet", "--orphan", "other")
			git(t, dir, "commit", "--quiet", "--message", "other")
		}, "no common history"},
		"in a merge": {func(t *testing.T, dir string) {
			t.Helper()
			commitOn(t, dir, "template", map[string]string{"x": "x"})
			git(t, dir, "merge", "--quiet", "--no-commit", "--no-ff", "template")
		}, "git merge --abort"},
		"two branches template": {func(t *testing.T, dir string) {
			t.Helper()
			git(t, dir, "update-ref", "refs/remotes/origin/template", "template")
			for _, branch := range []string{"template", "remote"} {
				git(t, dir, "checkout", "--quiet", "-B", branch, "refs/remotes/origin/template")
				commitOn(t, dir, branch, map[string]string{"x": branch})
			}
			git(t, dir, "update-ref", "refs/remotes/origin/template", "remote")
		}, "git branch --force template origin/template"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newService(t)
			test.prepare(t, dir)
			if _, err := openService(t.Context(), dir); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("openService() = %v, want %q", err, test.want)
			}
		})
	}
	if _, err := openService(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no git repository") {
		t.Errorf("openService() of a folder = %v", err)
	}
}

// An upgrade begins at the newer of template and origin/template.
func TestNewerBranchIsTaken(t *testing.T) {
	t.Parallel()
	dir := newService(t)
	const local, remote = "refs/heads/template", "refs/remotes/origin/template"
	git(t, dir, "branch", "next", local)
	for _, ahead := range []string{remote, local, remote} {
		git(t, dir, "update-ref", remote, "next")
		git(t, dir, "update-ref", local, "next")
		commitOn(t, dir, "next", map[string]string{"x": ahead})
		git(t, dir, "update-ref", ahead, "next")
		s, err := openService(t.Context(), dir)
		want, _ := output(t.Context(), dir, "git", "rev-parse", "next")
		if err != nil || s.base != want {
			t.Errorf("base = %q, %v, want %s, which %s has", s.base, err, want, ahead)
		}
	}
}

// After a squash merge, the merge base of git is the version before the squashed one. If
// template.json proves that the current branch has the squashed version, the next merge begins
// there, and brings only later changes of the template.
func TestSquashedUpgradeIsRecalled(t *testing.T) {
	t.Parallel()
	dir := newService(t)
	rev := func(name string) string {
		t.Helper()
		commit, err := output(t.Context(), dir, "git", "rev-parse", name)
		must(t, err)
		return commit
	}
	version := func(commit string) string { return `{"form": 3, "template": "` + commit + `"}` }
	commitOn(t, dir, "template", map[string]string{"template.json": version("def"), "x": "1\n2\n3\n"})
	second := rev("template")
	git(t, dir, "merge", "--quiet", "--squash", "template")
	git(t, dir, "commit", "--quiet", "--message", "squashed")
	commitOn(t, dir, "main", map[string]string{"x": "1\n2\n3, as we want it\n"})
	// The branch template already has the same version with more entities: main does not have it.
	commitOn(t, dir, "template", map[string]string{"x": "0\n1\n2\n3\n"})
	commitOn(t, dir, "template", map[string]string{"template.json": version("ghi"), "y": "new"})

	s, err := openService(t.Context(), dir)
	must(t, err)
	must(t, s.recall(t.Context()))
	base, err := output(t.Context(), dir, "git", "merge-base", s.head, s.base)
	if err != nil || base != second || rev(s.head+"^{tree}") != rev("main^{tree}") || rev(s.head+"^1") != s.start {
		t.Errorf("the merge begins at %s, %v, want %s, and the files of main", base, err, second)
	}
	git(t, dir, "merge", "--quiet", "--ff-only", s.head)
	if m, err := mergeInto(t.Context(), dir, "template"); err != nil || len(m.open) > 0 {
		t.Errorf("mergeInto() = %+v, %v, want no conflict", m, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "x")); err != nil || string(got) != "0\n1\n2\n3, as we want it\n" {
		t.Errorf("x = %q, %v, want the changes of both sides", got, err)
	}
}

// Without a proof the history stays as it is.
func TestNothingIsRecalled(t *testing.T) {
	t.Parallel()
	const later = `{"form": 3, "template": "def"}`
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"not upgraded yet": func(t *testing.T, dir string) { t.Helper() },
		"merged":           func(t *testing.T, dir string) { t.Helper(); git(t, dir, "merge", "--quiet", "template") },
		"another version": func(t *testing.T, dir string) {
			t.Helper()
			commitOn(t, dir, "main", map[string]string{"template.json": `{"form": 3, "template": "ghi"}`})
		},
		"taken back": func(t *testing.T, dir string) {
			t.Helper()
			git(t, dir, "merge", "--quiet", "--no-ff", "template")
			git(t, dir, "revert", "--no-edit", "--mainline", "1", "HEAD")
		},
		"no record": func(t *testing.T, dir string) {
			t.Helper()
			commitOn(t, dir, "main", map[string]string{"template.json": ""})
		},
		"a broken record": func(t *testing.T, dir string) {
			t.Helper()
			commitOn(t, dir, "main", map[string]string{"template.json": "{"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newService(t)
			commitOn(t, dir, "template", map[string]string{"template.json": later})
			prepare(t, dir)
			s, err := openService(t.Context(), dir)
			must(t, err)
			if err := s.recall(t.Context()); err != nil || s.head != s.start {
				t.Errorf("recall() = %v, and the head became %s, want %s", err, s.head, s.start)
			}
		})
	}
}

// An upgrade leaves git's records of other worktrees, such as one on a disk that is absent.
func TestOtherWorktreesAreLeft(t *testing.T) {
	t.Parallel()
	dir := newService(t)
	absent := filepath.Join(t.TempDir(), "absent")
	git(t, dir, "worktree", "add", "--quiet", "--detach", absent)
	must(t, os.Rename(absent, absent+"-for-now"))
	before, err := output(t.Context(), dir, "git", "worktree", "list")
	must(t, err)
	s := &service{root: dir, work: t.TempDir()}
	for _, commit := range []string{"main", "no-such-commit"} {
		err := s.inWorktree(t.Context(), commit, func(tree string) error {
			writeFile(t, tree, "new", "not committed")
			return nil
		})
		if (err == nil) != (commit == "main") {
			t.Errorf("inWorktree(%s) = %v", commit, err)
		}
		if after, err := output(t.Context(), dir, "git", "worktree", "list"); err != nil || after != before {
			t.Errorf("worktrees after that of %s:\n%s, %v, want\n%s", commit, after, err, before)
		}
	}
	if left, err := os.ReadDir(s.work); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A rendering keeps the descriptions of a service's entities, their migrations, and the samples
// of their events. The new version renders the descriptions again.
func TestKeep(t *testing.T) {
	t.Parallel()
	const book, text = "internal/entities/book.yaml", "name: book\ntenant: 1002\ntenant_indexes:\n  - column: x\n    migration: 1003\nmigration: 1000\nrendered: x\n"
	dir := newService(t)
	commitOn(t, dir, "main", map[string]string{
		book: text, "internal/entities/sub/no.yaml": "x",
		"db/migrations/00001_roles.sql": "old", "db/migrations/01000_book.sql": "as it ran\n", "db/migrations/01001_own.sql": "own",
		"db/migrations/01002_book_tenant_id.sql": "a tenant\n", "db/migrations/01003_books_tenant.sql": "an index\n",
		"internal/event/testdata/book/01000/BookCreated.binpb": "bytes",
	})
	s, err := openService(t.Context(), dir)
	must(t, err)
	s.work = t.TempDir()
	err = s.inWorktree(t.Context(), s.base, func(tree string) error {
		writeFile(t, tree, "go.mod", "module github.com/acme/orders\n")
		writeFile(t, tree, "db/migrations/00001_roles.sql", "new")
		// A fake of cmd/entity. The real command renders all descriptions of its folder.
		writeFile(t, tree, "cmd/entity/main.go", `package main

import (
	"os"
	"path/filepath"
)

func main() {
	found, _ := filepath.Glob("internal/entities/*.yaml")
	if len(os.Args) == 3 && os.Args[1] == "render" && os.Args[2] == "--overwrite" && len(found) == 1 {
		os.WriteFile("rendered", []byte(found[0]), 0o600)
	}
}
`)
		if found, err := s.keep(t.Context(), tree); !found || err != nil {
			t.Errorf("keep() = %v, %v, want entities", found, err)
		}
		for name, want := range map[string]string{
			"rendered": book, book: text, "db/migrations/00001_roles.sql": "new", "db/migrations/01000_book.sql": "as it ran\n",
			"db/migrations/01002_book_tenant_id.sql": "a tenant\n", "db/migrations/01003_books_tenant.sql": "an index\n",
			"internal/event/testdata/book/01000/BookCreated.binpb": "bytes",
		} {
			if got, err := os.ReadFile(filepath.Join(tree, name)); err != nil || string(got) != want {
				t.Errorf("%s = %q, %v, want %q", name, got, err, want)
			}
		}
		if _, err := os.Stat(filepath.Join(tree, "db/migrations/01001_own.sql")); err == nil {
			t.Error("a migration of no entity is on the branch template")
		}
		return nil
	}, "--no-checkout")
	must(t, err)
	if left, err := os.ReadDir(s.work); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A merge leaves the migrations of a service as they are, although the branch named
// template deletes them.
func TestMergeKeepsOwnMigrations(t *testing.T) {
	t.Parallel()
	dir := newService(t)
	const edited, removed = "db/migrations/01000_book.sql", "db/migrations/01001_shelf.sql"
	commitOn(t, dir, "template", map[string]string{edited: "as it was made\n", removed: "as it was made\n", "x": "old"})
	git(t, dir, "merge", "--quiet", "template")
	commitOn(t, dir, "main", map[string]string{edited: "as the owner wants it\n"})
	commitOn(t, dir, "template", map[string]string{edited: "", removed: "", "x": "new"})
	m, err := mergeInto(t.Context(), dir, "template")
	if err != nil || len(m.open) > 0 {
		t.Fatalf("mergeInto() = %+v, %v, want no conflict", m, err)
	}
	for name, want := range map[string]string{edited: "as the owner wants it\n", removed: "as it was made\n", "x": "new"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
}

// An upgrade does not move a branch that has changed meanwhile.
func TestChangedBranchIsLeft(t *testing.T) {
	t.Parallel()
	dir := newService(t)
	commitOn(t, dir, "template", map[string]string{"x": "new"})
	s, err := openService(t.Context(), dir)
	must(t, err)
	commitOn(t, dir, "main", map[string]string{"y": "meanwhile"})
	before, err := output(t.Context(), dir, "git", "for-each-ref")
	must(t, err)
	s.work = t.TempDir()
	if err := s.merge(t.Context(), s.base, io.Discard); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("merge() = %v, want it to say that the branch has changed", err)
	}
	if after, err := output(t.Context(), dir, "git", "for-each-ref"); err != nil || after != before {
		t.Errorf("branches = %s, %v, want %s", after, err, before)
	}
}

// Variables of git that name a repository do not lead a command away from its folder.
func TestVariablesOfGitAreIgnored(t *testing.T) {
	dir := newService(t)
	for _, name := range []string{"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "elsewhere"))
	}
	if got, err := output(t.Context(), dir, "git", "status", "--porcelain"); err != nil || got != "" {
		t.Errorf("git status = %q, %v, want that of %s, which is clean", got, err, dir)
	}
}

// An upgrade is refused if databases that have run the old migrations could not run the new ones.
func TestMigrations(t *testing.T) {
	t.Parallel()
	const sql = "-- +goose Up\nCREATE TABLE a (x int);\n"
	for name, test := range map[string]struct {
		template map[string]string
		want     []string // parts of the error
	}{
		"a new one":               {map[string]string{"db/migrations/00003_c.sql": sql}, nil},
		"the same as the service": {map[string]string{"db/migrations/00002_own.sql": "-- From the template.\n" + sql}, nil},
		"another comment":         {map[string]string{"db/migrations/00001_a.sql": "-- +goose Up\n-- A table.\nCREATE  TABLE a (x int); -- of a\n"}, nil},
		"another column":          {map[string]string{"db/migrations/00001_a.sql": "-- +goose Up\nCREATE TABLE a (y int);\n"}, []string{"changed the migration db/migrations/00001_a.sql"}},
		"removed":                 {map[string]string{"db/migrations/00001_a.sql": ""}, []string{"removed the migration db/migrations/00001_a.sql"}},
		"renamed":                 {map[string]string{"db/migrations/00001_a.sql": "", "db/migrations/00001_b.sql": sql}, []string{"removed the migration db/migrations/00001_a.sql", "00001_b.sql, and the service has its number in db/migrations/00001_a.sql"}},
		"a number of the service": {map[string]string{"db/migrations/00002_b.sql": sql}, []string{"00002_b.sql, and the service has its number in db/migrations/00002_own.sql", "from 01000 on", "orders_db_migrations"}},
		"one of an option":        {map[string]string{"options/o/migrations/00100_o.sql": ""}, []string{"removed the migration options/o/migrations/00100_o.sql"}},
		"one of an option gone":   {map[string]string{"options/gone/migrations/00200_g.sql": ""}, nil},
		"a name of the service":   {map[string]string{"db/migrations/00002_own.sql": "-- +goose Up\nSELECT 2;\n"}, []string{"the service has its number in db/migrations/00002_own.sql"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newService(t)
			commitOn(t, dir, "template", map[string]string{"db/migrations/00001_a.sql": sql, "options/o/migrations/00100_o.sql": sql, "options/gone/migrations/00200_g.sql": sql})
			git(t, dir, "merge", "--quiet", "template")
			commitOn(t, dir, "main", map[string]string{"db/migrations/00002_own.sql": sql})
			s, err := openService(t.Context(), dir)
			must(t, err)
			s.With = []string{"o"}
			git(t, dir, "branch", "next", "template")
			commitOn(t, dir, "next", test.template)
			err = s.checkMigrations(t.Context(), "next")
			if (err == nil) != (test.want == nil) {
				t.Errorf("checkMigrations() = %v, want %q", err, test.want)
			}
			for _, want := range test.want {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("checkMigrations() = %v, want %q", err, want)
				}
			}
		})
	}
}

// essence leaves out comments and the length of empty space, but not in texts and bodies of
// functions. It keeps the comments that goose reads.
func TestEssence(t *testing.T) {
	t.Parallel()
	for _, same := range [][2]string{
		{"-- +goose Up\nSELECT 1;", "-- +goose Up\n-- One.\n\nSELECT  1; -- one\n"},
		{"SELECT 1, 2;", "SELECT 1, /* it's\ntwo */ 2;"},
		{"SELECT 'a';", "-- it's\nSELECT\t'a';"},
	} {
		if essence(same[0]) != essence(same[1]) {
			t.Errorf("%q and %q differ: %q, %q", same[0], same[1], essence(same[0]), essence(same[1]))
		}
	}
	for _, other := range [][2]string{
		{"-- +goose Up\nSELECT 1;", "-- +goose Up\n-- +goose StatementBegin\nSELECT 1;"},
		{"SELECT 'a -- b';", "SELECT 'a -- c';"},
		{"SELECT 'a  b';", "SELECT 'a b';"},
		{`SELECT E'it\'s -- b';`, `SELECT E'it\'s -- c';`},
		{`SELECT "a  b";`, `SELECT "a b";`},
		{"DO $$ -- one\nSELECT 1 $$;", "DO $$ -- two\nSELECT 1 $$;"},
		{"DO $x$ a  b $x$;", "DO $x$ a b $x$;"},
		{"SELECT 12;", "SELECT 1 2;"},
	} {
		if essence(other[0]) == essence(other[1]) {
			t.Errorf("%q and %q are the same: %q", other[0], other[1], essence(other[0]))
		}
	}
}

// A merge leaves conflicts in sources only. It resolves conflicts of generated files, the
// released contract and template.json.
func TestMergeInto(t *testing.T) {
	t.Parallel()
	dir := newService(t)
	const generated = "<!-- Code generated by go test ./x -update. DO NOT EDIT. -->\n"
	const marked = "// Code generated by a/tool; DO NOT EDIT.\n"
	files := func(text string) map[string]string {
		return map[string]string{
			"api/a/a.pb.go": text, "api/openapi.json": text, "deploy/names.sh": text, "deploy/observe/dashboard.json": text,
			"internal/store/internal/sqlcgen/a.sql.go": text, "api/baseline.binpb": text,
			"docs/metrics.md": generated + text + "\n", "a_string.go": marked + text, "half.go": text, "old.go": text,
			"options/o/o.go": text, "source.go": text, "docs/about.md": strings.Repeat("x\n", 20) + generated + text,
			"template.json": `{"form": 3, "template": "` + text + `"}`,
		}
	}
	commitOn(t, dir, "template", files("base"))
	git(t, dir, "merge", "--quiet", "template")
	ours, theirs := files("ours"), files("theirs")
	ours["api/a/removed.pb.go"], theirs["half.go"] = "ours", marked+"theirs"
	ours["options/o/o.go"], theirs["options/o/o.go"] = "ours", ""
	ours["old.go"], theirs["old.go"] = "", "theirs"
	ours["deploy/names.sh"] = ""
	commitOn(t, dir, "main", ours)
	commitOn(t, dir, "template", theirs)

	m, err := mergeInto(t.Context(), dir, "template")
	must(t, err)
	if want := []string{
		"docs/about.md", "half.go", "old.go, which you removed: git rm old.go, or keep it",
		"options/o/o.go, which the template removed: git rm options/o/o.go, or keep it", "source.go",
	}; !slices.Equal(m.open, want) {
		t.Errorf("conflicts = %q, want %q", m.open, want)
	}
	if len(m.generated) != 7 {
		t.Errorf("generated files with conflicts: %q, want 7", m.generated)
	}
	if want := [][]string{{"make", "generate"}, {"go", "test", "./x", "-update"}, {"make", "generate"}}; !slices.EqualFunc(m.generators(), want, slices.Equal) {
		t.Errorf("generators = %q, want %q", m.generators(), want)
	}
	for name, want := range map[string]string{
		"api/a/a.pb.go": "ours", "api/a/removed.pb.go": "ours", "api/baseline.binpb": "ours",
		"a_string.go": marked + "ours", "docs/metrics.md": generated + "ours\ntheirs\n", "template.json": `{"form": 3, "template": "theirs"}`,
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "deploy", "names.sh")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a generated file that the service removed: %v, want none until it is generated", err)
	}
}

// Without make nothing can be generated after a merge.
func TestMakeIsMissing(t *testing.T) {
	path, err := exec.LookPath("git")
	must(t, err)
	bin := t.TempDir()
	must(t, os.Symlink(path, filepath.Join(bin, "git")))
	dir := newService(t)
	t.Setenv("PATH", bin)
	if _, err := openService(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "make is not installed") {
		t.Errorf("openService() without make = %v", err)
	}
}

// The source of the template is its remote, without a password, or else its path.
func TestSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "--quiet")
	if got := source(t.Context(), dir); got != dir {
		t.Errorf("source() without a remote = %q, want %q", got, dir)
	}
	git(t, dir, "remote", "add", "origin", "x")
	for url, want := range map[string]string{
		"https://github.com/acme/template.git":                "https://github.com/acme/template.git",
		"https://somebody:" + "word@github.com/acme/template": "https://github.com/acme/template",
		"git@github.com:acme/template.git":                    "git@github.com:acme/template.git",
		"ssh://git@github.com/acme/template":                  "ssh://git@github.com/acme/template",
		dir + "/.":                                            dir,
		"../" + filepath.Base(dir):                            dir,
	} {
		git(t, dir, "remote", "set-url", "origin", url)
		if got := source(t.Context(), dir); got != want {
			t.Errorf("source() of %s = %q, want %q", url, got, want)
		}
	}
}

// An upgrade adds parts and removes others. To remove a part that the service does not have is an error.
func TestPartsChange(t *testing.T) {
	s := service{record: record{options: options{Service: "orders", With: []string{"console", "cors"}}}}
	from := template{root: "../.."}
	err := s.change(from, []string{"repair"}, []string{"console"})
	if err != nil || !slices.Equal(s.With, []string{"cors", "repair"}) || s.changed != ", without console, with repair" {
		t.Errorf("change() = %v, and the parts are %q%s, want cors and repair", err, s.With, s.changed)
	}
	if err := s.change(from, nil, []string{"console"}); err == nil || !strings.Contains(err.Error(), "--without console: orders was not made with --with console") {
		t.Errorf("change() = %v, want the part that is not there refused", err)
	}
}
