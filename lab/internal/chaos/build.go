package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tags are those of a server that has the points of package failpoint, and takes
// the lab's settings.
const tags = "-tags=chaos"

// build builds the service as it is, with a clock that can be told to jump, and an
// older one without.
func (l *lab) build(ctx context.Context) error {
	l.present = filepath.Join(l.cfg.Out, "server")
	l.older = filepath.Join(l.cfg.Out, "server-older")
	found, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}} {{.Path}}", "example.com/videocatalog").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	here, module, _ := strings.Cut(strings.TrimSpace(string(found)), " ")
	overlay, err := overlayClock(here, module, l.cfg.Out)
	if err != nil {
		return err
	}
	err = goBuild(ctx, here, l.present, tags, "-overlay="+overlay)
	if err := errors.Join(err, os.RemoveAll(filepath.Dir(overlay))); err != nil {
		return err
	}
	if l.cfg.Older == "" {
		tag, _ := exec.CommandContext(ctx, "git", "-C", here, "describe", "--tags", "--abbrev=0", "HEAD^").Output() //nolint:gosec // our own folder
		l.cfg.Older = strings.TrimSpace(string(tag))
	}
	if l.cfg.Older == "" {
		return goBuild(ctx, here, l.older, tags)
	}
	source, err := os.MkdirTemp("", "chaos-older-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(source) }() // of temporary files
	archive := filepath.Join(source, "source.tar")
	if out, err := exec.CommandContext(ctx, "git", "-C", here, "archive", "--output="+archive, l.cfg.Older).CombinedOutput(); err != nil { //nolint:gosec // the commit that we were told
		return fmt.Errorf("git archive %s: %w: %s", l.cfg.Older, err, out)
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", source).CombinedOutput(); err != nil { //nolint:gosec // we have made it
		return fmt.Errorf("unpack %s: %w: %s", l.cfg.Older, err, out)
	}
	return goBuild(ctx, source, l.older, tags)
}

func goBuild(ctx context.Context, dir, to string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", to}, flags...), "./cmd/server")...) //nolint:gosec // our own source
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the service in %s: %w: %s", dir, err, out)
	}
	return nil
}

// The one place where the service reads the time and makes the ids of its
// events, and what the lab builds in its stead. It is not in the code itself
// because no build of the service that anybody deploys shall have a clock that
// can be set.
const (
	seamFile = "internal/server/server.go"
	seam     = "now: time.Now, newID: uuid.NewV7}"
	jumping  = `now: func() time.Time { return failpoint.Jumped(time.Now()) },
			newID: func() (uuid.UUID, error) { return failpoint.JumpedID(uuid.NewV7()) }}`
)

// overlayClock makes a file for go build -overlay, in a folder of its own.
func overlayClock(root, module, out string) (string, error) {
	original := filepath.Join(root, filepath.FromSlash(seamFile))
	source, err := os.ReadFile(original) //nolint:gosec // our own source
	if err != nil {
		return "", fmt.Errorf("give the service a clock that jumps: %w", err)
	}
	changed, err := withJumpingClock(string(source), module)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(out, "overlay")
	replacement, overlay := filepath.Join(dir, "server.go"), filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{original: replacement}})
	if err != nil {
		return "", fmt.Errorf("marshal overlay: %w", err)
	}
	err = os.MkdirAll(dir, 0o700)
	if err == nil {
		err = errors.Join(os.WriteFile(replacement, []byte(changed), 0o600), os.WriteFile(overlay, b, 0o600)) //nolint:gosec // in the folder that we were told
	}
	if err != nil {
		return "", fmt.Errorf("write overlay: %w", err)
	}
	return overlay, nil
}

// withJumpingClock changes the source of the seam.
func withJumpingClock(source, module string) (string, error) {
	const imports = "\nimport (\n"
	if strings.Count(source, seam) != 1 || strings.Count(source, imports) != 1 {
		return "", fmt.Errorf("give the service a clock that jumps: %s has no %q, or not once; adapt the seam in lab/internal/chaos/build.go", seamFile, seam)
	}
	source = strings.Replace(source, imports, imports+"\t\""+module+"/internal/failpoint\"\n", 1)
	return strings.Replace(source, seam, jumping, 1), nil
}
