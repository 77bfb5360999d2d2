package entity

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "renew the hashes in testdata/reference.txt")

// references are the files that the templates of kit/entity follow.
var references = []string{
	"internal/domain/video.go", "internal/domain/event.go", "internal/domain/reason.go", "internal/domain/query.go",
	"internal/event/video.go",
	"internal/store/videos.go",
	"internal/server/videos.go", "internal/server/convert.go", "internal/server/filter.go",
	"cmd/server/videos.go",
	"db/queries/videos.sql", "db/migrations/*_videos.sql",
	"api/proto/video/v1/*.proto",
}

// part is a declaration of the reference.
type part struct{ file, name, hash string }

func (p part) key() string { return p.file + " " + p.name }

const list = "testdata/reference.txt"

// The templates follow the reference. When a declaration of it changes, somebody decides
// whether its template does too.
func TestReference(t *testing.T) {
	parts := referenceParts(t)
	recorded := make(map[string]string) // hashes, by file and name
	var lines []string
	for line := range strings.Lines(content(t, list)) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		what, decision, ok := strings.Cut(strings.TrimSpace(line), " | ")
		hash, key, _ := strings.Cut(what, " ")
		if !ok {
			t.Errorf("%s: %q has no decision behind |", list, line)
		}
		if _, twice := recorded[key]; twice {
			t.Errorf("%s lists %s twice", list, key)
		}
		recorded[key] = hash
		checkDecision(t, key, decision)
	}
	for i, line := range lines {
		what, decision, _ := strings.Cut(line, " | ")
		hash, key, _ := strings.Cut(what, " ")
		for _, p := range parts {
			if p.key() == key && p.hash != hash {
				lines[i] = p.hash + " " + key + " | " + decision
			}
		}
	}
	for _, p := range parts {
		hash, ok := recorded[p.key()]
		delete(recorded, p.key())
		switch {
		case !ok:
			t.Errorf("%s is new: follow it in kit/entity/templates, and add a line to %s:\n%s %s | the template, or none: and why", p.key(), list, p.hash, p.key())
		case hash != p.hash && !*update:
			t.Errorf("%s has changed: follow the change in kit/entity/templates, or record that there is nothing to follow, with\n\tgo test ./entity -run TestReference -update", p.key())
		}
	}
	for key := range recorded {
		t.Errorf("%s is gone: remove its line from %s, and what it stands for from the template", key, list)
	}
	if *update {
		if err := os.WriteFile(list, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// checkDecision checks that a template exists, or that there is a reason for none.
func checkDecision(t *testing.T, key, decision string) {
	t.Helper()
	if reason, none := strings.CutPrefix(decision, "none: "); none {
		if len(reason) < 10 {
			t.Errorf("%s: %s has no reason for having no template", list, key)
		}
		return
	}
	if _, err := os.Stat(filepath.Join(root, "kit", "entity", "templates", decision)); err != nil {
		t.Errorf("%s: the template of %s: %v", list, key, err)
	}
}

// referenceParts reads the declarations of the reference.
func referenceParts(t *testing.T) (parts []part) {
	t.Helper()
	for _, pattern := range references {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no file is like %s: %v", pattern, err)
		}
		for _, path := range files {
			file, _ := filepath.Rel(root, path)
			add := func(name, text string) {
				sum := sha256.Sum256([]byte(strings.Join(strings.Fields(text), " ")))
				parts = append(parts, part{file: filepath.ToSlash(file), name: name, hash: hex.EncodeToString(sum[:4])})
			}
			switch text := content(t, path); filepath.Ext(path) {
			case ".go":
				goParts(t, text, add)
			case ".sql":
				sqlParts(text, add)
			default:
				protoParts(text, add)
			}
		}
	}
	return parts
}

// goParts adds each function, method, type, constant and variable, without comments.
func goParts(t *testing.T, text string, add func(name, text string)) {
	t.Helper()
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, "", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	source := func(node any) string {
		var out bytes.Buffer
		if err := printer.Fprint(&out, files, node); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, decl := range tree.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			name := f.Name.Name
			if f.Recv != nil {
				name = strings.TrimPrefix(source(f.Recv.List[0].Type), "*") + "." + name
			}
			add(name, source(f))
			continue
		}
		for _, spec := range decl.(*ast.GenDecl).Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				add(spec.Name.Name, source(spec))
			case *ast.ValueSpec:
				add(spec.Names[0].Name, source(spec))
			}
		}
	}
}

var (
	sqlComment   = regexp.MustCompile(`(?m)^\s*--.*$`)
	sqlQuery     = regexp.MustCompile(`(?m)^-- name: (\w+) :\w+$`)
	protoBlock   = regexp.MustCompile(`(?m)^ *(message|enum|rpc|oneof) (\w+)[^{]*\{`)
	protoComment = regexp.MustCompile(`(?m)^\s*//.*$`)
)

// sqlParts adds each query by its name, or each statement by its first words.
func sqlParts(text string, add func(name, text string)) {
	if names := sqlQuery.FindAllStringSubmatchIndex(text, -1); names != nil {
		for i, at := range names {
			end := len(text)
			if i+1 < len(names) {
				end = names[i+1][0]
			}
			add(text[at[2]:at[3]], sqlComment.ReplaceAllString(text[at[1]:end], ""))
		}
		return
	}
	for statement := range strings.SplitSeq(sqlComment.ReplaceAllString(text, ""), ";\n") {
		if words := strings.Fields(statement); len(words) > 0 {
			name, _, _ := strings.Cut(strings.Join(words, " "), " (")
			name, _, _ = strings.Cut(name, " IS ")
			add(name, statement)
		}
	}
}

// protoParts adds each rpc, message, enum and oneof with what is in it. One that is inside of
// another counts by itself too.
func protoParts(text string, add func(name, text string)) {
	text = protoComment.ReplaceAllString(text, "")
	for _, at := range protoBlock.FindAllStringSubmatchIndex(text, -1) {
		kind, name := text[at[2]:at[3]], text[at[4]:at[5]]
		depth, end := 1, at[1]
		for ; depth > 0 && end < len(text); end++ {
			switch text[end] {
			case '{':
				depth++
			case '}':
				depth--
			}
		}
		add(kind+" "+name, text[at[0]:end])
	}
}
