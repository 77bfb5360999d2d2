package deploytest

import (
	"debug/elf"
	"fmt"
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// gcloud accepts cloudbuild.yaml, so it has no unknown fields. Its steps are in the right order, and it runs as the
// account for releases.
func TestCloudBuild(t *testing.T) {
	t.Parallel()
	control, env := newProject(t)
	file, err := filepath.Abs("../../cloudbuild.yaml")
	must(t, err)
	if out, err := command(t, env, "gcloud", "builds", "submit", "--no-source", "--async", "--config="+file,
		"--project="+project, "--substitutions=SHORT_SHA=abc1234"); err != nil {
		t.Fatalf("gcloud builds submit: %v\n%s", err, out)
	}
	changes := control.changed()
	if len(changes) != 1 {
		t.Fatalf("requests = %v, want one, the build", changes)
	}
	build := changes[0].Body
	var ids []string
	scripts := map[string]string{}
	for _, step := range list(build["steps"]) {
		id := fmt.Sprint(at(step, "id"))
		ids = append(ids, id)
		scripts[id] = fmt.Sprint(at(step, "args"))
	}
	if want := []string{"check", "image", "release"}; !slices.Equal(ids, want) {
		t.Errorf("steps = %q, want %q", ids, want)
	}
	for id, want := range map[string]string{"check": ".ci/run", "image": "docker build ", "release": `"$(cat /workspace/image)"`} {
		if !strings.Contains(scripts[id], want) {
			t.Errorf("step %s runs %s, want %q in it", id, scripts[id], want)
		}
	}
	if got, want := fmt.Sprint(build["serviceAccount"]), "${_SERVICE}-release@"; !strings.Contains(got, want) {
		t.Errorf("it runs as %s, want %s…", got, want)
	}
}

// The Dockerfile builds from the files that .dockerignore leaves, with the Go release that runs the tests in
// cloudbuild.yaml. go.mod allows the release. Its binary is static, and knows its version. Docker is not needed.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	file := readFile(t, "Dockerfile")
	find := func(text, pattern string) string {
		found := regexp.MustCompile(`(?m)^` + pattern).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no line like %s in\n%s", pattern, text)
		}
		return found[1]
	}
	base := find(file, `FROM golang:(\S+) AS build$`)
	release, _, _ := strings.Cut(base, "-")
	if least := find(readFile(t, "go.mod"), `go (\S+)$`); version.Compare("go"+release, "go"+least) < 0 {
		t.Errorf("it builds with Go %s, want at least %s", release, least)
	}
	if checked := find(readFile(t, "cloudbuild.yaml"), `  _GO: golang:(\S+)$`); checked != base {
		t.Errorf("it builds with %s, want %s, which runs the tests", base, checked)
	}

	sources := t.TempDir()
	copySources(t, sources)
	for _, line := range regexp.MustCompile(`(?m)^COPY ([^-\n].*) \S+$`).FindAllStringSubmatch(file, -1) {
		for name := range strings.FieldsSeq(line[1]) {
			if _, err := os.Stat(filepath.Join(sources, name)); err != nil {
				t.Errorf("COPY of what .dockerignore leaves out: %v", err)
			}
		}
	}
	server := filepath.Join(t.TempDir(), "server")
	build := strings.Replace(find(file, `RUN (CGO_ENABLED=0 go build .*)$`), "-o /server ", "-o "+server+" ", 1)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", build)
	cmd.Dir, cmd.Env = sources, append(os.Environ(), "VERSION=v1", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	binary, err := elf.Open(server)
	must(t, err)
	defer binary.Close()
	if slices.ContainsFunc(binary.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the server needs a dynamic linker, and scratch has none")
	}
	if runtime.GOOS != "linux" {
		return
	}
	if out, err := exec.CommandContext(t.Context(), server, "version").CombinedOutput(); err != nil || string(out) != "v1\n" {
		t.Errorf("server version = %q, %v, want v1", out, err)
	}
}

// copySources copies the files that Docker sees. .dockerignore has three kinds of lines: *, !FILE and **/NAME.
func copySources(t *testing.T, to string) {
	t.Helper()
	var kept, dropped []string
	for line := range strings.Lines(readFile(t, ".dockerignore")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			kept = append(kept, name)
		} else if name, ok := strings.CutPrefix(strings.TrimSpace(line), "**/"); ok {
			dropped = append(dropped, name)
		}
	}
	args := []string{"-c", `tar -c -C ../.. "$@" | tar -x -C "$0"`, to}
	for _, name := range dropped {
		args = append(args, "--exclude="+name)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", append(args, kept...)...).CombinedOutput(); err != nil {
		t.Fatalf("copy %q: %v\n%s", kept, err, out)
	}
}

// The files of Terraform parse, and are formatted. Validation would need the provider, from Terraform's registry.
func TestTerraformIsFormatted(t *testing.T) {
	t.Parallel()
	terraform, err := exec.LookPath("terraform")
	if err != nil {
		t.Logf("%v: nothing is compared", err)
		return
	}
	out, err := exec.CommandContext(t.Context(), terraform, "fmt", "-check", "-diff", "-recursive", "../../deploy/terraform").CombinedOutput()
	if err != nil {
		t.Errorf("terraform fmt: %v\n%s", err, out)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	must(t, err)
	return string(text)
}
