package chaos

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/videocatalog/lab/internal/failpoint"
)

// script returns a process that says that it has started and then runs a script.
// After SIGTERM it exits with a code.
func script(t *testing.T, then string, code int) (p *process, problems func() []string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "server")
	text := fmt.Sprintf("#!/bin/sh\ntrap 'exit %d' TERM\n", code) + `echo '{"message":"server: started","addr":"[::]:4711"}' >&2` + "\n" + then + "\n"
	if err := os.WriteFile(binary, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var found []string
	p = &process{
		name: "publisher-1", dir: t.TempDir(), binary: binary, timeline: &timeline{to: new(bytes.Buffer)},
		problem: func(rule Rule, format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			found = append(found, string(rule)+": "+fmt.Sprintf(format, args...))
		},
	}
	return p, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return found
	}
}

const (
	waits = "while :; do sleep 0.01; done"
	until = `while [ ! -e "$0.end" ]; do sleep 0.01; done; exit ` // a code follows
)

// end lets a process that runs until exit by itself.
func end(t *testing.T, p *process, e *execution) {
	if err := os.WriteFile(p.binary+".end", nil, 0o600); err != nil {
		t.Error(err)
	}
	<-e.done
}

// An end of a process that the lab did not expect is a problem. So is a stop
// with an error.
func TestProcessEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, then string
		code       int
		end        func(t *testing.T, p *process)
		want       Rule // empty: no problem
	}{
		{"stopped", waits, 0, func(_ *testing.T, p *process) { p.stop() }, ""},
		{"killed", waits, 0, func(_ *testing.T, p *process) { p.kill() }, ""},
		{"frozen and killed", waits, 0, func(_ *testing.T, p *process) { p.signal(syscall.SIGSTOP); p.kill() }, ""},
		{"stopped with an error", waits, 3, func(_ *testing.T, p *process) { p.stop() }, StopFailed},
		{"ended by itself", until + "0", 0, func(t *testing.T, p *process) { end(t, p, p.running()) }, ProcessEnded},
		{"condemned and killed", waits, 0, func(_ *testing.T, p *process) { p.condemn(p.running()); p.signal(syscall.SIGKILL); <-p.current.done }, ""},
		{"condemned, and ended in another way", until + "2", 0, func(t *testing.T, p *process) { e := p.running(); p.condemn(e); end(t, p, e) }, ProcessEnded},
		{"killed by somebody", waits, 0, func(_ *testing.T, p *process) { p.signal(syscall.SIGKILL); <-p.current.done }, ProcessEnded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, problems := script(t, tt.then, tt.code)
			if err := p.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, addr, ok := p.reach(); !ok || addr != "127.0.0.1:4711" {
				t.Errorf("reach() = %q, %t, want the address that the process said", addr, ok)
			}
			tt.end(t, p)
			if _, _, ok := p.reach(); ok || p.running() != nil {
				t.Errorf("it is still running, or is to be reached: %t", ok)
			}
			got := strings.Join(problems(), "\n")
			if (tt.want == "") != (got == "") || !strings.HasPrefix(got, string(tt.want)) {
				t.Errorf("problems: %q, want %q", got, tt.want)
			}
		})
	}
}

// A process that ends before it has started is started again a few times. After
// that it is an error.
func TestProcessDoesNotStart(t *testing.T) {
	t.Parallel()
	p, problems := script(t, waits, 0)
	if err := os.WriteFile(p.binary, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.start(t.Context()); err == nil || !strings.Contains(err.Error(), "publisher-1") {
		t.Errorf("start() = %v, want an error that names it", err)
	}
	if got := problems(); len(got) > 0 {
		t.Errorf("problems: %q, want none: whoever started it has the error", got)
	}
}

// A process that stops itself at a failpoint is stopped only once, even if it
// stops some time after it has removed the order.
func TestFreezeAtAPointIsOneStop(t *testing.T) {
	t.Parallel()
	p, _ := script(t, waits, 0)
	awake := p.binary + ".awake"
	text := fmt.Sprintf("#!/bin/sh\n"+`echo '{"message":"server: started","addr":"[::]:4711"}' >&2`+
		"\nwhile [ ! -e %[1]s ]; do sleep 0.01; done; rm %[1]s; sleep 0.3; kill -STOP $$; : > %[2]s; %[3]s\n", p.orders(), awake, waits)
	if err := os.WriteFile(p.binary, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	l := &lab{publishers: []*process{p}}
	var record FaultRecord
	if err := freezeAt(failpoint.OutboxClaimed)(t.Context(), l, rand.New(rand.NewPCG(1, 2)), &record); err != nil || record.Missing != "" {
		t.Fatalf("freezeAt() = %v, missing %q", err, record.Missing)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(awake); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the process stopped once more after it was woken")
		}
	}
}

// An order is carried out when the process has removed it.
func TestProcessObeysOrders(t *testing.T) {
	t.Parallel()
	p, _ := script(t, waits, 0)
	go func() {
		for {
			if b, err := os.ReadFile(p.orders()); err == nil && string(b) == "outbox/claimed=kill@2" {
				os.Remove(p.orders())
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if !p.order(t.Context(), "outbox/claimed=kill@2", 5*time.Second) {
		t.Error("order() = false, want true once it was removed")
	}
	if p.order(t.Context(), "outbox/claimed=kill@2", 50*time.Millisecond) {
		t.Error("order() = true, want false when nobody obeys")
	}
	if _, err := os.Stat(p.orders()); err == nil {
		t.Error("an order that nobody obeyed is left for later")
	}
}
