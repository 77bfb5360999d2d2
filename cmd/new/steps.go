package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"example.com/servicekit/naming"
)

// step is a part of the work that takes seconds.
type step struct {
	name string
	do   func() error
}

// inSteps does one step after the other, and prints how long each took. It stops at the
// first error.
func inSteps(stdout io.Writer, steps []step) error {
	for _, step := range steps {
		if _, err := fmt.Fprintf(stdout, "%-40s", step.name); err != nil {
			return err
		}
		start := time.Now()
		if err := step.do(); err != nil {
			fmt.Fprintln(stdout)
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(stdout, "%.1f s\n", time.Since(start).Seconds())
	}
	return nil
}

// nextSteps returns the commands that the owner of a service runs next, in its folder.
func nextSteps(dir string, commands ...string) string {
	return "Next:\n\n  cd " + naming.ForShell(dir) + "\n  " + strings.Join(commands, "\n  ") + "\n"
}
