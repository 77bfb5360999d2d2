// Package archtest enforces the architecture. It has only tests, which read the
// source of the whole module.
//
// They check what the compiler cannot: which package may import which, what is
// linked into the server, that the domain is pure, that an aggregate and its event
// are written in one place, and that every module has the same version of Go.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// root is the folder of the module.
const root = "../.."

// imports lists, for each of our packages, the paths at or below which it may import
// packages of ours. A package that is not in the list may import none of ours.
var imports = map[string][]string{
	"api":                  {"api"},
	"internal/problem":     {},
	"internal/domain":      {"internal/problem"},
	"internal/names":       {},
	"internal/sample":      {"internal/aip", "internal/domain", "api"},
	"internal/auth":        {},
	"internal/tenant":      {},
	"internal/envelope":    {},
	"internal/event":       {"internal/domain", "internal/envelope", "internal/problem", "api"},
	"internal/pg":          {"internal/consumer", "internal/envelope", "internal/outbox", "internal/problem", "internal/tenant", "internal/pg/internal/sqlcgen"},
	"internal/store":       {"internal/consumer", "internal/domain", "internal/envelope", "internal/event", "internal/outbox", "internal/pg", "internal/problem", "internal/search", "internal/tenant", "internal/store/internal/sqlcgen"},
	"internal/search":      {},
	"internal/aip":         {"internal/problem"},
	"internal/transport":   {"internal/aip", "internal/auth", "internal/names", "internal/problem"},
	"internal/server":      {"internal/aip", "internal/auth", "internal/domain", "internal/tenant", "internal/transport", "internal/problem", "api"},
	"internal/outbox":      {"internal/envelope", "internal/telemetry/heartbeat"},
	"internal/consumer":    {"internal/envelope", "internal/telemetry/heartbeat"},
	"internal/telemetry":   {"internal/reconnect"},
	"internal/reconnect":   {},
	"internal/operate":     {"internal/envelope", "internal/pg", "internal/problem"},
	"internal/app":         {"."},
	"cmd/server":           {"."}, // and the options, see TestOptionsStandAlone
	"cmd/dev":              {"internal/names", "internal/topics"},
	"cmd/entity":           {},
	"cmd/new":              {},
	"cmd/upgrade":          {},
	"deploy":               {"api", "deploy", "internal/names"},
	"internal/pg/pgtest":   {"db", "internal/envelope", "internal/outbox", "internal/pg/internal/sqlcgen"},
	"internal/localtopics": {"internal/names", "internal/topics"},
	"internal/topics":      {"api", "internal/names"},
}

// The paths of this module, and of the kit's module of tools.
const (
	module = "example.com/videocatalog"
	kit    = "example.com/servicekit"
)

// Each package imports only packages that the table allows.
func TestImportsFollowTheTable(t *testing.T) {
	for _, f := range source(t) {
		user := tableKey(f.dir)
		if f.test || optionOf(f.dir) != "" {
			continue
		}
		for _, used := range f.ours {
			if optionOf(used) == "" && !slices.ContainsFunc(imports[user], func(allowed string) bool { return within(used, allowed) }) {
				t.Errorf("%s imports %s, which %s may not: see the table imports", f.path, used, f.dir)
			}
		}
	}
}

// machinery are the folders of the machinery.
var machinery = []string{
	"cmd/new",
	"cmd/dev", "cmd/entity", "cmd/upgrade", "deploy", "internal/app", "internal/consumer", "internal/envelope", "internal/localtopics",
	"internal/aip", "internal/names", "internal/operate", "internal/outbox", "internal/pg", "internal/problem", "internal/reconnect", "internal/telemetry", "internal/topics", "internal/transport",
	"internal/auth", // last: the scan for secrets takes the text after it for a key
}

// owned are the packages of the owner that the machinery could be tempted to import. Their code is about
// the entities of one service.
var owned = []string{"internal/domain", "internal/event", "internal/search", "internal/server", "internal/store"}

// The machinery is the same in every service: it imports no package of the owner.
func TestMachineryImportsNothingOfTheOwner(t *testing.T) {
	for _, f := range source(t) {
		if f.test || !slices.ContainsFunc(machinery, func(dir string) bool { return within(f.dir, dir) }) {
			continue
		}
		for _, used := range f.ours {
			if slices.ContainsFunc(owned, func(dir string) bool { return within(used, dir) }) {
				t.Errorf("%s imports %s, which belongs to the owner of a service", f.path, used)
			}
		}
	}
}

// An option can be deleted: only the program, cmd/server, imports it, in the list of the options and in
// registrations that use it. internal/store may import a package of an option if that package imports
// only internal/envelope and internal packages of the option: an aggregate type with timers, for example,
// sets them in its transactions. An option may import everything except other options and commands.
func TestOptionsStandAlone(t *testing.T) {
	heavy := make(map[string]bool) // packages of options that import more than internal/envelope
	for _, f := range source(t) {
		from := optionOf(f.dir)
		for _, used := range f.ours {
			if from != "" && !f.test && used != "internal/envelope" && !within(used, "options/"+from+"/internal") {
				heavy[f.dir] = true
			}
		}
	}
	for _, f := range source(t) {
		from := optionOf(f.dir)
		for _, used := range f.ours {
			to := optionOf(used)
			switch {
			case to != "" && to != from && f.dir != "cmd/server" && (f.dir != "internal/store" || heavy[used]):
				t.Errorf("%s imports %s of the option %s: only cmd/server may, and internal/store what imports only internal/envelope", f.path, used, to)
			case from != "" && within(used, "cmd"):
				t.Errorf("%s imports %s: an option may not import a command", f.path, used)
			}
		}
	}
}

// optionOf returns the name of the option to which a package belongs, or "".
func optionOf(dir string) string {
	rest, ok := strings.CutPrefix(dir, "options/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// tableKey returns the key of a package in imports.
func tableKey(dir string) string {
	for _, whole := range []string{"api", "deploy"} {
		if within(dir, whole) {
			return whole
		}
	}
	return dir
}

// Nothing that is made for tests is linked into the server, not even by a
// library.
func TestServerLinksNothingForTests(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/server")
	cmd.Dir = root
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list what cmd/server needs: %v", err)
	}
	deps := strings.Fields(string(out))
	if main := module + "/cmd/server"; !slices.Contains(deps, main) {
		t.Fatalf("%s is not among its own %d dependencies", main, len(deps))
	}
	unwanted := []string{"testing", "net/http/httptest", "cloud.google.com/go/pubsub/v2/pstest", module + "/internal/pg/pgtest", module + "/internal/localtopics"}
	for _, dep := range deps {
		if slices.Contains(unwanted, dep) || within(dep, kit) {
			t.Errorf("cmd/server links %s: find the way with go mod why, or go list -deps -json ./cmd/server", dep)
		}
	}
}

// pure lists what the domain may import: packages whose functions return the same
// result for the same arguments, except the functions in impure.
var pure = []string{
	"bytes", "cmp", "errors", "fmt", "iter", "maps", "math", "regexp", "slices", "strconv", "strings", "time", "unicode", "unicode/utf8",
	"github.com/google/uuid", "example.com/videocatalog/internal/problem",
}

// impure are the functions of pure packages that read the clock or are random.
var impure = regexp.MustCompile(`^(time\.(Now|Since|Until|Sleep|After|AfterFunc|Tick|NewTicker|NewTimer|Local|LoadLocation)|` +
	`uuid\.(New|NewString|NewRandom|NewRandomFromReader|NewUUID|NewV6|NewV7|NewV7FromReader|NewDCE\w+))$`)

// A decision depends on its arguments only: the domain has no context, clock,
// randomness, network, database or file.
func TestDomainIsPure(t *testing.T) {
	seen := 0
	for _, f := range source(t) {
		if f.test || f.dir != "internal/domain" {
			continue
		}
		seen++
		for _, spec := range f.tree.Imports {
			if used := importPath(spec); !slices.Contains(pure, used) {
				t.Errorf("%s imports %s", f.position(spec), used)
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if name := qualified(n); impure.MatchString(name) {
				t.Errorf("%s uses %s: let the caller pass in the result", f.position(n), name)
			}
			return true
		})
	}
	if seen == 0 {
		t.Error("there is no internal/domain")
	}
}

// versioned matches the definition of a table.
var versioned = regexp.MustCompile(`(?ms)^CREATE TABLE (\w+)\.(\w+) \((.*?)^\)`)

// aggregateTables are the tables that have aggregates, as schema.table.
func aggregateTables(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, sql := range sqlFiles(t, "db/migrations") {
		for _, table := range versioned.FindAllStringSubmatch(sql, -1) {
			hasVersion := regexp.MustCompile(`(?m)^\s*version\s`).MatchString(table[3])
			if hasVersion && !strings.HasSuffix(table[1], "_read") && !strings.HasPrefix(table[2], "outbox") {
				found = append(found, table[1]+"."+table[2])
			}
		}
	}
	slices.Sort(found)
	return found
}

// writes matches SQL that changes a table.
func writes(table string) *regexp.Regexp {
	schema, name, _ := strings.Cut(table, ".")
	return regexp.MustCompile(`(?i)\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE|COPY)\s+(TABLE\s+)?(ONLY\s+)?"?` + schema + `"?\."?` + name + `"?(\W|$)`)
}

// An aggregate cannot change without its event: one function runs the queries that
// write its table, and the same function appends the event.
func TestAggregatesAreWrittenInOnePlace(t *testing.T) {
	tables := aggregateTables(t)
	if len(tables) == 0 {
		t.Fatal("there is no table of aggregates")
	}
	for _, table := range tables {
		var writers []string
		for name, sql := range queries(t) {
			if writes(table).MatchString(sql) {
				writers = append(writers, name)
			}
		}
		called := make(map[string]bool)
		for _, f := range source(t) {
			if f.test || f.generated {
				continue
			}
			for _, text := range f.strings() {
				if sql, _ := strconv.Unquote(text.Value); writes(table).MatchString(sql) {
					t.Errorf("%s writes %s: SQL belongs in db/queries", f.position(text), table)
				}
			}
			if f.dir != "internal/store" && f.dir != "internal/pg" {
				continue
			}
			for _, decl := range f.tree.Decls {
				calls := callsOf(decl)
				if slices.ContainsFunc(writers, func(w string) bool { return calls[w] }) {
					called[funcName(decl)] = calls["pg.AppendEvent"]
				}
			}
		}
		if len(writers) == 0 || len(called) != 1 {
			t.Errorf("%s is written by the queries %q in %d functions, want one function that writes it", table, writers, len(called))
		}
		for name, appends := range called {
			if !appends {
				t.Errorf("%s writes %s and does not call pg.AppendEvent", name, table)
			}
		}
	}
}

// callsOf returns the names of the functions and methods that a declaration uses, also with the name
// before them, such as pg.AppendEvent.
func callsOf(decl ast.Decl) map[string]bool {
	calls := make(map[string]bool)
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			calls[n.Sel.Name], calls[qualified(n)] = true, true
		case *ast.Ident:
			calls[n.Name] = true
		}
		return true
	})
	return calls
}

// file is a Go file of ours, for any operating system.
type file struct {
	path, dir       string // from the root
	test, generated bool
	ours            []string // the packages of ours that it imports, from the root
	tree            *ast.File
	set             *token.FileSet
}

func (f file) position(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(n.Pos()).Line)
}

// strings are the string literals of a file.
func (f file) strings() []*ast.BasicLit {
	var found []*ast.BasicLit
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
			found = append(found, text)
		}
		return true
	})
	return found
}

// source returns every Go file of the module except the files of this package. It reads
// them, and does not run the Go command, so that the test cache sees them change.
func source(t *testing.T) []file {
	t.Helper()
	files, err := readSource()
	if err != nil {
		t.Fatalf("read source: %v", err)
	}
	return files
}

var readSource = sync.OnceValues(func() ([]file, error) {
	var files []file
	set := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipFolder(name, entry.Name())
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		tree, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		f := file{path: filepath.ToSlash(rel), test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(tree), tree: tree, set: set}
		f.dir = path.Dir(f.path)
		for _, spec := range tree.Imports {
			if used, ok := strings.CutPrefix(importPath(spec), module+"/"); ok {
				f.ours = append(f.ours, used)
			}
		}
		files = append(files, f)
		return nil
	})
	return files, err
})

// skipFolder skips what the Go command skips, other modules, and this package.
func skipFolder(name, base string) error {
	if name == root {
		return nil
	}
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "archtest" {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

// queries is the text of every query of the service and of its machinery, by its name.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	all := readSQL(t, "db/queries")
	maps.Copy(all, readSQL(t, "internal/pg/queries"))
	for name, sql := range all {
		for i, query := range strings.Split("\n"+sql, "\n-- name: ") {
			if i == 0 {
				continue // what is above the first query
			}
			queryName, _, _ := strings.Cut(query, " ")
			if _, ok := found[queryName]; ok {
				t.Errorf("%s: there are two queries %s", name, queryName)
			}
			found[queryName] = withoutComments(query)
		}
	}
	return found
}

// sqlFiles is the text, without comments, of every SQL file below a folder.
func sqlFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := readSQL(t, dir)
	for name, sql := range found {
		found[name] = withoutComments(sql)
	}
	return found
}

func readSQL(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := fs.WalkDir(os.DirFS(root), dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".sql" {
			return err
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		found[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatalf("read SQL: %v", err)
	}
	if len(found) == 0 {
		t.Fatalf("there is no SQL in %s", dir)
	}
	return found
}

var sqlComment = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/`)

func withoutComments(sql string) string { return sqlComment.ReplaceAllString(sql, "") }

// within reports whether a package is at or below a path; "." is the root.
func within(pkg, dir string) bool {
	return dir == "." || pkg == dir || strings.HasPrefix(pkg, dir+"/")
}

func importPath(spec *ast.ImportSpec) string {
	name, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
	return name
}

// qualified returns the text of an expression such as time.Now, or "" for any other.
func qualified(n ast.Node) string {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return pkg.Name + "." + sel.Sel.Name
}

func funcName(decl ast.Decl) string {
	if f, ok := decl.(*ast.FuncDecl); ok {
		return f.Name.Name
	}
	return "a declaration"
}
