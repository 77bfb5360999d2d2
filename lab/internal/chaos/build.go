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

// tags are the build tags of a server with failpoints and the settings of the lab.
const tags = "-tags=chaos"

// build builds the present service with a clock that the lab can set, and an older
// one without.
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
		tag, _ := exec.CommandContext(ctx, "git", "-C", here, "describe", "--tags", "--abbrev=0", "HEAD^").Output() //nolint:gosec // our own directory
		l.cfg.Older = strings.TrimSpace(string(tag))
	}
	if l.cfg.Older == "" {
		return goBuild(ctx, here, l.older, tags)
	}
	source, err := os.MkdirTemp("", "chaos-older-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(source) }() // temporary files
	archive := filepath.Join(source, "source.tar")
	if out, err := exec.CommandContext(ctx, "git", "-C", here, "archive", "--output="+archive, l.cfg.Older).CombinedOutput(); err != nil { //nolint:gosec // the commit from the config
		return fmt.Errorf("git archive %s: %w: %s", l.cfg.Older, err, out)
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", source).CombinedOutput(); err != nil { //nolint:gosec // the archive from above
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

// seam is the only line where the service gets the time and the ids of its events.
// The lab builds it as jumping. That is not in the code of the service, so that no
// deployed build has a clock that can be set.
const (
	seamFile = "internal/server/origin.go"
	seam     = "now: time.Now, newID: uuid.NewV7}"
	jumping  = `now: func() time.Time { return failpoint.Jumped(time.Now()) },
			newID: func() (uuid.UUID, error) { return failpoint.JumpedID(uuid.NewV7()) }}`
)

// overlayClock writes the file for go build -overlay into the directory out.
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
		err = errors.Join(os.WriteFile(replacement, []byte(changed), 0o600), os.WriteFile(overlay, b, 0o600)) //nolint:gosec // in the given directory
	}
	if err != nil {
		return "", fmt.Errorf("write overlay: %w", err)
	}
	return overlay, nil
}

// withJumpingClock replaces the clock in the source.
func withJumpingClock(source, module string) (string, error) {
	const imports = "\nimport (\n"
	if strings.Count(source, seam) != 1 || strings.Count(source, imports) != 1 {
		return "", fmt.Errorf("give the service a clock that jumps: %s has no %q, or not once; adapt the seam in lab/internal/chaos/build.go", seamFile, seam)
	}
	source = strings.Replace(source, imports, imports+"\t\""+module+"/internal/failpoint\"\n", 1)
	return strings.Replace(source, seam, jumping, 1), nil
}
