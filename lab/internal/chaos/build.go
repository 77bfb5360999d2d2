package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"example.com/videocatalog/lab/internal/failpoint"
	"example.com/videocatalog/lab/internal/tuned"
)

// build builds the present service with failpoints and a clock that the lab can set, and
// an older commit without them.
func (l *lab) build(ctx context.Context) error {
	l.present = filepath.Join(l.cfg.Out, "server")
	l.older = filepath.Join(l.cfg.Out, "server-older")
	found, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}} {{.Path}}", "example.com/videocatalog").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	here, module, _ := strings.Cut(strings.TrimSpace(string(found)), " ")
	dir := filepath.Join(l.cfg.Out, "overlay")
	flag, err := overlay(here, module, dir)
	if err == nil {
		err = goBuild(ctx, here, l.present, flag)
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	if l.cfg.Older == "" && l.cfg.Broker == BrokerPubSub && l.cfg.Relay == RelayLanes { // an older one may not have the option
		tag, _ := exec.CommandContext(ctx, "git", "-C", here, "describe", "--tags", "--abbrev=0", "HEAD^").Output() //nolint:gosec // our own directory
		l.cfg.Older = strings.TrimSpace(string(tag))
	}
	if l.cfg.Older == "" {
		return buildPlain(ctx, here, l.older)
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
	return buildPlain(ctx, source, l.older)
}

// buildPlain builds the service in a folder with the settings of the lab, and without failpoints.
func buildPlain(ctx context.Context, root, to string) error {
	dir, err := os.MkdirTemp("", "chaos-overlay-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary files
	flag, err := tuned.Overlay(root, dir, nil)
	if err != nil {
		return err
	}
	return goBuild(ctx, root, to, flag)
}

func goBuild(ctx context.Context, dir, to string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", to}, flags...), "./cmd/server")...) //nolint:gosec // our own source
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the service in %s: %w: %s", dir, err, out)
	}
	return nil
}

// seams are the lines of the service that the lab builds differently: with a clock that
// jumps, and with failpoints in front of them. The service has neither, so no deployed
// build can be told to die or to lie about the time.
var seams = []seam{
	{"internal/server/server.go", "now: time.Now, newID: newUUIDv7}", "now: func() time.Time { return failpoint.Jumped(time.Now()) }, " +
		"newID: func() uuid.UUID { return failpoint.JumpedID(newUUIDv7()) }}"},
	hit("internal/outbox/pass.go", "receipts := p.publish(", failpoint.OutboxClaimed),
	hit("internal/outbox/pass.go", "result, settlement := p.collect(", failpoint.OutboxHanded),
	hit("internal/outbox/pass.go", "held, err := p.settle(", failpoint.OutboxPublished),
	hit("internal/consumer/batch.go", "r.metrics.countOutcomes(r.work, deliveries, outcomes)", failpoint.ConsumerCommitted),
}

// seam is a text that a file of the service has once, and its replacement.
type seam struct{ file, text, with string }

func hit(file, text, point string) seam {
	return seam{file, text, fmt.Sprintf("failpoint.Hit(%q); %s", point, text)}
}

// overlay writes files into the directory dir, and returns a flag of go build. It adds the seams, and package
// failpoint from the lab, to the module in root.
func overlay(root, module, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	sources, err := changed(root, module)
	if err != nil {
		return "", fmt.Errorf("build the service of the lab: %w", err)
	}
	replace := make(map[string]string)
	for _, name := range []string{"failpoint.go", "clock.go"} {
		replace[filepath.Join(root, "internal/failpoint", name)] = filepath.Join(root, "lab/internal/failpoint", name)
	}
	for name, source := range sources {
		original := filepath.Join(root, name)
		replace[original] = filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(replace[original], []byte(source), 0o600); err != nil {
			return "", err
		}
	}
	return tuned.Overlay(root, dir, replace)
}

// changed returns the files that have seams, by name, with the seams replaced.
func changed(root, module string) (map[string]string, error) {
	sources := make(map[string]string)
	for _, s := range seams {
		if _, ok := sources[s.file]; ok {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, s.file)) //nolint:gosec // our own source
		if err != nil {
			return nil, err
		}
		sources[s.file] = string(b)
	}
	all := slices.Clone(seams)
	for file := range sources {
		all = append(all, seam{file, "\nimport (\n", "\nimport (\n\t\"" + module + "/internal/failpoint\"\n"})
	}
	for _, s := range all {
		if n := strings.Count(sources[s.file], s.text); n != 1 {
			return nil, fmt.Errorf("%s has %q %d times, want once: adapt the seams in lab/internal/chaos/build.go", s.file, s.text, n)
		}
		sources[s.file] = strings.Replace(sources[s.file], s.text, s.with, 1)
	}
	return sources, nil
}
