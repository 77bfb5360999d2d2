package localpg

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A server ends with its owner, even one that is killed, and the next Start removes what it left.
func TestServerDiesWithOwner(t *testing.T) {
	deep(t)
	t.Parallel()
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), child+"=1")
	owner.Stderr = os.Stderr
	stdout, err := owner.StdoutPipe()
	must(t, err)
	must(t, owner.Start())
	run, readErr := bufio.NewReader(stdout).ReadString('\n')
	run = strings.TrimSpace(run)

	s := &Server{user: serverUser()}
	s.sweep(t.Context(), memoryDir())
	if readErr != nil || !exists(run) {
		t.Errorf("folder of the living owner = %q, %v: not there", run, readErr)
	}
	must(t, owner.Process.Kill())
	_ = owner.Wait()
	// The folder can be swept once no process of the server holds its lock.
	for deadline := time.Now().Add(10 * time.Second); exists(run); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s is in use 10 s after its owner was killed", run)
		}
		s.sweep(t.Context(), memoryDir())
	}
}
