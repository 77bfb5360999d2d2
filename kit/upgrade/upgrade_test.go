package upgrade

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.com/servicekit/tool"
)

// newTemplate makes a repository with four versions of a small template. The first has no
// command cmd/new. That command prints its arguments in the second, and fails in the third.
func newTemplate(t *testing.T) (dir, first, second string) {
	t.Helper()
	dir = newRepository(t)
	write(t, dir, "go.mod", "module example.com/small\n")
	first = commit(t, dir)
	write(t, dir, "cmd/new/main.go", "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(\"second\", os.Args[1:]) }\n")
	second = commit(t, dir)
	gitIn(t, dir, "tag", "v1.0.0")
	write(t, dir, "cmd/new/main.go", "package main\n\nimport \"os\"\n\nfunc main() { os.Exit(1) }\n")
	commit(t, dir)
	gitIn(t, dir, "branch", "broken")
	write(t, dir, "cmd/new/main.go", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"newest\") }\n")
	commit(t, dir)
	return dir, first, second
}

func newRepository(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	gitIn(t, dir, "init", "--quiet", "--initial-branch=main")
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// commit commits all files, and returns the commit.
func commit(t *testing.T, dir string) string {
	t.Helper()
	gitIn(t, dir, "add", "--all")
	gitIn(t, dir, "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message", "changes")
	return gitIn(t, dir, "rev-parse", "HEAD")
}

// gitIn runs git.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := tool.Output(t.Context(), dir, "git", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The command of the requested version runs with the folder of the service, even if the
// template has moved. Tags, branches and commits are versions.
func TestVersions(t *testing.T) {
	template, _, second := newTemplate(t)
	service := newRepository(t)
	top := gitIn(t, service, "rev-parse", "--show-toplevel")
	write(t, service, "template.json", `{"template": "0123456789012345678901234567890123456789", "source": "`+template+`"}`)
	write(t, service, "sub/x", "")
	t.Chdir(filepath.Join(service, "sub"))
	moved := filepath.Join(filepath.Dir(service), "moved")
	t.Setenv("TMPDIR", t.TempDir())
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "newest"},
		{[]string{"v1.0.0"}, "second [" + top + " --upgrade]"},
		{[]string{"v1.0.0", "--with", "a,b"}, "second [" + top + " --upgrade --with a,b]"},
		{[]string{"v1.0.0", "--without", "c", "--with", "a"}, "second [" + top + " --upgrade --without c --with a]"},
		{[]string{"main"}, "newest"},
		{[]string{second}, "second"},
		{[]string{second[:10]}, "second"},
		{[]string{"v1.0.0", "--from", "../../moved"}, "second"},
		{[]string{"--from=file://" + moved, "v1.0.0"}, "second"},
	} {
		if strings.Contains(strings.Join(test.args, " "), "moved") {
			if err := os.Rename(template, moved); err == nil {
				defer os.RemoveAll(moved)
			}
		}
		var screen strings.Builder
		if err := run(t.Context(), test.args, &screen); err != nil || !strings.Contains(screen.String(), test.want) {
			t.Errorf("upgrade %q = %v, want %q:\n%s", test.args, err, test.want, screen.String())
		}
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The error for a wrong input is one sentence that names the remedy.
func TestWrongInputs(t *testing.T) {
	template, first, second := newTemplate(t)
	const recorded = "0123456789012345678901234567890123456789"
	service := func(text string) func(*testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			dir := newRepository(t)
			write(t, dir, "template.json", text)
			return dir
		}
	}
	good := service(`{"template": "` + recorded + `", "source": "` + template + `"}`)
	for name, test := range map[string]struct {
		dir  func(*testing.T) string
		args []string
		want string
	}{
		"no repository":          {func(t *testing.T) string { t.Helper(); return t.TempDir() }, nil, "no git repository"},
		"no template.json":       {newRepository, nil, "was not made from a template"},
		"the template itself":    {func(*testing.T) string { return template }, nil, "this is the template itself"},
		"broken template.json":   {service("{"), nil, "template.json: "},
		"no source":              {service(`{"template": "` + recorded + `"}`), nil, "--from PLACE"},
		"the source has moved":   {service(`{"source": "/nowhere/at/all"}`), nil, "clone the template from /nowhere/at/all"},
		"unknown version":        {good, []string{"v9"}, `no tag, branch or commit "v9"`},
		"a flag as version":      {good, []string{"--", "-v9"}, `"-v9"`},
		"two versions":           {good, []string{"v1", "v2"}, `want one version, and not ["v1" "v2"]: a list with spaces needs quotes`},
		"unknown flag":           {good, []string{"--force"}, "--help"},
		"without the command":    {good, []string{first}, "cmd/new"},
		"an older version":       {service(`{"template": "` + gitIn(t, template, "rev-parse", "main") + `", "source": "` + template + `"}`), []string{second}, "no way back"},
		"the command has failed": {good, []string{"broken"}, tool.ErrTold.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(test.dir(t))
			var screen strings.Builder
			if err := run(t.Context(), test.args, &screen); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("upgrade %q = %v, want %q:\n%s", test.args, err, test.want, screen.String())
			}
		})
	}
	t.Run("no git", func(t *testing.T) {
		t.Chdir(good(t))
		t.Setenv("PATH", t.TempDir())
		if err := run(t.Context(), nil, new(strings.Builder)); err == nil || !strings.Contains(err.Error(), "\"git\": executable file not found") {
			t.Errorf("upgrade without git = %v", err)
		}
	})
}
