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

// tempDir is not os.TempDir: the path of a socket has at most 103 bytes, and the server's user must be able to enter
// it.
const tempDir = "/tmp"

// varDir is root's folder for files that the server's user must reach, because root's cache folder is closed to
// others. Tests change it.
var varDir = "/var/lib/localpg"

// serverUser returns the user that runs the server: our own user, or postgres or nobody if we are root.
func serverUser() *syscall.Credential {
	if os.Geteuid() != 0 {
		// NoSetGroups: only root may set groups, and our own need no change.
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

// command prepares a program that runs as user in dir, in a process group of its own. It fails if user cannot enter
// dir or run the program. The program does not inherit our environment (PGPORT, LC_ALL) and does not get our Ctrl-C.
// The caller must start it from a locked thread.
func command(ctx context.Context, user *syscall.Credential, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user, Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	return cmd
}

// command prepares a program that works in the server's folders and inherits their locks. A relative name is a
// program of PostgreSQL.
func (s *Server) command(ctx context.Context, log *os.File, name string, args ...string) *exec.Cmd {
	if !filepath.IsAbs(name) {
		name = filepath.Join(s.programs, name)
	}
	cmd := command(ctx, s.user, "/", name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = s.locks
	return cmd
}

// keep starts a long-running program, and returns a channel that is closed when it has ended.
func keep(cmd *exec.Cmd) (<-chan struct{}, error) {
	done, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // while the program runs; see dieWithParent
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its log says how it ended
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return done, nil
}

func (s *Server) chown(dir string) error { return os.Chown(dir, int(s.user.Uid), int(s.user.Gid)) }

// makeRun creates and locks the temporary folder, named after our pid. It first removes the folders of dead
// processes.
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

// sweep removes the temporary folders of dead processes. A pid may belong to another container that shares root, so
// sweep also requires that the lock is free. It ignores folders of other users.
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
			_ = os.RemoveAll(dir) // on error the next Start removes it
			lock.Close()
		}
	}
}

// lockFolder locks dir, and waits for the lock until ctx is done. The server inherits the lock, so it becomes free
// when the last process that uses dir has ended, even after a crash. A file with a pid could not show that.
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
