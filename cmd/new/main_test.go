package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const isNew = "NEW_TEST_IS_NEW" // in the environment: this test binary is cmd/new

// Without git, this command cannot make a service. Its tests are then skipped, and go test passes.
func TestMain(m *testing.M) {
	if os.Getenv(isNew) != "" {
		main()
		return
	}
	if _, err := exec.LookPath("git"); err != nil {
		fmt.Println("cmd/new is not tested: git is not installed")
		return
	}
	m.Run()
}

// Ctrl-C at a question ends the command at once.
func TestInterruptedQuestion(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(t, err)
	defer terminal.Close()
	repository := t.TempDir()
	git(t, repository, "init", "--quiet")
	git(t, repository, "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--allow-empty", "--message", "template")
	must(t, os.MkdirAll(repository+"/cmd/new", 0o700))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "orders")
	cmd.Dir, cmd.Stdin, cmd.Env = repository, terminal, append(os.Environ(), isNew+"=1")
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(t, err)
	if asked, err := bufio.NewReader(stdout).ReadString('['); !strings.Contains(asked, "module path") {
		t.Errorf("it asks %q, %v, want the path of the module", asked, err)
	}
	must(t, cmd.Process.Signal(os.Interrupt))
	err = cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v, want the signal", err)
	}
	if _, err := os.Stat(repository + "/orders"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
