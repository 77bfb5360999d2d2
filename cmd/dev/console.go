package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// startConsole starts the console beside the server, if the service has that option.
func (s *stack) startConsole(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.root, "options", "console")); err != nil {
		return nil //nolint:nilerr // it has not
	}
	s.screen.begin("starting the console")
	addr, err := freeAddr(ctx)
	if err != nil {
		return err
	}
	s.watchers = append(s.watchers, [2]string{"console", "http://" + addr + "/"})
	return s.watch(ctx, "console", "http://"+addr+"/static/icon.svg", s.environment(), s.binary(), "console", "--addr", addr)
}

// watch starts a program beside the server, and waits until it is ready at an address. Its output goes to a log file.
func (s *stack) watch(ctx context.Context, name, address string, environ []string, program string, args ...string) error {
	path := filepath.Join(s.state, strings.ToLower(name)+".log")
	log, err := os.Create(path) //nolint:gosec // in the folder that the user has chosen
	if err != nil {
		return err
	}
	s.atStop(log.Close)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	cmd := command(life, syscall.SIGTERM, stopTimeout, program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(slices.Clone(s.environ), environ...), log, log
	watcher, err := startChild(cmd, end)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	alive, ended := context.WithCancel(ctx)
	go func() {
		<-watcher.done
		ended()
	}()
	s.atStop(func() error {
		_ = watcher.stop(s.killed) // its data does not matter
		<-alive.Done()             // waits for the goroutine above
		return nil
	})
	if err := awaitReady(alive, address, readyTimeout); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if alive.Err() != nil {
			err = fmt.Errorf("ended by itself (%s)", watcher.cmd.ProcessState)
		}
		return fmt.Errorf("%s %w; its log, %s, ends:%s", name, err, s.short(path), tail(path))
	}
	s.screen.done(name, "ready, pid "+strconv.Itoa(watcher.cmd.Process.Pid))
	return nil
}
