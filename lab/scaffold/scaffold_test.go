package scaffold

import (
	"encoding/json"
	"os"
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
	template := filepath.Join(dir, "template")
	clone.Tree(t, "../..", template)
	clone.Run(t, template, "git", "init", "--quiet")
	clone.Run(t, template, "git", "add", "--all")
	clone.Run(t, template, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message", "all")

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
		t.Errorf("template.json = %s, %v, want the commit and all answers", content, err)
	}
}
