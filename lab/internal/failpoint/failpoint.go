// Package failpoint has the named points at which the fault lab lets a process die or
// freeze. Each point is between two steps that a crash must be able to separate.
//
// The service has no such points: package chaos adds this package and the calls of [Hit] to
// its own build. There a process obeys orders such as outbox/claimed=kill@3: at the third
// hit of that point it sends itself SIGKILL. The action stop sends SIGSTOP instead, and
// another process must continue it with SIGCONT. The file that FAILPOINT_FILE names has one
// order at a time, and is removed when the order is carried out.
//
// The points are:
//
//	outbox/claimed      a lane is leased, nothing is published
//	outbox/handed       the broker has the events of a pass, or will have them, and no answer was read
//	outbox/published    all answers were read, nothing is settled
//	consumer/committed  a batch is committed, nothing is acknowledged
//
// There is also a wall clock that is wrong by the duration in the file that
// FAILPOINT_CLOCK_FILE names.
package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The points that the code hits.
const (
	OutboxClaimed     = "outbox/claimed"
	OutboxHanded      = "outbox/handed"
	OutboxPublished   = "outbox/published"
	ConsumerCommitted = "consumer/committed"
)

// Points returns all points.
func Points() []string {
	return []string{OutboxClaimed, OutboxHanded, OutboxPublished, ConsumerCommitted}
}

// order is a signal that a process sends to itself at a point.
type order struct {
	point  string
	signal syscall.Signal
	left   int // hits until it is due
}

var (
	file    = os.Getenv("FAILPOINT_FILE")
	mu      sync.Mutex
	current order  // guarded by mu: the order in the file, when it was last read
	text    string // guarded by mu: the content of the file then
)

// Hit marks a point in the code, and carries out the order that is due there.
func Hit(point string) {
	mu.Lock()
	defer mu.Unlock()
	readFile()
	if current.point != point {
		return
	}
	if current.left--; current.left > 0 {
		return
	}
	due := current.signal
	current, text = order{}, ""
	_ = os.Remove(file) // the writer of the file waits for that
	// After SIGSTOP this returns when the process is continued.
	if err := syscall.Kill(os.Getpid(), due); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint:", err)
	}
}

// readFile reads the order in the file, if the file has changed.
func readFile() {
	b, _ := os.ReadFile(file) //nolint:gosec // the environment says which; without the file there is no order
	if string(b) == text {
		return
	}
	current, text = order{}, string(b)
	if text == "" {
		return
	}
	o, err := parse(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAILPOINT_FILE:", err)
	}
	current = o
}

// parse reads an order such as outbox/claimed=kill@3. Without @ it means the first hit.
func parse(text string) (order, error) {
	point, rest, _ := strings.Cut(strings.TrimSpace(text), "=")
	action, count, counted := strings.Cut(rest, "@")
	left := 1
	if counted {
		left, _ = strconv.Atoi(count) // 0 if it is no number
	}
	signal, known := map[string]syscall.Signal{"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP}[action]
	if !known || left < 1 || !slices.Contains(Points(), point) {
		return order{}, fmt.Errorf("%q: want POINT=kill@N or POINT=stop@N, with N from 1 and one of the points %v", text, Points())
	}
	return order{point, signal, left}, nil
}
