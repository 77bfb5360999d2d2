package scaffold

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/videocatalog/lab/internal/clone"
)

// effort counts what the steps of a service's life cost its owner.
type effort struct {
	t   *testing.T
	dir string
}

// step edits files by hand, runs commands in the service, and commits. It prints the time of the commands, and fails
// if more files are edited than want.
func (e effort) step(name string, want int, edits func(), commands ...string) {
	e.t.Helper()
	edits()
	changed := clone.Run(e.t, e.dir, "git", "status", "--porcelain", "--untracked-files=all")
	began := time.Now()
	for _, command := range commands {
		clone.Run(e.t, e.dir, "sh", "-c", command)
	}
	files := strings.Count(changed, "\n")
	e.t.Logf("%-24s %d files by hand, %3.0f s", name, files, time.Since(began).Seconds())
	if files > want {
		e.t.Errorf("%s takes %d files by hand, want at most %d", name, files, want)
	}
	commit(e.t, e.dir)
}

// A service and its first steps cost a command each, and few files by hand. The caches of the Go command are warm.
func TestEffort(t *testing.T) {
	dir := t.TempDir()
	template := newTemplate(t, dir)
	clone.Run(t, template, "make", "--silent", "generate-code") // builds the tools
	clone.Run(t, template, "go", "build", "./...")
	e := effort{t, filepath.Join(dir, "orders")}
	began := time.Now()
	clone.Run(t, template, "go", "run", "./cmd/new", e.dir, "--yes", "--module", "example.com/orders", "--with", "console,reactions", "--entity", "parcel",
		"--fields", "label:string! grams:int32", "--transitions", "packed→shipped:ship packed→lost:lose")
	t.Logf("%-24s 0 files by hand, %3.0f s", "new and an entity", time.Since(began).Seconds())

	domain := filepath.Join(e.dir, "internal", "domain", "parcel.go")
	e.step("a rule", 1, func() {
		edit(t, domain, "\tcase blank(d.Label):\n",
			"\tcase d.Grams > 30_000:\n\t\treturn problem.InvalidField(\"parcel.grams\", \"must be at most 30 kg\")\n\tcase blank(d.Label):\n")
	})
	e.step("an RPC", 3, func() { addWeigh(t, e.dir) }, "make --silent generate-code")
	e.step("a field later", 0, func() {},
		"go run ./cmd/entity add parcel --fields 'label:string! grams:int32 height:int32 parent_id:uuid'")
	contains(t, domain, "must be at most 30 kg")
	contains(t, domain, "func WeighParcel(")
	e.step("a second subscription", 1, func() {}, "go run ./cmd/entity react parcel parcel --on lost:parent_id:ship")
	began = time.Now()
	clone.Run(t, e.dir, "go", "run", "./cmd/upgrade", "--without", "console")
	t.Logf("%-24s 0 files by hand, %3.0f s", "removing an option", time.Since(began).Seconds())
	if _, err := os.Stat(filepath.Join(e.dir, "options", "console")); err == nil {
		t.Error("the removed option is there")
	}
	clone.Run(t, e.dir, "go", "vet", "./...")
	clone.Run(t, e.dir, "go", "test", "./internal/domain", "./internal/event", "./internal/archtest", "./cmd/server", "-run", "Parcel|Option|Import|Ring|Subscription|Samples")
}
