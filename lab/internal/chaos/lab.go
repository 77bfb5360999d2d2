package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// settings are the environment variables that all processes share.
var settings = []string{
	"PORT=0", "TELEMETRY_ADDR=127.0.0.1:0", "AUTH=off",
	fmt.Sprintf("LAB_OUTBOX_LEASE=%s", lease), fmt.Sprintf("LAB_OUTBOX_PUBLISH_TIMEOUT=%s", publishTimeout),
	fmt.Sprintf("LAB_OUTBOX_POLL_INTERVAL=%s", pollInterval),
	fmt.Sprintf("LAB_OUTBOX_WORKERS=%d", workers), fmt.Sprintf("LAB_OUTBOX_BATCH=%d", batch),
	"LAB_OUTBOX_MAX_ATTEMPTS=20", fmt.Sprintf("DATABASE_MAX_CONNS=%d", maxConnections),
	"LAB_CONSUMER_TRANSACTION_TIMEOUT=1s",
}

// run makes the run, and returns its history.
func (l *lab) run(ctx context.Context) (*History, error) {
	if err := l.prepare(ctx); err != nil {
		return nil, err
	}
	listening, stopListening := context.WithCancel(ctx)
	var ears sync.WaitGroup
	defer func() { stopListening(); ears.Wait() }()
	ears.Go(func() { l.broker.listen(listening) })
	if err := l.startAll(ctx); err != nil {
		return nil, err
	}
	told, err := os.Create(l.historyFile())
	if err != nil {
		return nil, fmt.Errorf("make history: %w", err)
	}
	defer told.Close()
	l.told = bufio.NewWriter(told)
	l.load = &load{
		apis: l.serving, clients: l.cfg.Clients, rate: l.cfg.Rate, seed: l.cfg.Seed, patience: l.patience(attemptTimeout), problem: l.problem,
		codes: map[string]int{}, unread: map[string]int{}, attempts: json.NewEncoder(l.told),
	}
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	var clients sync.WaitGroup
	clients.Go(func() { l.load.run(loading) })
	clients.Go(func() { l.tell(loading) })
	watching, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer func() { stopWatching(); watchers.Wait() }()
	l.watchers = newWatchers(l.cfg.Seed, l.apis, l.problem, l.load.failedToRead)
	for _, w := range l.watchers {
		watchers.Go(func() { w.run(watching) })
	}
	watchers.Go(func() { l.watchLeases(watching) })
	watchers.Go(func() { l.watchStalls(watching) })

	l.say("%s without a fault, in which nothing may be published twice, and then faults", faultless)
	sleep(ctx, faultless)
	l.load.faults.Store(true)
	err = l.inject(ctx)
	sleep(ctx, time.Second)
	stopLoad()
	clients.Wait()
	if err := errors.Join(err, ctx.Err(), l.told.Flush()); err != nil {
		return nil, err
	}
	l.say("waiting until all is quiet")
	l.quiet(ctx)
	l.quietWatchers(ctx)
	stopWatching()
	watchers.Wait()
	l.countHeld(ctx)
	l.countKept(ctx)
	l.countRoutines(ctx)
	l.quietErasures(ctx) // after them, because a process that is started again erases what is left
	l.stopAll()
	l.countConnections(ctx)
	l.hearAll(ctx) // including the last messages of processes that have ended
	stopListening()
	ears.Wait()
	return l.history(ctx)
}

// faultless is how long clients work at the start before the first fault.
const faultless = 10 * time.Second

func (l *lab) historyFile() string { return filepath.Join(l.cfg.Out, "history.jsonl") }

func (l *lab) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	l.timeline.Info("progress", "line", line)
	l.cfg.Progress(line)
}

func (l *lab) problem(rule Rule, format string, args ...any) {
	detail := fmt.Sprintf(format, args...)
	l.timeline.Info("problem", "rule", rule, "detail", detail)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, Violation{rule, detail})
}

// tell reports the progress of the run every half minute.
func (l *lab) tell(ctx context.Context) {
	for start := time.Now(); sleep(ctx, 30*time.Second); {
		taken, heard := l.broker.published()
		l.mu.Lock()
		faults := len(l.records)
		l.mu.Unlock()
		l.say("%s: %d faults, %d commands, %d messages published, %d heard", time.Since(start).Round(time.Second), faults, l.load.count(), taken, heard)
	}
}

// watchStalls records stalls of the machine until ctx ends: times in which the
// result of a publish request may have come too late.
func (l *lab) watchStalls(ctx context.Context) {
	for last := time.Now(); sleep(ctx, stallPulse); last = time.Now() {
		if now := time.Now(); stalled(last, now) {
			l.timeline.InfoContext(ctx, "stall", "ms", now.Sub(last).Milliseconds())
			l.stalls = append(l.stalls, Stall{From: last, Until: now, MayRepeat: l.allInHand()})
		}
	}
}

// stallPulse is the interval at which the lab checks for a stall.
const stallPulse = 50 * time.Millisecond

// stalled reports whether the time between two checks was too long by at least
// half of the request timeout.
func stalled(last, now time.Time) bool { return now.Sub(last) > stallPulse+requestTimeout/2 }

// prepare creates everything that the processes need.
func (l *lab) prepare(ctx context.Context) error {
	l.say("building, and starting PostgreSQL")
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.build(gctx) })
	g.Go(func() (err error) {
		l.postgres, err = startPostgres(gctx, l.cfg.Progress)
		return err
	})
	err := g.Wait()
	if err != nil {
		return err
	}
	if err := l.startBroker(ctx); err != nil {
		return err
	}
	migrate := exec.CommandContext(ctx, l.present, "migrate") //nolint:gosec // we have built it
	migrate.Env = append(os.Environ(), "DATABASE_URL="+l.postgres.dsn(databaseName))
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w: %s", err, out)
	}
	if err := l.startRelay(ctx); err != nil {
		return err
	}
	err = l.look(ctx, func(ctx context.Context, c conn) error {
		return errors.Join(watchLanes(ctx, c, lease), watchEvents(ctx, c))
	})
	if err != nil {
		return err
	}
	if l.operator, err = l.newProcess(ctx, "operator", roleAPI, false); err != nil {
		return err
	}
	for _, role := range []struct {
		name  string
		count int
		list  *[]*process
	}{{roleAPI, 2, &l.apis}, {rolePublisher, 3, &l.publishers}, {roleProjector, 2, &l.projectors}} {
		for i := range role.count {
			serves := role.name == roleAPI || role.name == rolePublisher && i == 0 // one publisher is also an api, so its commits wake it
			p, err := l.newProcess(ctx, fmt.Sprintf("%s-%d", role.name, i+1), role.name, serves)
			if err != nil {
				return err
			}
			if p.serves {
				l.serving = append(l.serving, p)
			}
			*role.list = append(*role.list, p)
			l.processes = append(l.processes, p)
		}
	}
	return nil
}

// startBroker starts the broker, and the way of the processes to it.
func (l *lab) startBroker(ctx context.Context) (err error) {
	if l.cfg.Broker != BrokerPubSub {
		if l.broker, err = l.startKafka(ctx); err == nil {
			l.toBroker = []string{"BROKER=kafka", "KAFKA_BROKERS=" + l.broker.kafka.Addr}
		}
		return err
	}
	if l.broker, err = startPubSub(ctx); err != nil {
		return err
	}
	l.network, err = newProxy(ctx, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.broker.Addr())
	})
	if err == nil {
		l.toBroker = []string{"PUBSUB_PROJECT=" + project, "PUBSUB_EMULATOR_HOST=" + l.network.addr()}
	}
	return err
}

func (l *lab) newProcess(ctx context.Context, name, role string, serves bool) (*process, error) {
	roles := role
	if serves && role != roleAPI {
		roles += "," + roleAPI
	}
	proxy, err := newProxy(ctx, l.postgres.dial)
	if err != nil {
		return nil, err
	}
	p := &process{name: name, role: role, serves: serves, proxy: proxy, dir: l.cfg.Out, binary: l.present, timeline: l.timeline, problem: l.problem}
	p.environ = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "ROLES=" + roles, "FAILPOINT_FILE=" + p.orders(), "FAILPOINT_CLOCK_FILE=" + p.clock(),
		"DATABASE_URL=postgres://postgres@" + proxy.addr() + "/" + databaseName + "?sslmode=disable&application_name=" + name,
	}, slices.Concat(settings, l.toBroker)...)
	return p, nil
}

func (l *lab) startAll(ctx context.Context) error {
	var g errgroup.Group
	for _, p := range l.processes {
		g.Go(func() error { return p.start(ctx) })
	}
	return g.Wait()
}

// inject injects faults until the duration is over and each kind was injected.
func (l *lab) inject(ctx context.Context) error {
	all, long := kinds(l.cfg.Broker)
	r := rand.New(rand.NewPCG(l.cfg.Seed, 0))
	s := newScheduler(ctx, l)
	for round, deadline := 0, time.Now().Add(l.cfg.Duration); round == 0 || time.Now().Before(deadline); round++ {
		bag := append([]fault(nil), all...)
		if l.cfg.Long && round%10 == 0 {
			bag = append(bag, long...)
		}
		r.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		for _, f := range bag {
			if ctx.Err() != nil || s.failed() != nil || round > 0 && time.Now().After(deadline) {
				break
			}
			s.inject(f, rand.New(rand.NewPCG(l.cfg.Seed, r.Uint64())))
		}
		if ctx.Err() != nil || s.failed() != nil {
			break
		}
	}
	if l.cfg.Long {
		all = append(all, long...)
	}
	s.insist(all, func() *rand.Rand { return rand.New(rand.NewPCG(l.cfg.Seed, r.Uint64())) })
	return s.failed()
}

// clients returns all processes, and the operator.
func (l *lab) clients() []*process { return append(slices.Clone(l.processes), l.operator) }

// happened reports whether a kind of fault has taken effect at least once.
func (l *lab) happened(kind string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.records, func(f FaultRecord) bool { return f.Kind == kind && f.Missing == "" })
}

func (l *lab) record(f FaultRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, f)
}

// history returns what clients and subscribers received, and the final content of
// the database.
func (l *lab) history(ctx context.Context) (*History, error) {
	h := l.seen()
	err := l.look(ctx, func(ctx context.Context, conn conn) (err error) {
		if h.Database, err = ReadDatabase(ctx, conn); err != nil {
			return err
		}
		h.Trespasses, err = readTrespasses(ctx, conn)
		return err
	})
	return h, err
}

// seen returns what clients and subscribers received. It is called while no client
// runs.
func (l *lab) seen() *History {
	// A takeover waits for the lease to end, then up to a second for a poll, and then its pass takes time.
	h := &History{Limits: Limits{Lease: lease, Takeover: lease + 3*time.Second/2, FirstResult: 2 * time.Second, Catalog: 5 * time.Second, Back: 5 * time.Second}}
	if l.load == nil {
		return h
	}
	if l.broker.kafka != nil { // a group waits for a dead member
		h.Limits.Catalog, h.Limits.Back = kafkaSession+time.Second, 2*kafkaSession
	}
	if l.cfg.Relay == RelayWAL { // a frozen reader is replaced late, and what it had in hand comes again
		h.Limits.Lease, h.Limits.Takeover, h.Limits.FirstResult = readerPatience, readerPatience, readerPatience
		h.Limits.Unsaved = 5 * time.Minute // checkpoint_timeout
		h.Limits.Catalog, h.Limits.Back = max(h.Limits.Catalog, readerPatience), max(h.Limits.Back, readerPatience)
	}
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	if l.broker.dead > 0 {
		l.problem(MessageDead, "%d messages", l.broker.dead)
	}
	for _, message := range l.broker.unreadable {
		l.problem(UnknownMessage, "%s", message)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.watchers {
		h.Copies = append(h.Copies, w.copy) // the watchers have ended
	}
	h.Reads, h.Odd, h.Stalls = l.load.reads, l.load.odd, l.stalls
	h.Answers, h.Sightings, h.Publications, h.Acks, h.Faults, h.Problems = l.load.answers, l.broker.sightings, l.broker.publications, l.broker.acks, l.records, l.problems
	return h
}

// leave writes the history and the tables to the directory of the run, also after an
// interruption.
func (l *lab) leave(h *History) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := h.dump(l.cfg.Out)
	if l.postgres != nil {
		err = errors.Join(err, l.postgres.dump(ctx, l.cfg.Out))
	}
	return err
}

// end stops everything that still runs, and removes temporary files.
func (l *lab) end() error {
	for _, p := range l.processes {
		p.kill()
		p.proxy.close()
	}
	if l.network != nil {
		l.network.close()
	}
	if l.operator != nil {
		l.operator.proxy.close()
	}
	if l.broker != nil {
		l.broker.stop()
	}
	var err error
	if l.postgres != nil {
		err = l.postgres.remove()
	}
	return errors.Join(err, os.RemoveAll(l.present), os.RemoveAll(l.older))
}
