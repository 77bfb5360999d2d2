package scaffold

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.com/videocatalog/lab/internal/clone"
)

// A service of an earlier state of the template, which has typical changes, takes the
// present one without conflicts.
func TestUpgradeFromEarlierStates(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("testdata/states")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			t.Fatalf("line %q of testdata/states, want a commit and a patch", line)
		}
		t.Run(fields[0][:7], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			template, orders := newTemplate(t, dir), filepath.Join(dir, "orders")
			before := earlier(t, dir, template, fields[0], fields[1])
			newService(t, before, orders, "--module", "github.com/acme/orders", "--without", "chinese")
			editService(t, orders)
			commit(t, orders)
			// A topic that others subscribe to keeps its name, and our subscription to it.
			subscriptions := clone.Run(t, orders, "grep", "-o", "^SUBSCRIPTIONS=.*billing)", "deploy/names.sh")

			// The state may have been without this command, and without a record of its source.
			s := upgrading{t: t, dir: orders, program: filepath.Join(dir, "upgrade")}
			clone.Run(t, template, "go", "build", "-o", s.program, "./cmd/upgrade")
			out, err := s.run("--from", template)
			conflicts := strings.Fields(clone.Run(t, orders, "git", "diff", "--name-only", "--diff-filter=U"))
			t.Logf("%sconflicts for the owner of the service: %d %q", out, len(conflicts), conflicts)
			if err != nil || len(conflicts) > 0 {
				t.Fatalf("upgrade = %v, with conflicts in %q", err, conflicts)
			}
			contains(t, filepath.Join(orders, "deploy", "names.sh"), strings.TrimSpace(subscriptions))
			contains(t, filepath.Join(orders, "internal", "domain", "video.go"), "year of the far future")
			contains(t, filepath.Join(orders, "cmd", "upgrade", "main.go"), "Command upgrade")
			contains(t, filepath.Join(orders, "template.json"), template)
			clone.Run(t, orders, "go", "build", "./...")
			s.clean()
		})
	}
}

// earlier returns a repository with an earlier state of the template: a commit of the
// history, or the present state without a patch, which stands in for it.
func earlier(t *testing.T, dir, present, commitID, patch string) string {
	t.Helper()
	before := filepath.Join(dir, "before")
	path, err := filepath.Abs(filepath.Join("testdata", patch))
	if err != nil {
		t.Fatal(err)
	}
	clone.Run(t, dir, "git", "clone", "--quiet", present, before)
	clone.Run(t, before, "git", "apply", "--reverse", path) // fits, whether it is needed or not
	if err := exec.CommandContext(t.Context(), "git", "cat-file", "-e", commitID+"^{commit}").Run(); err != nil {
		t.Logf("this clone does not have commit %s: the present state without %s stands for it", commitID, patch)
		commit(t, before)
		return before
	}
	history, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	clone.Run(t, before, "git", "fetch", "--quiet", history, "HEAD")
	clone.Run(t, before, "git", "checkout", "--quiet", "--force", "--detach", commitID)
	return before
}
