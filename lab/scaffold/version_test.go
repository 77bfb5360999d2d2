package scaffold

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"example.com/videocatalog/lab/internal/clone"
)

// kitByVersion requires the kit of a service by a version instead of its copy, as after a release,
// builds the service, and takes the protos from there. The proxy is a folder with a zip of the kit.
func kitByVersion(t *testing.T, service string) {
	t.Helper()
	kit := module.Version{Path: "example.com/servicekit", Version: "v1.0.0"}
	proxy := t.TempDir()
	versions := filepath.Join(proxy, kit.Path, "@v")
	must(t, os.MkdirAll(versions, 0o750))
	archive, err := os.Create(filepath.Join(versions, kit.Version+".zip"))
	must(t, err)
	defer archive.Close()
	must(t, zip.CreateFromDir(archive, kit, "../../kit"))
	requirements, err := os.ReadFile("../../kit/go.mod")
	must(t, err)
	write(t, filepath.Join(versions, kit.Version+".mod"), string(requirements))
	write(t, filepath.Join(versions, kit.Version+".info"), `{"Version": "`+kit.Version+`"}`)

	clone.Run(t, service, "go", "mod", "edit", "-dropreplace="+kit.Path, "-require="+kit.String())
	clone.Run(t, service, "rm", "-r", "third_party/kit", ".local/protos")
	downloads := strings.TrimSpace(clone.Run(t, service, "go", "env", "GOMODCACHE")) + "/cache/download"
	run := func(args ...string) {
		t.Helper()
		clone.Run(t, service, "env", append([]string{
			"GOPROXY=file://" + proxy + ",file://" + downloads, "GOSUMDB=off", "GOMODCACHE=" + filepath.Join(proxy, "cache"),
			"GOFLAGS=-trimpath -mod=mod -modcacherw",
		}, args...)...)
	}
	run("make", "--silent", "protos")
	run("go", "build", "./...")
	run("go", "test", "./internal/archtest", "-run", "Kit|Links")
	for _, name := range []string{"google/api/annotations.proto", "buf/validate/validate.proto"} {
		if _, err := os.Stat(filepath.Join(service, ".local", "protos", name)); err != nil {
			t.Error(err)
		}
	}
}
