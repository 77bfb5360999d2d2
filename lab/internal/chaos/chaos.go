// Package chaos is the fault lab: it runs the real service as several
// processes on a real PostgreSQL and a strict Pub/Sub, lets clients work, does
// harm of every kind, and then looks whether every promise was kept.
//
// [Run] builds cmd/server, with the points of package failpoint and without,
// starts two processes with the role api, three publishers, one of which has the
// role api too, and two projectors, each behind a proxy of its own to
// PostgreSQL, and all behind one to the broker, and sends commands on a few hundred videos over gRPC and REST,
// while others watch the catalog. Meanwhile it injects faults; the functions
// kinds and clockKinds list them. At the end it mends everything, waits until
// all is quiet, and has [Check] judge.
//
// The checker shares no code with the service, only the contract in api/proto:
// it has what clients were told, a subscription of its own, and its own SQL. It
// is tested with services that are broken on purpose.
//
// # What it promises
//
// The seed decides on the order of the faults, their victims and times, and on
// what each client wants. It cannot decide what the operating system does with
// the processes, so a second run with the same seed is similar, not equal; and where
// the clock of PostgreSQL cannot jump there are fewer faults, in another order. What
// happened is in the folder of the run: timeline.jsonl, the log of each
// process, report.json and, when something was wrong, what each client was
// told (history.jsonl), what they read (reads.jsonl), what the topic brought and
// when the broker took it (heard.jsonl) and its acks (acks.jsonl), what watchers
// have (copies.jsonl), and the database.
//
// # What it does not do
//
// The clock of PostgreSQL jumps, by which all leases are, on Linux and where there
// is a C compiler; of the processes only the clock that commands go by, in the lab's
// own build, because a Go binary without C does not ask a preloaded library.
// Machines do not crash, only processes, so PostgreSQL runs without fsync.
// Nothing fills a disk: a trigger raises the error that a full disk would cause.
package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Config says what a run is like.
type Config struct {
	Seed uint64
	// Duration is how long faults are injected. Each kind is injected once, and
	// then again in another order, while there is time.
	Duration time.Duration
	// Long adds the faults that take a minute.
	Long bool
	// Rate is how many commands are sent in a second, by how many Clients.
	Rate    float64
	Clients int
	// Out is the folder for what the run leaves. It is made.
	Out string
	// Older is the commit that a deployment rolls back to, as git knows it. Empty:
	// the newest tag, or where there is none the present code, which then is the
	// older one because the schema gets newer.
	Older string
	// Progress is told what is going on, one line at a time.
	Progress func(line string)
}

// The settings of the service that the lab chooses: everything is as in
// production, but smaller and sooner.
const (
	lease          = 3 * time.Second
	publishTimeout = 1400 * time.Millisecond
	requestTimeout = 700 * time.Millisecond
	workers        = 2
	batch          = 100
	pollInterval   = 200 * time.Millisecond
	maxConnections = 12 // to PostgreSQL, of each process
	lanes          = 8  // of the outbox: a fact, not a choice

	// messageLease is longer than a projector is lent a message.
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
	timeline *timeline
	postgres *postgres
	broker   *broker
	network  *proxy // between the processes and the broker
	load     *load
	watchers []*watcher
	told     *bufio.Writer // what clients were told; owned by load while it runs

	processes, apis, publishers, projectors []*process
	serving                                 []*process // which the load is sent to

	present, older string        // binaries
	migrations     int           // that the lab has added; owned by the group of process faults
	slowestStop    time.Duration // of those at the end
	routines       []Routines
	connections    map[string]int // that each process has when all is quiet
	leaseLooks     int            // owned by watchLeases while it runs
	stalls         []Stall        // owned by watchStalls while it runs
	leftOut        []string       // what this machine cannot do

	mu       sync.Mutex
	problems []Violation   // guarded by mu
	records  []FaultRecord // guarded by mu
}

// Report is what a run leaves, as report.json.
type Report struct {
	Seed     uint64         `json:"seed"`
	Out      string         `json:"out"`
	Older    string         `json:"older"` // the commit; empty: there was none
	Took     time.Duration  `json:"took_ns"`
	Rate     float64        `json:"commands_per_second"`
	Settings []string       `json:"settings"`
	Targets  Limits         `json:"targets"`
	Answers  map[string]int `json:"attempts_by_code"`
	Unread   map[string]int `json:"failed_reads_by_code"`
	Stop     time.Duration  `json:"slowest_stop_ns"`
	Routines []Routines     `json:"goroutines"`
	// Connections are those to PostgreSQL that each process has when all is quiet.
	Connections map[string]int `json:"connections"`
	LeaseLooks  int            `json:"looks_at_leases"`
	// Long: the targets of a long run apply, and are printed.
	Long    bool     `json:"long"`
	LeftOut []string `json:"left_out,omitempty"`
	Verdict
	Goals    []Goal        `json:"goals"`
	Injected []FaultRecord `json:"faults_injected"` // those that did not happen say so
}

// OK tells whether every promise was looked at, and kept.
func (r Report) OK() bool { return len(r.Counts) == 0 && len(r.Unchecked()) == 0 }

// Slow tells whether the service recovered too slowly for a long run. A quick
// one may be one of several things that a machine does.
func (r Report) Slow() bool { return r.Long && len(r.Misses) > 0 }

// Run makes a run, into a folder that has none yet. An error means that it
// could not be made, or not to its end, and says nothing about the service.
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
	l := &lab{cfg: cfg, timeline: &timeline{to: file, start: start}}
	history, err := l.run(ctx)
	if err != nil {
		err = errors.Join(err, context.Cause(ctx))
		l.timeline.add("run failed", "err", err.Error())
		return Report{}, errors.Join(err, l.leave(l.seen()), l.end())
	}
	report := Report{
		Seed: cfg.Seed, Out: cfg.Out, Older: l.cfg.Older, Rate: cfg.Rate, Settings: settings, Targets: history.Limits,
		Answers: l.load.codes, Unread: l.load.unread, Stop: l.slowestStop, Routines: l.routines, LeftOut: l.leftOut, Verdict: Check(history),
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
