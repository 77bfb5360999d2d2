package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// inImage runs the server in a chroot of the image, as the image's user. Without root, that needs a user namespace. If
// the system forbids one, the test fails.
func inImage(t *testing.T, root string, env []string, args ...string) (string, error) {
	t.Helper()
	// The user needs access to all directories above root.
	for dir := root; dir != filepath.Dir(dir) && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatalf("open %s: %v", dir, err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/server", args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532}
	} else {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
