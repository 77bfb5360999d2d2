package failpoint_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"example.com/videocatalog/internal/failpoint"
)

// program hits a point three times and says each time that it lives.
const program = `package main

import (
	"fmt"

	"%MODULE%/internal/failpoint"
)

func main() {
	for range 3 {
		failpoint.Hit(failpoint.OutboxClaimed)
		fmt.Print("alive ")
	}
}
`

// build makes a program with a build tag, inside the module, because the package is internal.
func build(t *testing.T, program, tag string) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "_test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	module, err := exec.Command("go", "list", "-m").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := strings.ReplaceAll(program, "%MODULE%", strings.TrimSpace(string(module)))
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-tags", tag, "-o", binary, "./"+dir).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// A process that was ordered to stop stands still at that hit, and goes on when it
// is told to.
func TestHitStops(t *testing.T) {
	var out bytes.Buffer
	cmd := exec.Command(build(t, program, "chaos"))
	cmd.Env = append(os.Environ(), "FAILPOINT=outbox/claimed=stop@2")
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the program is not stopped: %v, status %#x", err, int(status))
	}
	if err := errors.Join(cmd.Process.Signal(syscall.SIGCONT), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "alive alive alive "; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
}

// With the tag a process dies at the hit that was ordered, and not before; without it nothing happens.
func TestHit(t *testing.T) {
	on, off := build(t, program, "chaos"), build(t, program, "other")
	file := filepath.Join(t.TempDir(), "order")
	if err := os.WriteFile(file, []byte("outbox/claimed=kill@3"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, binary, env, want string
		killed                  bool
	}{
		{"second hit", on, "FAILPOINT=outbox/claimed=kill@2", "alive ", true},
		{"first hit", on, "FAILPOINT=consumer/committed=kill,outbox/claimed=kill", "", true},
		{"other point", on, "FAILPOINT=outbox/published=kill", "alive alive alive ", false},
		{"from a file", on, "FAILPOINT_FILE=" + file, "alive alive ", true},
		{"file is used up", on, "FAILPOINT_FILE=" + file, "alive alive alive ", false},
		{"without the tag", off, "FAILPOINT=outbox/claimed=kill", "alive alive alive ", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(tt.binary)
			cmd.Env = append(os.Environ(), tt.env)
			out, err := cmd.Output()
			var exit *exec.ExitError
			killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
			if string(out) != tt.want || killed != tt.killed {
				t.Errorf("printed %q and killed is %t (%v), want %q and %t", out, killed, err, tt.want, tt.killed)
			}
		})
	}
}

// clock says what its wall clock and a new UUIDv7 are wrong by, the latter in full minutes.
const clock = `package main

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"%MODULE%/internal/failpoint"
)

func main() {
	now := time.Now()
	id, err := failpoint.JumpedID(uuid.NewV7())
	seconds, _ := id.Time().UnixTime()
	fmt.Println(failpoint.Jumped(now).Sub(now), time.Unix(seconds, 0).Sub(now).Round(time.Minute), id.Version(), err)
}
`

// The wall clock of a process, and the ids that it makes, jump by what the file says, and there and back.
func TestClockJumps(t *testing.T) {
	binary, file := build(t, clock, "chaos"), filepath.Join(t.TempDir(), "clock")
	for _, tt := range []struct{ jump, want string }{
		{"", "0s 0s VERSION_7 <nil>\n"},
		{"1h", "1h0m0s 1h0m0s VERSION_7 <nil>\n"},
		{"-720h", "-720h0m0s -720h0m0s VERSION_7 <nil>\n"},
		{"0s", "0s 0s VERSION_7 <nil>\n"},
	} {
		if tt.jump != "" {
			if err := os.WriteFile(file, []byte(tt.jump+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(binary)
		cmd.Env = append(os.Environ(), "FAILPOINT_CLOCK_FILE="+file)
		if got, err := cmd.Output(); string(got) != tt.want || err != nil {
			t.Errorf("jump %q: got %q, %v, want %q", tt.jump, got, err, tt.want)
		}
	}
}

// An order that cannot be understood ends the process, and says what is wrong.
func TestWrongOrder(t *testing.T) {
	on := build(t, program, "chaos")
	for _, order := range []string{"outbox/claimed", "outbox/claimed=explode", "outbox/claimed=kill@0", "outbox/nowhere=kill"} {
		cmd := exec.Command(on)
		cmd.Env = append(os.Environ(), "FAILPOINT="+order)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err == nil || !strings.Contains(stderr.String(), order) {
			t.Errorf("FAILPOINT=%s: %v, %q, want an error that names it", order, err, stderr.String())
		}
	}
}

// Every point is hit in the code exactly once, by its name.
func TestPointsAreHit(t *testing.T) {
	names := map[string]string{
		failpoint.OutboxClaimed: "OutboxClaimed", failpoint.OutboxHanded: "OutboxHanded",
		failpoint.OutboxPublished: "OutboxPublished", failpoint.ConsumerCommitted: "ConsumerCommitted",
	}
	for _, point := range failpoint.Points() {
		hits := 0
		for _, pattern := range []string{"../outbox/*.go", "../consumer/*.go"} {
			files, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range files {
				b, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				hits += strings.Count(string(b), "failpoint.Hit(failpoint."+names[point]+")")
			}
		}
		if hits != 1 {
			t.Errorf("%s is hit in %d places, want 1", point, hits)
		}
	}
}
