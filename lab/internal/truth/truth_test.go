package truth

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A name that does not exist is found, in pages and in comments. Names that exist, words of a sentence and
// names of PostgreSQL are not.
func TestLies(t *testing.T) {
	t.Parallel()
	const help = "Commands:\n  server status     what is pending\n"
	files := map[string]string{
		"Makefile":                    "check: lint\n",
		"internal/app/app.go":         "package app\n\n// Run runs.\nfunc Run() { consume(\"order-views\", \"outbox.backlog\") }\n",
		"internal/domain/order.go":    "package domain\n\n// machineryFiles in internal/app/app.go, or server pools.\nfunc Decide() {}\n",
		"db/migrations/00002_out.sql": "-- See docs/gone.md.\nCREATE TABLE orders.outbox (id uuid);\n",
		"docs/true.md": "`server status`, `make check`, `outbox.backlog`, `order-views`, `Run`, [x](lies.md), [x](../docs), `orders.outbox`, `internal/domain`,\n" +
			"`internal/app/app.go`, `db/migrations/*`, `pg_rewind`, `ORDER`; make slim things; a server rebuilds.\n" +
			"[x](#how-to-run-it-in-docs), [x](https://example.com/a.md#b).\n## How to run `it`, in docs\n",
		"docs/lies.md": "`server rebuild`\n`overview`\n`outbox_erase`\n`make slim` and `lab/prove`\nA[domain<br/>fold(entry)]\n`outbox.lost`\ngo run ./cmd/gone\n[x](gone.md), [x](true.md#to-run), [x](#how)\n",
	}
	want := []string{
		`db/migrations/00002_out.sql:1: there is no file "docs/gone.md"`,
		`docs/lies.md:1: there is no command of the server "rebuild"`,
		`docs/lies.md:2: there is no name "overview"`,
		`docs/lies.md:3: there is no name "outbox_erase"`,
		`docs/lies.md:4: there is no file "lab/prove"`,
		`docs/lies.md:4: there is no target of make "slim"`,
		`docs/lies.md:5: there is no function "fold"`,
		`docs/lies.md:6: there is no metric or field "outbox.lost"`,
		`docs/lies.md:7: there is no package that go runs "cmd/gone"`,
		`docs/lies.md:8: there is no target of a link "#how"`,
		`docs/lies.md:8: there is no target of a link "gone.md"`,
		`docs/lies.md:8: there is no target of a link "true.md#to-run"`,
		`internal/domain/order.go:3: there is no "machineryFiles" in internal/app/app.go`,
	}
	if diff := cmp.Diff(want, newTree(files, help).lies()); diff != "" {
		t.Errorf("lies (-want +got):\n%s", diff)
	}
}

// The code on the first page stands in the source.
func TestFirstPage(t *testing.T) {
	t.Parallel()
	const root = "../../../"
	source, err := os.ReadFile(root + "internal/domain/video.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"README.md", "README.zh-CN.md"} {
		text, err := os.ReadFile(root + page)
		if err != nil {
			t.Fatal(err)
		}
		code := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(text)
		if code == nil || !strings.Contains(string(source), string(code[1])) {
			t.Errorf("%s has no code, or other code than internal/domain/video.go", page)
		}
	}
}
