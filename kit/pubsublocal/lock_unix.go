//go:build unix

package pubsublocal

import (
	"errors"
	"os"
	"syscall"
)

// lock locks a file. The system unlocks it when it is closed.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.New("another server uses it: stop that one, or give this one a folder of its own")
	}
	return err
}
