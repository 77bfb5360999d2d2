package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A lean service has all files, without the example and the tests that need the example.
func TestIsOfExample(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, content string
		want          bool
	}{
		{"internal/store/videos.go", "", true},
		{"internal/store/catalog.go", "", true},
		{"internal/search/search.go", "", true},
		{"internal/outbox/pass_test.go", "a video", true},
		{"internal/outbox/pass_test.go", `import "example.com/videocatalog/internal/outbox" // video_catalog.outbox, pg_catalog`, false},
		{"internal/outbox/pass.go", "a video", false},
		{"internal/store/videosize.go", "", false},
		{"internal/searching/x.go", "", false},
		{"internal/transport/http_test.go", "", true},
		{"internal/outbox/pass_test.go", "", false},
	} {
		if got := isOfExample(c.name, c.content); got != c.want {
			t.Errorf("isOfExample(%s, %q) = %v, want %v", c.name, c.content, got, c.want)
		}
	}
}

// Every path of a part and of the example is there.
func TestPathsExist(t *testing.T) {
	t.Parallel()
	paths := slices.Concat(exampleFiles, provedHere)
	for _, of := range parts {
		paths = append(paths, of...)
	}
	for _, pattern := range paths {
		if found, err := filepath.Glob(filepath.Join("../..", pattern)); err != nil || len(found) == 0 {
			t.Errorf("no file is like %s: %v", pattern, err)
		}
	}
}

// The marks of all files are complete.
func TestMarks(t *testing.T) {
	t.Parallel()
	files, err := template{root: "../.."}.files(t.Context())
	if err != nil {
		t.Log("these sources are in no git repository, so no marks were checked")
		return
	}
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil || isBelow(name, notCopied) || strings.HasSuffix(name, ".binpb") {
			continue // git lists a removed file until its removal is staged
		}
		if _, err := unmark(string(content), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A line of a page that names the folder of an option can be removed: it is a row or a point.
// The text above the first heading of a README is replaced in every service.
func TestLinesOfOptions(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages: %q, %v", pages, err)
	}
	for _, page := range append(pages, "../../README.md", "../../README.zh-CN.md", "../../CONTRIBUTING.md") {
		content, err := os.ReadFile(page)
		must(t, err)
		_, text, _ := strings.Cut(string(content), "\n## ")
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			isWhole := (strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "| ")) && !strings.HasPrefix(lines[i+1], "  ")
			if regexp.MustCompile(optionsDir+"/[a-z]+/").MatchString(line) && !isWhole {
				t.Errorf("%s: the line %q is no row, and no point of one line", page, line)
			}
		}
	}
}

// A lean service has the options that it names, and a full one all of them.
func TestOptions(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"cors", "oidc", "tides"} {
		must(t, os.MkdirAll(filepath.Join(root, "options", name), 0o755))
	}
	offered, err := template{root: root}.optionNames()
	if err != nil || strings.Join(offered, " ") != "cors oidc tides" {
		t.Fatalf("optionNames() = %q, %v", offered, err)
	}
	if none, err := (template{root: filepath.Join(root, "options", "cors")}).optionNames(); len(none) > 0 || err != nil {
		t.Errorf("optionNames() without the folder = %q, %v", none, err)
	}
	const list = "import (\n\t\"example.com/videocatalog/internal/app\"\n\t\"example.com/videocatalog/options/cors\"\n\t\"example.com/videocatalog/options/oidc\"\n)\n\n\t\tcors.Option(),\n\t\toidc.Option(),\n\t}\n"
	for _, tt := range []struct {
		a          options
		left, want string
	}{
		{options{Full: true}, "", list},
		{options{With: []string{"oidc", "cors", "tides"}}, "", list},
		{options{With: []string{"oidc"}}, "cors tides", strings.NewReplacer("\t\"example.com/videocatalog/options/cors\"\n", "", "\t\tcors.Option(),\n", "").Replace(list)},
		{options{}, "cors oidc tides", "import (\n\t\"example.com/videocatalog/internal/app\"\n)\n\n\t}\n"},
	} {
		tt.a.offered = offered
		left := tt.a.withoutOptions()
		if got := withoutOptions(list, left); got != tt.want || strings.Join(left, " ") != tt.left {
			t.Errorf("with %q: without %q, the list\n%s\nwant %q and\n%s", tt.a.With, left, got, tt.left, tt.want)
		}
		if dashed := withoutOptions("\t\"example.com/videocatalog/options/of-may\"\n\t\tofmay.Option(),\n", []string{"of-may"}); dashed != "" {
			t.Errorf("without of-may, the list has %q", dashed)
		}
		programs := withoutOptions("\t\tcors(),\n\t\ttidesOfMay(),\n", left) // of cmd/dev
		if strings.Contains(programs, "cors") == strings.Contains(tt.left, "cors") || !strings.Contains(programs, "tidesOfMay(),") {
			t.Errorf("with %q: cmd/dev has %q", tt.a.With, programs)
		}
		page := withoutOptionLines("| `options/cors/` |\n- [tides](../options/tides/README.md)\n- options\n", left)
		if strings.Contains(page, "cors") == strings.Contains(tt.left, "cors") || strings.Contains(page, "tides") == strings.Contains(tt.left, "tides") || !strings.HasSuffix(page, "- options\n") {
			t.Errorf("with %q: the page is %q", tt.a.With, page)
		}
	}
	a := options{Module: "github.com/acme/orders", Entity: "order", With: []string{"oidc", "docs"}, dir: filepath.Join(root, "new"), offered: offered}
	a.setDefaults()
	if err := a.check(); err == nil || err.Error() != `--with "docs" must be one of pools, terraform, cors, oidc, tides` {
		t.Errorf("check() = %v", err)
	}
}
