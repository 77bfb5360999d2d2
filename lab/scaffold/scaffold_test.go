package scaffold

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/internal/clone"
)

var must = pgtest.Must

// Without paths in the compiled packages, all services share the build cache.
func TestMain(m *testing.M) {
	_ = os.Setenv("GOFLAGS", "-trimpath") // fails only for names and values with a NUL
	m.Run()
}

// checkWords looks for words of the example in all files, and in their paths.
func checkWords(t *testing.T, dir string) {
	t.Helper()
	example := regexp.MustCompile(`(?i)video|catalog|film`)
	others := regexp.MustCompile(`pg_catalog|catalog_xmin|current_catalog`) // the words of PostgreSQL
	kept := 0
	for name := range strings.SplitSeq(strings.TrimSuffix(clone.Run(t, dir, "git", "ls-files", "-z"), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
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
	write(t, filepath.Join(template, "cmd/new/oldest"), "") // this history has no such version
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
	must(t, err)
	if strings.Count(string(content), before) != 1 {
		t.Fatalf("%s has %d times %q, want once", path, strings.Count(string(content), before), before)
	}
	must(t, os.WriteFile(path, []byte(strings.Replace(string(content), before, after, 1)), 0o600))
}

func contains(t *testing.T, path, text string) {
	t.Helper()
	if content, err := os.ReadFile(path); err != nil || !strings.Contains(string(content), text) {
		t.Errorf("%s does not contain %q: %v", path, text, err)
	}
}

// newService makes a service with cmd/new, and checks its output and branches.
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
		must(t, err)
		if found := old.Find(content); found != nil || old.MatchString(name) {
			t.Errorf("%s has the name %q of the template", name, found)
		}
	}
}

// checkDead looks for functions that no program of a service calls.
func checkDead(t *testing.T, dir string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "deadcode")
	clone.Run(t, ".", "go", "build", "-o", program, "golang.org/x/tools/cmd/deadcode")
	if dead := clone.Run(t, dir, program, "./cmd/..."); dead != "" {
		t.Errorf("no program calls:\n%s", dead)
	}
}

// checkRecord reads template.json, which an upgrade will need. It has no path of this machine, and others
// may read the folder.
func checkRecord(t *testing.T, dir string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "template.json"))
	must(t, err)
	var record struct{ Template, Source, Module, Service, Schema, Domain string }
	if err := json.Unmarshal(content, &record); err != nil || len(record.Template) != 40 || record.Source != "" ||
		record.Module == "" || record.Service == "" || record.Schema == "" || record.Domain == "" {
		t.Errorf("template.json = %s, %v, want the commit, no path of the template, and all options", content, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the mode of %s is %v, %v, want 0755", dir, info.Mode(), err)
	}
}
