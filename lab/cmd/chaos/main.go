// Command chaos runs the fault lab: the real service as several processes, under load, while faults are
// injected. A checker then reports whether the service kept every guarantee.
//
//	go run -C lab ./cmd/chaos --profile quick
//
// It exits with 1 if a guarantee was broken, the recovery was too slow, or the run was too short to tell.
// --help lists its flags. Package internal/chaos documents the details.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.com/servicekit/tool"
	"example.com/videocatalog/lab/internal/chaos"
	"example.com/videocatalog/lab/internal/child"
	"example.com/videocatalog/lab/kafka"
)

const usage = `chaos runs the service as several processes, injects faults, and checks every guarantee.

  --profile quick|long  quick: each fault once, in two minutes. long: an hour of faults, and the recovery must meet
                        its targets. Default: quick.
  --seed N              decides the order of faults, their targets, pauses and commands. Default: random, and printed.
  --duration D          how long faults are injected, at least until each was injected once. Default: that of the profile.
  --rate N              commands per second. Default: that of the profile.
  --out DIR             the directory for timeline.jsonl, report.json and a log per process. If a guarantee was broken,
                        also what clients, watchers and a subscription received, and the database. Default: chaos-N
                        and the time, in the directory for temporary files.
  --broker NAME         pubsub, kafka (a real one, or kfake if this machine lacks Java or Maven) or kfake. Default: pubsub.
  --relay NAME          lanes or wal, in which one publisher reads the log of PostgreSQL. Default: lanes.
  --older COMMIT        the commit that a rollback deploys. Default: the newest tag before HEAD, or else the present
                        code on a newer schema.
`

func main() {
	if child.Main(os.Stderr, map[string]func([]string) error{kafka.Role: kafka.Fake}) {
		return
	}
	tool.Main("chaos", usage, run)
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	start := time.Now()
	cfg.Progress = func(line string) {
		fmt.Fprintf(stdout, "%6.1f s  %s\n", time.Since(start).Seconds(), line)
	}
	fmt.Fprintf(stdout, "seed %d, what the run leaves is in %s\n", cfg.Seed, cfg.Out)
	report, err := chaos.Run(ctx, cfg)
	cfg.Older = report.Older
	if report.Out != "" { // the run was finished
		err = errors.Join(err, report.Print(stdout))
	}
	if err != nil {
		return err
	}
	switch {
	case len(report.Counts) == 0 && !report.OK():
		return fmt.Errorf("the run has not checked everything: %s; see %s", strings.Join(report.Unchecked(), ", "), cfg.Out)
	case !report.OK():
		return fmt.Errorf("promises were broken; see %s; again with %s", cfg.Out, again(cfg))
	case report.Slow():
		return fmt.Errorf("the service recovered too slowly %d times; see %s; again with %s", len(report.Misses), cfg.Out, again(cfg))
	}
	return nil
}

// again returns the flags that repeat a run.
func again(cfg chaos.Config) string {
	profile, older := "quick", ""
	if cfg.Long {
		profile = "long"
	}
	if cfg.Older != "" {
		older = " --older " + cfg.Older
	}
	return fmt.Sprintf("--profile %s --broker %s --relay %s --seed %d --duration %s --rate %g%s", profile, cfg.Broker, cfg.Relay, cfg.Seed, cfg.Duration, cfg.Rate, older)
}

// parse reads the flags.
func parse(args []string) (cfg chaos.Config, err error) {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	profile := flags.String("profile", "quick", "")
	seed := flags.String("seed", "", "")
	flags.DurationVar(&cfg.Duration, "duration", 0, "")
	flags.Float64Var(&cfg.Rate, "rate", 0, "")
	flags.StringVar(&cfg.Out, "out", "", "")
	flags.StringVar(&cfg.Older, "older", "", "")
	flags.StringVar(&cfg.Broker, "broker", chaos.BrokerPubSub, "")
	flags.StringVar(&cfg.Relay, "relay", chaos.RelayLanes, "")
	words, err := tool.Parse(flags, args)
	if err != nil {
		return cfg, err
	}
	byDefault := chaos.Config{Duration: 75 * time.Second, Rate: 200, Clients: 16}
	switch *profile {
	case "quick":
	case "long":
		byDefault = chaos.Config{Duration: time.Hour, Rate: 600, Clients: 48, Long: true}
	default:
		return cfg, fmt.Errorf("--profile is %q: it may be quick or long", *profile)
	}
	cfg.Long, cfg.Clients = byDefault.Long, byDefault.Clients
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["duration"] {
		cfg.Duration = byDefault.Duration
	}
	if !given["rate"] {
		cfg.Rate = byDefault.Rate
	}
	switch {
	case len(words) > 0:
		return cfg, fmt.Errorf("unknown argument %q: try --help", words[0])
	case cfg.Duration <= 0:
		return cfg, errors.New("--duration must be more than 0, such as 10m")
	case cfg.Broker != chaos.BrokerPubSub && cfg.Broker != chaos.BrokerKafka && cfg.Broker != chaos.BrokerFake:
		return cfg, fmt.Errorf("--broker is %q: it may be pubsub, kafka or kfake", cfg.Broker)
	case cfg.Relay != chaos.RelayLanes && cfg.Relay != chaos.RelayWAL:
		return cfg, fmt.Errorf("--relay is %q: it may be lanes or wal", cfg.Relay)
	case cfg.Rate < 1:
		return cfg, errors.New("--rate must be at least 1, in commands per second")
	}
	cfg.Seed = rand.Uint64N(1_000_000)
	if *seed != "" {
		if cfg.Seed, err = strconv.ParseUint(*seed, 10, 64); err != nil {
			return cfg, fmt.Errorf("--seed is %q: it must be a whole number from 0", *seed)
		}
	}
	if cfg.Out == "" {
		cfg.Out = filepath.Join(os.TempDir(), fmt.Sprintf("chaos-%d-%s", cfg.Seed, time.Now().Format("0102-150405")))
	}
	return cfg, nil
}
