// Package truth checks the names in the pages and comments of a service against what the service
// has: a page that names a command, a file or a metric that does not exist is a lie.
package truth

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tree is a service: the contents of its files by their paths, without the kit.
type tree struct {
	files    map[string]string
	folders  map[string]bool
	code     string          // everything but comments of Go and pages; of pages only their SQL
	words    map[string]bool // of the code, and of others
	targets  map[string]bool
	commands map[string]bool
}

// foreign has names of PostgreSQL, Google Cloud and others, which pages may use.
//
//go:embed foreign.txt
var foreign string

// Lies returns the names of things that do not exist, each with its place, in the service in dir.
// help is the output of the service's command help.
func Lies(ctx context.Context, dir, help string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	files := make(map[string]string)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(dir, name)) //nolint:gosec // a path of git
		if err != nil {
			return nil, err
		}
		files[name] = string(content)
	}
	return newTree(files, help).lies(), nil
}

var (
	sqlBlock = regexp.MustCompile("(?s)```sql\n.*?```") // users of the database are made by hand
	target   = regexp.MustCompile(`(?m)^([a-z-]+):`)
	command  = regexp.MustCompile(`(?m)^ +server ([a-z]+)`)
)

func newTree(files map[string]string, help string) tree {
	t := tree{files: files, folders: map[string]bool{".": true}, words: make(map[string]bool), targets: make(map[string]bool), commands: make(map[string]bool)}
	var code strings.Builder
	for name, content := range files {
		for folder := path.Dir(name); !t.folders[folder]; folder = path.Dir(folder) {
			t.folders[folder] = true
		}
		switch {
		case path.Ext(name) == ".md":
			for _, block := range sqlBlock.FindAllString(content, -1) {
				code.WriteString(block)
			}
		case path.Ext(name) == ".go":
			for line := range strings.Lines(content) {
				if !strings.HasPrefix(strings.TrimSpace(line), "//") {
					code.WriteString(line)
				}
			}
		default:
			code.WriteString(content)
		}
		if name == "Makefile" || path.Ext(name) == ".mk" {
			for _, found := range target.FindAllStringSubmatch(content, -1) {
				t.targets[found[1]] = true
			}
		}
	}
	for _, found := range command.FindAllStringSubmatch(help, -1) {
		t.commands[found[1]] = true
	}
	t.code = code.String()
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(t.code+foreign, -1) {
		t.words[word] = true
	}
	return t
}

// A rule finds names in a text, and reports whether the tree has them.
type rule struct {
	what  string
	match *regexp.Regexp // the first group is the name
	has   func(t tree, page, name string) bool
}

// everywhere are the rules for pages and for comments.
var everywhere = []rule{
	{"command of the server", regexp.MustCompile("`server ([a-z]+)\\b"), func(t tree, _, name string) bool { return t.commands[name] }},
	{"package that go runs", regexp.MustCompile(`go run \./([\w/]+)`), tree.hasPath},
	{"target of make", regexp.MustCompile("(?:^|`)make ([a-z]+[a-z-]*)\\b"), func(t tree, _, name string) bool { return t.targets[name] }},
	{"file", regexp.MustCompile(`(?:^|[\s(\x60])((?:api|cmd|db|deploy|docs|internal|lab|options|tools)/[\w./-]*\w)(?:[^\w*]|$)`), tree.hasPath},
}

// inPages are the rules for code in pages, which has backticks around it.
var inPages = []rule{
	{"command of the server", regexp.MustCompile(`^server ([a-z]+)\b`), everywhere[0].has},
	{"name", regexp.MustCompile("`([a-zA-Z]\\w{3,})`"), tree.hasWord},
	{"metric or field", regexp.MustCompile("`([a-zA-Z]\\w*(?:\\.\\w+)+)`"), func(t tree, page, name string) bool {
		// A field of a Config, a table or a metric: all of it, or its last part.
		return strings.Contains(t.code, name) || t.hasPath(page, name) || t.hasWord(page, name[strings.LastIndexByte(name, '.')+1:])
	}},
	{"function", regexp.MustCompile(`>(\w+)\(`), tree.hasWord},
	{"target of a link", regexp.MustCompile(`\]\(([^):\s]+)\)`), tree.hasTarget},
}

// nameIn matches a name and the file that it is said to be in.
var nameIn = regexp.MustCompile("\\b([a-z]+[A-Z]\\w+)`? (?:in|of) `?([\\w/]+\\.go)\\b")

// placeholder matches names that stand for others, such as ORDER.
var placeholder = regexp.MustCompile(`^[A-Z]+$`)

func (t tree) lies() []string {
	var lies []string
	for name, content := range t.files {
		if strings.HasPrefix(name, "third_party/") {
			continue
		}
		n := 0
		for line := range strings.Lines(content) {
			n++
			for _, lie := range t.liesOf(name, strings.TrimSpace(line)) {
				lies = append(lies, fmt.Sprintf("%s:%d: %s", name, n, lie))
			}
		}
	}
	slices.Sort(lies)
	return lies
}

func (t tree) liesOf(name, line string) (lies []string) {
	rules := everywhere
	switch path.Ext(name) {
	case ".md":
		rules = append(slices.Clone(rules), inPages...)
	case ".go", ".sql", ".yaml", ".sh", ".proto":
		comment := regexp.MustCompile(`^(//|--|#) ?(.*)`).FindStringSubmatch(line)
		if comment == nil || strings.HasPrefix(line, "//go:") {
			return nil
		}
		line = comment[2]
	default:
		return nil
	}
	for _, r := range rules {
		for _, found := range r.match.FindAllStringSubmatch(line, -1) {
			if !r.has(t, name, found[1]) {
				lies = append(lies, fmt.Sprintf("there is no %s %q", r.what, found[1]))
			}
		}
	}
	for _, found := range nameIn.FindAllStringSubmatch(line, -1) {
		if file := t.file(name, found[2]); file != "" && !strings.Contains(t.files[file], found[1]) {
			lies = append(lies, fmt.Sprintf("there is no %q in %s", found[1], found[2]))
		}
	}
	return lies
}

// file returns the path of a file that a page names from the root or from its own folder.
func (t tree) file(page, name string) string {
	for _, full := range []string{name, path.Join(path.Dir(page), name)} {
		if _, ok := t.files[full]; ok {
			return full
		}
	}
	return ""
}

func (t tree) hasPath(page, name string) bool {
	if strings.Contains(name, "NAME") || t.folders[name] || t.file(page, name) != "" || t.file(page, name+".go") != "" {
		return true
	}
	for file := range t.files {
		if ok, _ := path.Match(name, file); ok {
			return true
		}
	}
	dir, symbol, ok := strings.Cut(name, ".") // internal/store.NewOutbox
	return ok && t.folders[dir] && t.hasWord(page, symbol)
}

var (
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`) // from the anchor of a heading
)

// hasTarget reports whether a link leads from a page to a file, a folder, or a heading of a page.
func (t tree) hasTarget(page, link string) bool {
	file, anchor, _ := strings.Cut(link, "#")
	if file == "" {
		file = path.Base(page)
	}
	full := path.Join(path.Dir(page), file)
	content, ok := t.files[full]
	return anchor == "" && (ok || t.folders[full]) || slices.ContainsFunc(heading.FindAllStringSubmatch(content, -1), func(found []string) bool {
		return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-") == anchor
	})
}

func (t tree) hasWord(_, name string) bool {
	return t.words[name] || placeholder.MatchString(name)
}
