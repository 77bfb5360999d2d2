package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"
)

// results writes the measurements in the format of Go benchmarks, one line per turn, for benchstat
// and ./report.
type results struct {
	out      *benchfmt.Writer
	progress io.Writer
	config   []benchfmt.Config
	begun    time.Time
}

func newResults(out, progress io.Writer, profile, postgres, commit string) *results {
	config := func(key, value string) benchfmt.Config {
		return benchfmt.Config{Key: key, Value: []byte(value), File: true}
	}
	return &results{out: benchfmt.NewWriter(out), progress: progress, begun: time.Now(), config: []benchfmt.Config{
		config("goos", runtime.GOOS), config("goarch", runtime.GOARCH), config("cores", fmt.Sprint(runtime.NumCPU())),
		config("go", runtime.Version()), config("postgres", postgres), config("profile", profile), config("date", time.Now().Format(time.DateOnly)),
		config("commit", commit),
	}}
}

// present returns the version from git, because go run adds no version control information.
func present(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// value is a number with a unit.
type value struct {
	unit  string
	value float64
}

// write writes the result of a turn with n operations.
func (r *results) write(name string, n int, values ...value) error {
	result := &benchfmt.Result{Config: r.config, Name: benchfmt.Name(name), Iters: n}
	for _, v := range values {
		result.Values = append(result.Values, benchfmt.Value{Value: v.value, Unit: v.unit})
	}
	if err := r.out.Write(result); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	line := []string{fmt.Sprintf("%4.0fs %-75s", time.Since(r.begun).Seconds(), name)}
	for _, v := range values {
		line = append(line, fmt.Sprintf("%.4g %s", v.value, v.unit))
	}
	_, err := fmt.Fprintln(r.progress, strings.Join(line, "  "))
	return err
}
