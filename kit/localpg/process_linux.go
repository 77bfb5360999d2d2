package localpg

import "syscall"

// dieWithParent makes the kernel send SIGQUIT (immediate shutdown) to the child when the thread that started it ends
// (prctl(2), PR_SET_PDEATHSIG). That thread must be locked to a goroutine that outlives the child. Otherwise the Go
// runtime could end the thread, and so the child, too early.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

// memoryDir returns /dev/shm if it has room for a server (about 150 MB) and a reserve, else tempDir.
func memoryDir() string {
	const dir, room, writable = "/dev/shm", 300 << 20, 2
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < room || syscall.Access(dir, writable) != nil {
		return tempDir
	}
	return dir
}
