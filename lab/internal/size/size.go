// Package size counts what a repository has, by the kind of its files, and compares the counts with a budget.
package size

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// The kinds of files. Hand is Go without generated files and without tests. Files is a number of files, Docs is Markdown in
// words, all other kinds are in lines. Web is HTML, CSS and JavaScript.
const (
	Files     = "files"
	Hand      = "hand"
	Generated = "generated"
	Tests     = "tests"
	SQL       = "sql"
	Web       = "web"
	Docs      = "docs"
	Other     = "other"
)

var kinds = []string{Files, Hand, Generated, Tests, SQL, Web, Docs, Other}

// Counts has a number for each kind.
type Counts map[string]int

// Tree is the size of a repository.
type Tree struct {
	Total   Counts
	Folders map[string]Counts // by path, two names deep
	Kit     Counts            // the copied kit, which no other count has
}

// kit is the folder of the copied kit in a service. Its owner imports the kit, and does not read it.
const kit = "third_party/kit/"

// Of counts the files that git has or would add, in a folder of a working tree.
func Of(ctx context.Context, dir string) (Tree, error) {
	t := Tree{Counts{}, make(map[string]Counts), Counts{}}
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = dir
	names, err := list.Output()
	if err != nil {
		return t, fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(dir, name)) //nolint:gosec // a file that git lists
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		if err != nil {
			return t, err
		}
		if strings.HasPrefix(name, kit) {
			t.Kit.add(name, content)
			continue
		}
		t.Total.add(name, content)
		folder := folderOf(name)
		if t.Folders[folder] == nil {
			t.Folders[folder] = Counts{}
		}
		t.Folders[folder].add(name, content)
	}
	return t, nil
}

// folderOf returns the first two folders of a path.
func folderOf(name string) string {
	parts := strings.Split(path.Dir(name), "/")
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// generated matches the line by which Go knows a generated file (https://go.dev/s/generatedcode).
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func (c Counts) add(name string, content []byte) {
	c[Files]++
	kind, n := Other, bytes.Count(content, []byte("\n"))
	switch path.Ext(name) {
	case ".go":
		switch {
		case generated.Match(content):
			kind = Generated
		case strings.HasSuffix(name, "_test.go"):
			kind = Tests
		default:
			kind = Hand
		}
	case ".sql":
		kind = SQL
	case ".html", ".css", ".js":
		kind = Web
	case ".md":
		kind, n = Docs, len(bytes.Fields(content))
	}
	c[kind] += n
}

// Print writes a table with a row per folder.
func (t Tree) Print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, c Counts) {
		for _, kind := range kinds {
			fmt.Fprintf(table, "%d\t", c[kind])
		}
		fmt.Fprintf(table, " %s\n", name)
	}
	fmt.Fprintf(table, "%s\t\n", strings.Join(kinds, "\t"))
	for _, folder := range slices.Sorted(maps.Keys(t.Folders)) {
		row(folder, t.Folders[folder])
	}
	if t.Kit[Files] > 0 {
		row(kit+" (not in the total)", t.Kit)
	}
	row("total", t.Total)
	return table.Flush()
}

// budget has the ceilings. They only fall.
//
//go:embed budget.txt
var budget string

// Over returns the kinds above the budget of a tree: clone, kit or repository.
func (t Tree) Over(name string) ([]string, error) {
	var over []string
	lines := bufio.NewScanner(strings.NewReader(budget))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") || lines.Text() == "" {
			continue
		}
		var tree, kind string
		var ceiling int
		if _, err := fmt.Sscan(lines.Text(), &tree, &kind, &ceiling); err != nil || !slices.Contains(kinds, kind) {
			return nil, fmt.Errorf("budget.txt: %q, want a tree, a kind and a number: %w", lines.Text(), err)
		}
		if tree == name && t.Total[kind] > ceiling {
			over = append(over, fmt.Sprintf("%s: %s is %d, the budget is %d", name, kind, t.Total[kind], ceiling))
		}
	}
	return over, nil
}
