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
)

// program hits a point three times and says each time that it lives.
const program = `package main

import (
	"fmt"

	"example.com/videocatalog/lab/internal/failpoint"
)

func main() {
	for range 3 {
		failpoint.Hit(failpoint.OutboxClaimed)
		fmt.Print("alive ")
	}
}
`

// build makes a program, inside the module, because the package is internal.
func build(t *testing.T, program string) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "_test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-o", binary, "./"+dir).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// ordered returns a program with an order, and the file of the order.
func ordered(t *testing.T, binary, order string) (cmd *exec.Cmd, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "order")
	if err := os.WriteFile(file, []byte(order), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(binary)
	cmd.Env = append(os.Environ(), "FAILPOINT_FILE="+file)
	return cmd, file
}

// A process that was ordered to stop stands still at that hit, and goes on when it
// is told to.
func TestHitStops(t *testing.T) {
	var out bytes.Buffer
	cmd, _ := ordered(t, build(t, program), "outbox/claimed=stop@2")
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

// A process dies at the hit that was ordered, and not before. Then the order is removed.
func TestHit(t *testing.T) {
	binary := build(t, program)
	for _, tt := range []struct {
		name, order, want string
		killed            bool
	}{
		{"first hit", "outbox/claimed=kill", "", true},
		{"third hit", "outbox/claimed=kill@3\n", "alive alive ", true},
		{"later", "outbox/claimed=kill@4", "alive alive alive ", false},
		{"other point", "outbox/published=kill", "alive alive alive ", false},
		{"no order", "", "alive alive alive ", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd, file := ordered(t, binary, tt.order)
			out, err := cmd.Output()
			var exit *exec.ExitError
			killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
			if string(out) != tt.want || killed != tt.killed {
				t.Errorf("printed %q and killed is %t (%v), want %q and %t", out, killed, err, tt.want, tt.killed)
			}
			if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) != tt.killed {
				t.Errorf("the file of the order: %v, and killed is %t", err, killed)
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

	"example.com/videocatalog/lab/internal/failpoint"
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
	binary, file := build(t, clock), filepath.Join(t.TempDir(), "clock")
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

// An order that cannot be understood is reported, and not carried out.
func TestWrongOrder(t *testing.T) {
	binary := build(t, program)
	for _, order := range []string{"outbox/claimed", "outbox/claimed=explode", "outbox/claimed=kill@0", "outbox/claimed=kill@x", "outbox/nowhere=kill"} {
		cmd, _ := ordered(t, binary, order)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil || strings.Count(stderr.String(), `"`+order+`"`) != 1 {
			t.Errorf("order %s: %v, %q, want one message that names it", order, err, stderr.String())
		}
	}
}
