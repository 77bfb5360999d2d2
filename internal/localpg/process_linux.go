package localpg

import "syscall"

// dieWithParent has the kernel end the child, by SIGQUIT (immediate shutdown), when our process dies. To be exact,
// when the thread dies that forked it (prctl(2), PR_SET_PDEATHSIG): so that thread must be locked to a goroutine that
// outlives the child, or the Go runtime could end it earlier.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

// memoryDir is /dev/shm if it has room for a server (about 150 MB) and more.
func memoryDir() string {
	const dir, room, writable = "/dev/shm", 300 << 20, 2
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < room || syscall.Access(dir, writable) != nil {
		return tempDir
	}
	return dir
}
