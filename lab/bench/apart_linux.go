package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// divideCPUs gives one half of the CPUs to a server and its processes, and the other half to this process and its later
// children, until undo is called: as if the database had its own machine. It returns an error if there is one CPU
// only.
func divideCPUs(server int) (undo func() error, err error) {
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
	place := func(servers, client *unix.CPUSet) error {
		err := errors.Join(placeTasks(server, servers), placeTasks(os.Getpid(), client))
		children, failure := childrenOf(server)
		for child := range children {
			err = errors.Join(err, placeTasks(child, servers))
		}
		return errors.Join(err, failure)
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
