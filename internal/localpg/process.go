package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// tempDir and not os.TempDir: the path of a socket has at most 103 bytes, and another user may have to enter it.
const tempDir = "/tmp"

// varDir is where root keeps what the server's user must reach; root's cache folder is closed to others.
// A variable for the tests.
var varDir = "/var/lib/localpg"

// serverUser is who runs the server: we, or somebody else if we are root.
func serverUser() *syscall.Credential {
	if os.Geteuid() != 0 {
		// NoSetGroups: only root may, and it is not needed to stay who we are.
		return &syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid()), NoSetGroups: true}
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32) // numbers on every Unix
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}

// command prepares a program that runs as user in dir. It enters dir and opens the program as that user, so it fails
// where user may not go. It sees nothing of our environment (PGPORT, LC_ALL), and as a process group of its own no
// Ctrl-C: we stop it when our work is done. It must be started from a locked thread.
func command(ctx context.Context, user *syscall.Credential, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user, Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	return cmd
}

// command prepares a program that works on our folders, one of PostgreSQL unless name is a path. It inherits their locks.
func (s *Server) command(ctx context.Context, log *os.File, name string, args ...string) *exec.Cmd {
	if !filepath.IsAbs(name) {
		name = filepath.Join(s.programs, name)
	}
	cmd := command(ctx, s.user, "/", name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = s.locks
	return cmd
}

// keep starts a program that stays, and returns a channel that is closed when it has ended.
func keep(cmd *exec.Cmd) (<-chan struct{}, error) {
	done, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // as long as the program lives; see dieWithParent
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in the log
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return done, nil
}

func (s *Server) chown(dir string) error { return os.Chown(dir, int(s.user.Uid), int(s.user.Gid)) }

// makeRun makes and locks the temporary folder, named after our pid, and removes those of dead processes.
func (s *Server) makeRun(ctx context.Context, kept bool) error {
	root := memoryDir()
	s.sweep(ctx, root)
	s.sweep(ctx, tempDir)
	if kept {
		root = tempDir
	}
	run, err := os.MkdirTemp(root, fmt.Sprintf("localpg-%d-", os.Getpid()))
	if err != nil {
		return err
	}
	s.run = run
	lock, err := lockFolder(ctx, run)
	if err != nil {
		return err
	}
	s.locks = append(s.locks, lock)
	return s.chown(run)
}

// sweep removes the temporary folders of dead processes. The pid may live in another container that shares root,
// so the lock must be free too; and other users' folders are not ours to touch.
func (s *Server) sweep(ctx context.Context, root string) {
	ctx, cancel := context.WithTimeout(ctx, 0)
	defer cancel()
	found, _ := filepath.Glob(filepath.Join(root, "localpg-*"))
	for _, dir := range found {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "localpg-%d-", &pid); err != nil || pid <= 0 {
			continue
		}
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || syscall.Kill(pid, 0) != syscall.ESRCH {
			continue
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != s.user.Uid && int(owner) != os.Geteuid() {
			continue
		}
		if lock, err := lockFolder(ctx, dir); err == nil {
			_ = os.RemoveAll(dir) // else the next Start will
			lock.Close()
		}
	}
}

// lockFolder takes the lock of dir, and waits for it until ctx is done. The server inherits the lock: it is free when
// the last process that works on dir has ended, however that came about. A pid in a file could not tell.
func lockFolder(ctx context.Context, dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			lock.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			lock.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
