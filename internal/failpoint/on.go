//go:build chaos

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// order is a signal that a process sends to itself at a point.
type order struct {
	point  string
	signal syscall.Signal
	left   int // hits until it is due
}

var (
	mu     sync.Mutex
	orders = fromEnvironment() // guarded by mu
	filed  *order              // guarded by mu: the order in the file, when it was last read
	text   string              // guarded by mu: the content of the file then
	file   = os.Getenv("FAILPOINT_FILE")
)

// Hit marks a point in the code, and carries out the orders that are due there.
func Hit(point string) {
	mu.Lock()
	defer mu.Unlock()
	readFile()
	for _, o := range orders {
		if o.due(point) {
			send(o.signal)
		}
	}
	if filed != nil && filed.due(point) {
		o := *filed
		filed, text = nil, ""
		_ = os.Remove(file) // the writer of the file waits for that
		send(o.signal)
	}
}

// due counts a hit, and reports whether the order is due now.
func (o *order) due(point string) bool {
	if o.point != point || o.left == 0 {
		return false
	}
	o.left--
	return o.left == 0
}

// send sends a signal to this process. After SIGSTOP it returns when the process is
// continued.
func send(signal syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), signal); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint:", err)
	}
}

func readFile() {
	if file == "" {
		return
	}
	b, err := os.ReadFile(file) //nolint:gosec // the environment says which
	if err != nil || string(b) == "" {
		filed, text = nil, ""
		return
	}
	if string(b) == text {
		return
	}
	text = string(b)
	o, err := parse(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAILPOINT_FILE:", err)
	}
	filed = o
}

func fromEnvironment() []*order {
	var all []*order
	for one := range strings.SplitSeq(os.Getenv("FAILPOINT"), ",") {
		if one == "" {
			continue
		}
		o, err := parse(one)
		if err != nil {
			fmt.Fprintln(os.Stderr, "FAILPOINT:", err)
			os.Exit(1) //nolint:forbidigo // a test whose order is ignored would prove nothing
		}
		all = append(all, o)
	}
	return all
}

// parse reads an order such as outbox/claimed=kill@3. Without @ it means the first hit.
func parse(text string) (*order, error) {
	point, rest, found := strings.Cut(strings.TrimSpace(text), "=")
	action, count, counted := strings.Cut(rest, "@")
	o := &order{point: point, left: 1}
	if counted {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: after @ comes the number of the hit, from 1", text)
		}
		o.left = n
	}
	switch action {
	case "kill":
		o.signal = syscall.SIGKILL
	case "stop":
		o.signal = syscall.SIGSTOP
	default:
		found = false
	}
	known := false
	for _, p := range Points() {
		known = known || p == point
	}
	if !found || !known {
		return nil, fmt.Errorf("%q: want POINT=kill@N or POINT=stop@N, with one of the points %v", text, Points())
	}
	return o, nil
}
