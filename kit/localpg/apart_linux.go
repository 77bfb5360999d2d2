package localpg

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Apart gives one half of the CPUs to the server, and the other half to this process and its later children, until
// undo is called. So a benchmark can run as if the database had its own machine. Apart returns an error if there
// is one CPU only.
func (s *Server) Apart() (undo func() error, err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	var halves [2]unix.CPUSet
	for cpu, n := 0, 0; n < all.Count(); cpu++ {
		if all.IsSet(cpu) {
			halves[n*2/all.Count()].Set(cpu)
			n++
		}
	}
	if halves[0].Count() == 0 {
		return nil, errors.New("one CPU cannot be divided")
	}
	place := func(server, client *unix.CPUSet) error {
		return errors.Join(placeTasks(s.cmd.Process.Pid, server), placeChildren(s.cmd.Process.Pid, server), placeTasks(os.Getpid(), client))
	}
	undo = func() error { return place(&all, &all) }
	if err := place(&halves[0], &halves[1]); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// placeTasks moves all threads of a process to cpus. Threads and processes that they start later inherit this.
func placeTasks(pid int, cpus *unix.CPUSet) error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		if err := unix.SchedSetaffinity(id, cpus); err != nil && !errors.Is(err, unix.ESRCH) { // the thread has just ended
			return fmt.Errorf("set CPU affinity: %w", err)
		}
	}
	return nil
}

// placeChildren moves the child processes of a process to cpus.
func placeChildren(parent int, cpus *unix.CPUSet) error {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has just ended
		}
		// The line is "pid (name) state ppid …", and the name may contain anything: proc_pid_stat(5).
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if fields[1] != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		if err := placeTasks(pid, cpus); err != nil {
			return err
		}
	}
	return nil
}
