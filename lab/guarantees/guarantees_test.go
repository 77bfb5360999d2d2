// Package guarantees checks lab/ledger.md: every row names a test that
// exists, and every name of a fault, a test or a make target is valid.
package guarantees

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/videocatalog/lab/internal/chaos"
)

// root is the root directory of the repository.
const root = "../.."

// proofs are the names that a row of lab/ledger.md may use.
type proofs struct {
	tests   map[string]bool // for example store.TestX: the directory without lab/ and internal/, and the function
	targets map[string]bool // targets of the Makefile
	faults  map[string]bool // kinds of the fault lab
}

// Every row of the guarantees names a test, and all names in it are valid.
func TestGuaranteesNameTheirTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "lab", "ledger.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, mistakes := checkGuarantees(string(page), findProofs(t))
	for _, mistake := range mistakes {
		t.Errorf("lab/ledger.md: %s", mistake)
	}
	if rows["What is promised"] < 20 || rows["What is not promised"] < 5 {
		t.Errorf("rows of lab/ledger.md by section = %v, want at least 20 that are promised and 5 that are not", rows)
	}
}

// The check finds the mistakes of a row.
func TestGuaranteesCheckFindsMistakes(t *testing.T) {
	known := proofs{
		tests: map[string]bool{"store.TestA": true, "store.BenchmarkA": true}, targets: map[string]bool{"breaking": true},
		faults: map[string]bool{"kill publisher": true, "kill publisher at outbox/claimed": true},
	}
	for _, test := range []struct {
		name, row string
		want      []string
	}{
		{"a test", "| a | b | `store.TestA` | 1 |", nil},
		{"a test and more", "| a `x` | b | `store.TestA/sub`, `make breaking`, `store.BenchmarkA` | `y` |", nil},
		{"only a fault", "| a | b | `chaos: kill publisher` | 1 |", []string{"line 5: names no test"}},
		{"a test and a fault", "| a | b | `store.TestA`, `chaos: kill publisher` | 1 |", nil},
		{"a fault at a point", "| a | b | `store.TestA`, `chaos: kill publisher at outbox/claimed` | 1 |", nil},
		{"no test", "| a | b | see below | 1 |", []string{"line 5: names no test"}},
		{"no cell", "| a | b | `store.TestA` |", []string{"line 5: has 3 cells, want 4"}},
		{"an empty cell", "| a |  | `store.TestA` | 1 |", []string{"line 5: cell 2 is empty"}},
		{"only a target", "| a | b | `make breaking` | 1 |", []string{"line 5: names no test"}},
		{"only a benchmark", "| a | b | `store.BenchmarkA` | 1 |", []string{"line 5: names no test"}},
		{"unknown test", "| a | b | `store.TestA`, `store.TestB` | 1 |", []string{"line 5: there is no test store.TestB"}},
		{"test of another package", "| a | b | `outbox.TestA` | 1 |", []string{"line 5: there is no test outbox.TestA"}},
		{"test without package", "| a | b | `TestA` | 1 |", []string{"line 5: there is no test TestA"}},
		{"unknown target", "| a | b | `store.TestA`, `make cake` | 1 |", []string{"line 5: the Makefile has no target cake"}},
		{"unknown fault", "| a | b | `store.TestA`, `chaos: rain` | 1 |", []string{"line 5: the fault lab has no fault rain"}},
		{"the beginning of a fault", "| a | b | `store.TestA`, `chaos: kill` | 1 |", []string{"line 5: the fault lab has no fault kill"}},
		{"unknown point", "| a | b | `store.TestA`, `chaos: kill publisher at noon` | 1 |", []string{"line 5: the fault lab has no fault kill publisher at noon"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rows, got := checkGuarantees("## Section\n\n| promise | fault | shown by | last figures |\n| --- | --- | --- | --- |\n"+test.row+"\n", known)
			if !slices.Equal(got, test.want) || rows["Section"] != 1 {
				t.Errorf("mistakes = %q in %d rows, want %q in 1", got, rows["Section"], test.want)
			}
		})
	}
	if _, got := checkGuarantees("| a | b | c | d |\n", known); len(got) != 1 {
		t.Errorf("mistakes of a table without a head = %q, want one", got)
	}
}

var codeSpan = regexp.MustCompile("`([^`]*)`")

// checkGuarantees returns the number of rows in the tables of each section, and
// the mistakes.
func checkGuarantees(page string, known proofs) (rows map[string]int, mistakes []string) {
	rows = make(map[string]int)
	section, inTable := "", 0
	for i, line := range strings.Split(page, "\n") {
		complain := func(format string, args ...any) {
			mistakes = append(mistakes, fmt.Sprintf("line %d: ", i+1)+fmt.Sprintf(format, args...))
		}
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
		}
		if !strings.HasPrefix(line, "|") {
			inTable = 0
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), "|")
		inTable++
		switch {
		case inTable == 1 && (len(cells) != 4 || strings.TrimSpace(cells[2]) != "shown by"):
			complain("is the head of a table, want 4 columns, of which the third is %q", "shown by")
			continue
		case inTable <= 2: // the header and the line below it
			continue
		}
		rows[section]++
		if len(cells) != 4 {
			complain("has %d cells, want 4", len(cells))
			continue
		}
		for n, cell := range cells {
			if strings.TrimSpace(cell) == "" {
				complain("cell %d is empty", n+1)
			}
		}
		shown := false
		for _, span := range codeSpan.FindAllStringSubmatch(cells[2], -1) {
			isProof, mistake := known.look(span[1])
			shown = shown || isProof
			if mistake != "" {
				complain("%s", mistake)
			}
		}
		if !shown {
			complain("names no test")
		}
	}
	return rows, mistakes
}

// look reports whether a name is a proof, which is any test but a benchmark. It also
// returns the mistake in the name, if there is one.
func (p proofs) look(name string) (isProof bool, mistake string) {
	if target, ok := strings.CutPrefix(name, "make "); ok {
		if !p.targets[target] {
			return false, "the Makefile has no target " + target
		}
		return false, ""
	}
	if fault, ok := strings.CutPrefix(name, "chaos: "); ok {
		if !p.faults[fault] {
			return false, "the fault lab has no fault " + fault
		}
		return false, ""
	}
	test := subtest.ReplaceAllString(name, "$1")
	if !p.tests[test] {
		return true, "there is no test " + test
	}
	return !strings.Contains(test, ".Benchmark"), ""
}

var (
	subtest    = regexp.MustCompile(`^(.*\.\w+)/.*$`)
	testName   = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[^a-z]`)
	makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

// findProofs returns the names of all tests, make targets and faults.
func findProofs(t *testing.T) proofs {
	t.Helper()
	known := proofs{tests: findTests(t), targets: make(map[string]bool), faults: make(map[string]bool)}
	for _, kind := range slices.Concat(chaos.Kinds(chaos.BrokerPubSub), chaos.Kinds(chaos.BrokerKafka)) {
		known.faults[kind] = true
	}
	for _, name := range []string{"Makefile", "lab/lab.mk"} {
		makefile, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
			known.targets[match[1]] = true
		}
	}
	if len(known.tests) == 0 || len(known.targets) == 0 {
		t.Fatalf("found %d tests and the targets %q, want some", len(known.tests), slices.Collect(maps.Keys(known.targets)))
	}
	return known
}

// findTests returns the test functions of all modules.
func findTests(t *testing.T) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder := strings.TrimPrefix(strings.TrimPrefix(path.Dir(name), "lab/"), "internal/")
		for _, decl := range tree.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
				found[folder+"."+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
