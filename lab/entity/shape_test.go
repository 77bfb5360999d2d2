package entity

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/lab/internal/clone"
)

// shape are the files of the example that cmd/entity renders from its description. Other files of
// the example are its own.
var shape = []string{
	"internal/domain/video.go", "internal/event/video.go", "internal/store/videos.go", "db/queries/videos.sql",
	"internal/server/videos.go", "cmd/server/videos.go",
}

const differences = "testdata/differences.txt"

// mostDifferences limits the lines of differences.txt. Only lower it.
const mostDifferences = 28

// The example is what cmd/entity renders from testdata/video.txt. Each declaration and query that
// differs matches a line with its reason.
func TestExampleHasTheShapeOfAnEntity(t *testing.T) {
	t.Parallel()
	reasons, used := readDifferences(t), make(map[string]bool)
	dir := renderExample(t)
	for _, file := range shape {
		rendered := strings.NewReplacer("voyage", "video", "Voyage", "Video", "VOYAGE", "VIDEO").
			Replace(content(t, filepath.Join(dir, strings.ReplaceAll(file, "video", "voyage"))))
		want, got := partsOf(t, file, rendered), partsOf(t, file, content(t, filepath.Join(root, file)))
		names := slices.Concat(slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got)))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			diff := cmp.Diff(want[name], got[name])
			if diff == "" {
				continue
			}
			reason := slices.IndexFunc(reasons, func(pattern string) bool {
				match, err := path.Match(pattern, file+" "+name)
				return match && err == nil
			})
			if reason < 0 {
				t.Errorf("%s %s differs from what cmd/entity renders (-rendered +example):\n%s", file, name, diff)
				continue
			}
			used[reasons[reason]] = true
		}
	}
	for _, pattern := range reasons {
		if !used[pattern] {
			t.Errorf("%s: nothing that is like %s differs: remove the line", differences, pattern)
		}
	}
}

// readDifferences returns the patterns of differences.txt, each a file and a name.
func readDifferences(t *testing.T) (patterns []string) {
	t.Helper()
	for line := range strings.Lines(content(t, differences)) {
		pattern, reason, _ := strings.Cut(strings.TrimSpace(line), " | ")
		if len(reason) < 10 {
			t.Errorf("%s: %q has no reason", differences, pattern)
		}
		patterns = append(patterns, pattern)
	}
	if len(patterns) > mostDifferences {
		t.Errorf("%s has %d lines, want at most %d: change the templates and the example together", differences, len(patterns), mostDifferences)
	}
	return patterns
}

// renderExample renders the description of the example in a copy of this repository, under a name with its first letter
// that is free there, and returns the folder.
func renderExample(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clone")
	clone.Tree(t, root, dir, "lab")
	args := []string{"run", "./cmd/entity", "add", "voyage"}
	for line := range strings.Lines(content(t, "testdata/video.txt")) {
		flag, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if args = append(args, flag); value != "" {
			args = append(args, value)
		}
	}
	clone.Run(t, dir, "go", args...)
	return dir
}

// partsOf returns the declarations of a Go file, or the queries of an SQL file, by their names.
func partsOf(t *testing.T, file, text string) map[string]string {
	t.Helper()
	if filepath.Ext(file) == ".go" {
		return goParts(t, text)
	}
	parts := make(map[string]string)
	names := sqlQuery.FindAllStringSubmatchIndex(text, -1)
	for i, at := range names {
		end := len(text)
		if i+1 < len(names) {
			end = names[i+1][0]
		}
		parts[text[at[2]:at[3]]] = strings.TrimSpace(sqlComment.ReplaceAllString(text[at[1]:end], ""))
	}
	return parts
}

var (
	sqlComment = regexp.MustCompile(`(?m)^\s*--.*$`)
	sqlQuery   = regexp.MustCompile(`(?m)^-- name: (\w+) :\w+$`)
)

// goParts returns the functions, methods, types, constants and variables of a file by their names, without comments.
func goParts(t *testing.T, text string) map[string]string {
	t.Helper()
	parts := make(map[string]string)
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, "", text, parser.SkipObjectResolution)
	must(t, err)
	source := func(node any) string {
		var out bytes.Buffer
		must(t, printer.Fprint(&out, files, node))
		return out.String()
	}
	for _, decl := range tree.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			name := f.Name.Name
			if f.Recv != nil {
				name = strings.TrimPrefix(source(f.Recv.List[0].Type), "*") + "." + name
			}
			parts[name] = source(f)
			continue
		}
		for _, spec := range decl.(*ast.GenDecl).Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				parts[spec.Name.Name] = source(spec)
			case *ast.ValueSpec:
				parts[spec.Names[0].Name] = source(spec)
			}
		}
	}
	return parts
}
