// Command bench compares the service with its peers: on one machine, on one PostgreSQL, with the same payloads, in
// turns. It writes a line per turn in the format of Go benchmarks. ./report makes tables of the lines.
//
//	go run . -profile quick -out results.txt
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"example.com/servicekit/tool"
)

// profile says how much is measured.
type profile struct {
	turn       time.Duration // approximate duration of a turn
	rounds     int           // turns of each peer; fewer than six do not distinguish a difference from chance
	maxEvents  int           // limit of a backlog
	aggregates int
	latency    time.Duration // duration of a steady load
}

var profiles = map[string]profile{
	"tiny":  {turn: 50 * time.Millisecond, rounds: 1, maxEvents: 2000, aggregates: 100, latency: 300 * time.Millisecond},
	"quick": {turn: time.Second, rounds: 6, maxEvents: 300_000, aggregates: 1000, latency: 2 * time.Second},
	"long":  {turn: 5 * time.Second, rounds: 6, maxEvents: 500_000, aggregates: 1000, latency: 20 * time.Second},
}

func main() { tool.Main("bench", "", run) }

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	name := flags.String("profile", "quick", "how much to measure: tiny, quick or long")
	only := flags.String("run", "", "measure only what matches this regular expression: drain, latency, chain, write, project, consume")
	file := flags.String("out", "", "file that the results are written to; default: the standard output")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p, ok := profiles[*name]
	if !ok {
		return fmt.Errorf("-profile %q: must be tiny, quick or long", *name)
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	commit := present(ctx) // before the results are overwritten: they are in git
	out := stdout
	if *file != "" {
		f, err := os.Create(*file)
		if err != nil {
			return fmt.Errorf("-out: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = f
	}
	m, err := startMachine(ctx)
	if err != nil {
		return err
	}
	defer m.stop()
	s, err := startSinks()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.server.Close()) }()
	var stopKafkas func()
	if s.kafkas, stopKafkas, err = startKafkas(ctx); err != nil {
		return err
	}
	defer stopKafkas()
	var version string
	if err := m.admin.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	r := newResults(out, os.Stderr, *name, version, commit)
	peers, err := makePeers(ctx, m)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name    string
		measure func() error
	}{
		{"drain", func() error { return drains(ctx, m, s, peers, p, r) }},
		{"latency", func() error { return latencies(ctx, m, s, peers, p, r) }},
		{"chain", func() error { return chain(ctx, m, p, r) }},
		{"write", func() error { return writes(ctx, m, p, r) }},
		{"project", func() error { return projects(ctx, m, p, r) }},
		{"consume", func() error { return consumes(ctx, m, s.kafkas, p, r) }},
	} {
		if !match.MatchString(part.name) {
			continue
		}
		if err := part.measure(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
