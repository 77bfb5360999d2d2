// Package chaos is the fault lab. It runs the real service as several processes on a real PostgreSQL and a
// strict Pub/Sub. It sends commands, injects faults of every kind, and checks that the service kept its
// guarantees.
//
// [Run] builds cmd/server with the failpoints of package failpoint, and an older commit without them. It starts
// two processes with the role api, three publishers, one of which also has the role api, and two projectors.
// Each process has its own proxy to PostgreSQL. All share one proxy to the broker. Clients send commands on a few
// hundred videos over gRPC and REST, and watchers follow the catalog. Meanwhile Run injects the faults of the
// function kinds, which include the actions of operators. At the end it removes all faults, waits until all
// events are processed, and calls [Check].
//
// The checker shares no code with the service, only the contract in api/proto. It has the results that clients
// received, its own subscription, its own SQL, and its own copy of every event, because purges erase events. It is
// tested with histories that are wrong in one place.
//
// # What it guarantees
//
// The seed decides the order of the faults, their targets and times, and the commands of each client. It
// cannot decide how the operating system schedules the processes, so a second run with the same seed is
// similar, but not equal.
//
// The directory of the run has timeline.jsonl, the log of each process, and report.json. If the run failed, it
// also has the results of clients (history.jsonl) and what they read (reads.jsonl), the messages of the topic
// and when the broker accepted them (heard.jsonl), the acks (acks.jsonl), the copies of watchers
// (copies.jsonl), and the database.
//
// # What it does not do
//
// It does not set the clock of PostgreSQL, which all leases use: lab/engine/pg simulates a wrong one. In
// its own build of the service it sets only the clock of events.
// Processes crash, but not machines, so PostgreSQL runs without fsync. No disk becomes full: a trigger raises
// the error of a full disk.
package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Config configures a run.
type Config struct {
	Seed uint64
	// Duration is how long faults are injected. Each kind is injected at least once. While there is time,
	// all are injected again in another order.
	Duration time.Duration
	// Long adds the faults that take about a minute.
	Long bool
	// Rate is the number of commands per second, from all Clients together.
	Rate    float64
	Clients int
	// Out is the directory for the files of the run. Run creates it.
	Out string
	// Older is the commit that a rollback deploys, in any form that git accepts. Empty: the newest tag
	// before HEAD. If there is no tag: the present code, which then runs on a newer schema.
	Older string
	// Broker is the broker of the run: BrokerPubSub, BrokerKafka or BrokerFake.
	Broker string
	// Relay is who sends new events: RelayLanes or RelayWAL.
	Relay string
	// Progress is called with each line that says what the run does.
	Progress func(line string)
}

// The settings of the service, mostly smaller than in production.
const (
	lease          = 3 * time.Second
	publishTimeout = 1400 * time.Millisecond
	requestTimeout = publishTimeout / 3 // as outbox.Config.RequestTimeout returns
	workers        = 2
	batch          = 100
	pollInterval   = 200 * time.Millisecond
	maxConnections = 12 // of each process to PostgreSQL
	lanes          = 8  // of the outbox; the schema decides this

	// messageLease is longer than the ack deadline of a projector.
	messageLease = 61 * time.Second
)

const (
	roleAPI       = "api"
	rolePublisher = "publisher"
	roleProjector = "projector"
)

// lab is one run.
type lab struct {
	cfg      Config
	timeline *slog.Logger
	postgres *postgres
	broker   *broker
	network  *proxy   // between the processes and Pub/Sub
	toBroker []string // settings by which the processes find the broker
	load     *load
	watchers []*watcher
	told     *bufio.Writer // the results of clients; owned by load while it runs

	processes, apis, publishers, projectors []*process
	serving                                 []*process // the processes that the clients call

	operator *process // runs commands, and never serves; owned by the group of operators

	present, older string        // binaries
	migrations     int           // migrations that the lab has added; owned by the group of process faults
	slowestStop    time.Duration // slowest stop of a process at the end
	routines       []Routines
	connections    map[string]int // connections of each process when all events are processed
	leaseLooks     int            // owned by watchLeases while it runs
	stalls         []Stall        // owned by watchStalls while it runs

	mu       sync.Mutex
	problems []Violation   // guarded by mu
	records  []FaultRecord // guarded by mu
}

// Report is the result of a run, written as report.json.
type Report struct {
	Seed     uint64         `json:"seed"`
	Out      string         `json:"out"`
	Broker   string         `json:"broker"`
	Relay    string         `json:"relay"`
	Older    string         `json:"older"` // the commit; empty: there was none
	Took     time.Duration  `json:"took_ns"`
	Rate     float64        `json:"commands_per_second"`
	Settings []string       `json:"settings"`
	Targets  Limits         `json:"targets"`
	Answers  map[string]int `json:"attempts_by_code"`
	Unread   map[string]int `json:"failed_reads_by_code"`
	Stop     time.Duration  `json:"slowest_stop_ns"`
	Routines []Routines     `json:"goroutines"`
	// Connections is the number of connections of each process to PostgreSQL when all events are processed.
	Connections map[string]int `json:"connections"`
	LeaseLooks  int            `json:"looks_at_leases"`
	// Long says that the targets of a long run apply, and are printed.
	Long bool `json:"long"`
	Verdict
	Goals    []Goal        `json:"goals"`
	Injected []FaultRecord `json:"faults_injected"` // those that did not take effect say so
}

// OK reports whether every guarantee was checked and kept.
func (r Report) OK() bool { return len(r.Counts) == 0 && len(r.Unchecked()) == 0 }

// Slow reports whether the service recovered too slowly. Only a long run counts: a short one may be slow
// because of the machine.
func (r Report) Slow() bool { return r.Long && len(r.Misses) > 0 }

// Run makes a run, in a directory that has no run yet. An error means that the run could not be made or
// finished. It says nothing about the service.
func Run(ctx context.Context, cfg Config) (Report, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Duration+15*time.Minute, errors.New("the run hangs"))
	defer cancel()
	var err error
	if cfg.Out, err = filepath.Abs(cfg.Out); err != nil {
		return Report{}, fmt.Errorf("find folder: %w", err)
	}
	if err := os.MkdirAll(cfg.Out, 0o755); err != nil { //nolint:gosec // others may read it
		return Report{}, fmt.Errorf("make folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(cfg.Out, "timeline.jsonl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) //nolint:gosec // others may read it
	if err != nil {
		return Report{}, fmt.Errorf("make timeline: %w", err)
	}
	defer file.Close()
	l := &lab{cfg: cfg, timeline: slog.New(slog.NewJSONHandler(file, nil))}
	history, err := l.run(ctx)
	if err != nil {
		err = errors.Join(err, context.Cause(ctx))
		l.timeline.InfoContext(ctx, "run failed", "err", err.Error())
		return Report{}, errors.Join(err, l.leave(l.seen()), l.end())
	}
	report := Report{
		Seed: cfg.Seed, Out: cfg.Out, Broker: l.cfg.Broker, Relay: cfg.Relay, Older: l.cfg.Older, Rate: cfg.Rate, Settings: settings, Targets: history.Limits,
		Answers: l.load.codes, Unread: l.load.unread, Stop: l.slowestStop, Routines: l.routines, Verdict: Check(history),
		Connections: l.connections, LeaseLooks: l.leaseLooks, Long: cfg.Long,
	}
	report.Goals = report.goals()
	report.Injected, report.Took = history.Faults, time.Since(start)
	if !report.OK() || report.Slow() {
		err = l.leave(history)
	} else {
		err = os.Remove(l.historyFile())
	}
	return report, errors.Join(err, l.end(), writeJSON(filepath.Join(cfg.Out, "report.json"), report))
}

func writeJSON(path string, value any) error {
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("marshal report: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
