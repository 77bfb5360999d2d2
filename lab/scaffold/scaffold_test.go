package scaffold

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/localpg"
	"example.com/videocatalog/lab/internal/clone"
)

// Two services of the template have no name of it left, pass its rules, and share one
// database.
func TestTwoServices(t *testing.T) {
	dir := t.TempDir()
	template := newTemplate(t, dir)
	orders, billing := filepath.Join(dir, "orders"), filepath.Join(dir, "billing")
	newService(t, template, orders, "--module", "github.com/acme/orders", "--without", "lab,terraform,decisions,chinese")
	newService(t, template, billing, "--module", "gitlab.example.org/group/billing-api", "--domain", "billing.acme.example", "--schema", "money")
	for _, service := range []string{orders, billing} {
		checkNames(t, service)
		checkRecord(t, service)
		clone.Run(t, service, "go", "vet", "./...")
		clone.Run(t, service, "go", "test", "./internal/archtest", "./internal/names", "./api/...", "./internal/domain", "./internal/event", "./internal/port")
		clone.Run(t, service, "go", "test", "./cmd/server", "-run", "Documented|Config|Help|Subscriptions|Defaults")
		if changes := clone.Run(t, service, "git", "status", "--porcelain"); changes != "" {
			t.Errorf("%s: the tests changed %s", service, changes)
		}
	}

	server, err := localpg.Start(t.Context(), localpg.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("DATABASE_URL", server.DSN("postgres"))
	for _, service := range []string{orders, billing} {
		clone.Run(t, service, "go", "run", "./cmd/server", "migrate")
	}
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var schemas int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname IN ('orders_db', 'orders_db_read', 'money', 'money_read')").Scan(&schemas); err != nil || schemas != 4 {
		t.Errorf("%d schemas of the two services, %v, want 4", schemas, err)
	}
	for _, service := range []string{orders, billing} {
		clone.Run(t, service, "go", "run", "./cmd/server", "outbox", "list")
	}
}

// A service with an entity of its own has no word of the example, keeps the words of
// PostgreSQL, and passes its tests.
func TestReplace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	template := newTemplate(t, dir)
	one, two := filepath.Join(dir, "orders"), filepath.Join(dir, "procurement")
	newService(t, template, one, "--module", "github.com/acme/orders", "--entity", "order", "--without", "lab,terraform,decisions")
	newService(t, template, two, "--module", "github.com/acme/procurement", "--schema", "buying", "--entity", "purchase_order", "--view", "ledger")
	for _, service := range []string{one, two} {
		checkNames(t, service)
		checkWords(t, service)
		checkRecord(t, service)
		if unformatted := clone.Run(t, service, "gofmt", "-l", "."); unformatted != "" {
			t.Errorf("%s: gofmt would change %s", service, unformatted)
		}
		clone.Run(t, service, "go", "vet", "./...")
		clone.Run(t, service, "go", "test", "./internal/archtest", "./internal/names/...", "./api/...", "./internal/domain", "./internal/event", "./internal/port")
		clone.Run(t, service, "go", "test", "./cmd/server", "-run", "Documented|Config|Help|Subscriptions|Defaults")
	}
	clone.Run(t, one, "go", "test", "./internal/server", "./internal/store", "-run", "Create|List|OpenAPI|Gateway|Search|Catalog|Overview|Order")
	clone.Run(t, two, "go", "test", "./internal/server", "./internal/store", "-run", "Create|List|OpenAPI|Gateway|Search|Ledger|PurchaseOrder")
	for _, service := range []string{one, two} {
		if changes := clone.Run(t, service, "git", "status", "--porcelain"); changes != "" {
			t.Errorf("%s: the tests changed %s", service, changes)
		}
	}
}

// checkWords looks for words of the example in all files, and in their paths.
func checkWords(t *testing.T, dir string) {
	t.Helper()
	example := regexp.MustCompile(`(?i)video|catalog|film|视频|影片|目录`)
	others := regexp.MustCompile(`pg_catalog|catalog_xmin|目录树`) // the words of PostgreSQL, and a tree of folders
	kept := 0
	for name := range strings.SplitSeq(strings.TrimSuffix(clone.Run(t, dir, "git", "ls-files", "-z"), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		kept += len(others.FindAll(content, -1))
		if example.MatchString(name) {
			t.Errorf("the path %s has a word of the example", name)
		}
		for line := range strings.Lines(others.ReplaceAllString(string(content), "")) {
			if found := example.FindString(line); found != "" {
				t.Errorf("%s has the word %q of the example: %.200s", name, found, line)
			}
		}
	}
	if kept < 5 {
		t.Errorf("only %d words of PostgreSQL are left", kept)
	}
}

// newTemplate copies the working tree into a repository.
func newTemplate(t *testing.T, dir string) string {
	t.Helper()
	template := filepath.Join(dir, "template")
	clone.Tree(t, "../..", template)
	clone.Run(t, template, "git", "init", "--quiet")
	commit(t, template)
	return template
}

func commit(t *testing.T, dir string) {
	t.Helper()
	clone.Run(t, dir, "git", "add", "--all")
	clone.Run(t, dir, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message", "changes")
}

// edit replaces a text that is in a file once.
func edit(t *testing.T, path, before, after string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(content), before) != 1 {
		t.Fatalf("%s has %d times %q, want once", path, strings.Count(string(content), before), before)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(content), before, after, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func contains(t *testing.T, path, text string) {
	t.Helper()
	if content, err := os.ReadFile(path); err != nil || !strings.Contains(string(content), text) {
		t.Errorf("%s does not contain %q: %v", path, text, err)
	}
}

// A service takes a later version of the template beside its own changes. What cannot be
// merged is refused, and leaves the service as it was.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	template, orders := newTemplate(t, dir), filepath.Join(dir, "orders")
	newService(t, template, orders, "--module", "github.com/acme/orders", "--without", "chinese")
	upgrade := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), "go", "run", "./cmd/new", orders, "--upgrade")
		cmd.Dir = template
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	refused := func(want string) {
		t.Helper()
		before := clone.Run(t, orders, "git", "rev-parse", "HEAD", "template")
		if out, err := upgrade(); err == nil || !strings.Contains(out, want) {
			t.Errorf("upgrade = %v, want it refused because of %q:\n%s", err, want, out)
		}
		if after := clone.Run(t, orders, "git", "rev-parse", "HEAD", "template"); after != before {
			t.Errorf("a refused upgrade moved the branches from %s to %s", before, after)
		}
	}
	if out, err := upgrade(); err != nil || !strings.Contains(out, "up to date") {
		t.Errorf("upgrade to the same version = %v: %s", err, out)
	}

	edit(t, filepath.Join(orders, "README.md"), "## Dependencies", "## Our own section\n\nOrders.\n\n## Dependencies")
	edit(t, filepath.Join(orders, "cmd", "server", "config.go"), "c.outbox = outbox.Config{}", "c.outbox = outbox.Config{Workers: 2}")
	if err := os.WriteFile(filepath.Join(orders, "internal", "domain", "order.go"), []byte("package domain\n\n// Order is our own.\ntype Order struct{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(template, "internal", "port", "port.go"), "// It knows no service:", "// This is a later version of example.com/videocatalog.\n//\n// It knows no service:")
	commit(t, template)
	refused("not committed")
	commit(t, orders)
	if out, err := upgrade(); err != nil {
		t.Fatalf("upgrade = %v:\n%s", err, out)
	}
	contains(t, filepath.Join(orders, "README.md"), "Our own section")
	contains(t, filepath.Join(orders, "cmd", "server", "config.go"), "Workers: 2")
	contains(t, filepath.Join(orders, "internal", "domain", "order.go"), "our own")
	contains(t, filepath.Join(orders, "internal", "port", "port.go"), "a later version of github.com/acme/orders")
	checkRecord(t, orders)
	clone.Run(t, orders, "go", "build", "./...")

	edit(t, filepath.Join(template, "db", "migrations", "00004_videos.sql"), "SET LOCAL lock_timeout = '2s';", "SET LOCAL lock_timeout = '3s';")
	commit(t, template)
	refused("00004_videos.sql")
	clone.Run(t, template, "git", "reset", "--quiet", "--hard", "HEAD~1")

	edit(t, filepath.Join(template, "cmd", "server", "config.go"), "c.outbox = outbox.Config{}", "c.outbox = outbox.Config{Workers: 3}")
	commit(t, template)
	if out, err := upgrade(); err == nil || !strings.Contains(out, "git merge --abort") {
		t.Errorf("upgrade with a conflict = %v, want the advice of git:\n%s", err, out)
	}
	clone.Run(t, orders, "git", "merge", "--abort")
	if changes := clone.Run(t, orders, "git", "status", "--porcelain"); changes != "" {
		t.Errorf("after git merge --abort: %s", changes)
	}
	if out, err := upgrade(); err == nil || !strings.Contains(out, "git merge --abort") {
		t.Errorf("upgrade after an aborted merge = %v, want the same conflict:\n%s", err, out)
	}
}

// newService makes a service in less than a minute.
func newService(t *testing.T, template, dir string, args ...string) {
	t.Helper()
	began := time.Now()
	out := clone.Run(t, template, "go", append([]string{"run", "./cmd/new", dir, "--yes"}, args...)...)
	t.Logf("%s after %.0f s", dir, time.Since(began).Seconds())
	if !strings.Contains(out, "go run ./cmd/dev") || !strings.Contains(out, "go test ./...") {
		t.Errorf("it does not print the next commands: %s", out)
	}
	if branch := strings.TrimSpace(clone.Run(t, dir, "git", "branch", "--show-current")); branch != "main" {
		t.Errorf("branch = %q, want main", branch)
	}
	if diff := clone.Run(t, dir, "git", "diff", "template", "main"); diff != "" {
		t.Errorf("main differs from template: %s", diff)
	}
}

// checkNames looks for names of the template in all files, and in their paths.
func checkNames(t *testing.T, dir string) {
	t.Helper()
	old := regexp.MustCompile(`(?i)video_?catalog`)
	for name := range strings.SplitSeq(strings.TrimSuffix(clone.Run(t, dir, "git", "ls-files", "-z"), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if found := old.Find(content); found != nil || old.MatchString(name) {
			t.Errorf("%s has the name %q of the template", name, found)
		}
	}
}

// checkRecord reads template.json, which an upgrade will need.
func checkRecord(t *testing.T, dir string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "template.json"))
	if err != nil {
		t.Fatal(err)
	}
	var record struct{ Template, Module, Service, Schema, Domain string }
	if err := json.Unmarshal(content, &record); err != nil || len(record.Template) != 40 || record.Module == "" || record.Service == "" || record.Schema == "" || record.Domain == "" {
		t.Errorf("template.json = %s, %v, want the commit and all options", content, err)
	}
}
