package main

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// services are the names of the three services.
var services = []string{"orders", "inventory", "payments"}

// created has the arguments of cmd/new that differ between the services.
var created = map[string][]string{
	"orders": {
		"--entity", "order", "--fields", "product_id:uuid! quantity:int32 amount_cents:int64",
		"--transitions", "placed→reserved:reserve reserved→confirmed:confirm placed→canceled:cancel reserved→canceled:cancel",
		"--timers", fmt.Sprintf("placed:%[1]s:cancel reserved:%[1]s:cancel", timeout),
	},
	"inventory": {
		"--entity", "product",
		"--fields", "title:string! available:int32 reserved:int32 sold:int32 open_orders:uuids order_id:uuid outcome:enum(reserved,rejected,released,sold)",
	},
	"payments": {
		"--entity", "payment", "--fields", "amount_cents:int64",
		"--transitions", "requested→captured:capture requested→declined:decline requested→canceled:cancel captured→canceled:cancel",
	},
}

// connected are the runs of cmd/entity that connect the services. A payment has the id of its order.
var connected = []struct {
	service string
	args    []string
}{
	{"inventory", []string{"replicate", "order", "../orders"}},
	{"payments", []string{"replicate", "order", "../orders"}},
	{"payments", []string{"react", "payment", "order", "--on", "reserved:id:create canceled:id:cancel"}},
	{"orders", []string{"replicate", "payment", "../payments"}},
	{"orders", []string{"react", "order", "payment", "--on", "captured:id:confirm declined:id:cancel"}},
	{"orders", []string{"replicate", "product", "../inventory"}},
	{"orders", []string{"react", "order", "product", "--on", "updated:order_id:reserve"}},
}

// byHand has the decisions about stock, which no generator can know, with their tests.
//
//go:embed all:_byhand
var byHand embed.FS

// makeServices makes and builds the services, unless the same commit of the template and the
// same code of this program made them before.
func makeServices(ctx context.Context, dir string, out io.Writer) error {
	const root = "../.."
	version, err := versionOf(ctx, root)
	if err != nil {
		return err
	}
	done := filepath.Join(dir, "made")
	if made, err := os.ReadFile(done); err == nil && string(made) == version { //nolint:gosec // in the folder that the user has chosen
		return nil
	}
	fmt.Fprintln(out, "Making the services, for some minutes the first time.")
	if err := emptyDir(dir); err != nil {
		return err
	}
	template := filepath.Join(dir, "template")
	if err := copyTemplate(ctx, root, template); err != nil {
		return err
	}
	g, making := errgroup.WithContext(ctx)
	for _, name := range services {
		g.Go(func() error {
			args := []string{"run", "./cmd/new", filepath.Join(dir, name), "--yes", "--with", "console,reactions", "--module", "saga.example.com/" + name, "--service", name}
			return command(making, template, "go", append(args, created[name]...)...)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, c := range connected {
		if err := command(ctx, filepath.Join(dir, c.service), "go", append([]string{"run", "./cmd/entity"}, c.args...)...); err != nil {
			return err
		}
	}
	if err := copyByHand(dir); err != nil {
		return err
	}
	for _, name := range services {
		for _, args := range [][]string{
			{"test", "./internal/names", "-run", "^TestScript$", "-update"},
			{"test", "./internal/domain"},
			{"build", "-buildvcs=false", "-o", "server", "./cmd/server"},
		} {
			if err := command(ctx, filepath.Join(dir, name), "go", args...); err != nil {
				return err
			}
		}
		fmt.Fprintln(out, "  made", name)
	}
	return os.WriteFile(done, []byte(version), 0o600)
}

// emptyDir makes an empty folder. It deletes only what this program has made.
func emptyDir(dir string) error {
	mark := filepath.Join(dir, "saga")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(mark); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s has files of others: choose another folder with --dir", dir)
	}
	const readableByAll = 0o755 // for root, PostgreSQL runs as another user
	return errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, readableByAll), os.WriteFile(mark, nil, 0o600))
}

// copyTemplate makes a repository with the last commit of the template: cmd/new refuses changes
// that are not committed.
func copyTemplate(ctx context.Context, root, to string) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	archive := to + ".tar"
	if err := command(ctx, root, "git", "archive", "--output", archive, "HEAD"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"tar", "-xf", archive},
		{"git", "init", "--quiet"},
		{"git", "add", "--all"},
		{"git", "-c", "user.name=saga", "-c", "user.email=saga@localhost", "-c", "commit.gpgsign=false", "commit", "--quiet", "--message", "The template"},
	} {
		if err := command(ctx, to, args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func copyByHand(dir string) error {
	files, err := fs.Sub(byHand, "_byhand")
	if err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path), content, 0o600)
	})
}

// versionOf returns what the services are made of: the commit, and this program.
func versionOf(ctx context.Context, root string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "HEAD")
	cmd.Dir = root
	commit, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse HEAD: %w: run this in a clone, with git installed", err)
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	code, err := os.ReadFile(program) //nolint:gosec // this program
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %x\n", strings.TrimSpace(string(commit)), sha256.Sum256(code)), nil
}

// command runs a program in a folder. If it fails, the error has its output.
func command(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // of this file
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath") // so that the three share the cache of builds
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s %s in %s: %w\n%s", program, strings.Join(args, " "), dir, err, out)
	}
	return errors.Join(err, ctx.Err())
}
