package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/lab/internal/failpoint"
)

// fault is a kind of fault. Two faults of different groups may be in force at the same time, but
// a fault whose recovery is measured is alone.
type fault struct {
	kind     string
	group    string
	recovery Recovery
	// inject starts the fault and ends it. It sets the fields of the record that the caller
	// cannot know, such as Target, MayRepeat and Missing. It sets Struck if that is not the time
	// of the call.
	inject injection
}

type injection func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error

// The groups: the part of the system that a fault affects.
const (
	groupProcess  = "process"
	groupBroker   = "broker"
	groupDatabase = "database"
	groupOperator = "operator" // none: operators or clients act
)

// kinds returns the faults of every run with a broker, and the faults that only a long run has.
func kinds(broker string) (all, long []fault) {
	all = []fault{
		{"kill publisher", groupProcess, Takeover, killAt(publishers, "")},
		{"kill api", groupProcess, Back, killAt(apis, "")},
		{"kill projector", groupProcess, Back, killAt(projectors, "")},
		{"kill all", groupProcess, Takeover, killAll},
		{"freeze publisher", groupProcess, Takeover, freezeAt("")},
		{"freeze projector", groupProcess, NoRecovery, freezeProjector},
		{"SIGTERM", groupProcess, NoRecovery, terminate},
		{"roll to older and back", groupProcess, NoRecovery, roll},
		{"api clock ahead or back", groupProcess, NoRecovery, apiClock(time.Hour, -time.Hour)},
		{"api clock beyond the partitions", groupProcess, NoRecovery, apiClock(30*24*time.Hour, -30*24*time.Hour)},
		{"kill api before the answer to its commit", groupProcess, NoRecovery, loseCommit(true)},
		{"broker down 5 s", groupBroker, Outage, brokerDown(5 * time.Second)},
		{"publish responses lost", groupBroker, NoRecovery, loseResponses},
		{"publish unavailable", groupBroker, Outage, refuseAll},
		{"publish slow", groupBroker, NoRecovery, slowPublish},
		{"poison", groupBroker, NoRecovery, poison},
		{"duplicate deliveries", groupBroker, NoRecovery, duplicateDeliveries},
		{"late deliveries", groupBroker, NoRecovery, lateDeliveries},
		{"streams cut", groupBroker, NoRecovery, cutStreams},
		{"broker connections cut", groupBroker, NoRecovery, cutBroker},
		{"database restarted", groupDatabase, Outage, endDatabase((*postgres).stop, (*lab).allInHand)},
		{"database killed", groupDatabase, Outage, endDatabase((*postgres).kill, (*lab).forgotten)},
		{"database backend killed", groupDatabase, Outage, killBackend},
		{"answer to a commit lost", groupDatabase, NoRecovery, loseCommit(false)},
		{"database connections cut", groupDatabase, NoRecovery, cutDatabase},
		{"database slow", groupDatabase, NoRecovery, slowDatabase},
		{"database connections forgotten", groupDatabase, Outage, forgetDatabase},
		{"database out of reach", groupDatabase, NoRecovery, stallDatabase},
		{"long transaction", groupDatabase, NoRecovery, longTransaction},
		{"disk full for events", groupDatabase, NoRecovery, diskFull("video_catalog.outbox", "INSERT", 0)},
		{"disk full for settlements", groupDatabase, NoRecovery, diskFull("video_catalog.outbox_pending", "DELETE", lanes*(batch+batch/2))},
		{"disk full for the projection", groupDatabase, NoRecovery, diskFull("video_catalog_read.video_projection", "INSERT OR UPDATE", 0)},
	}
	for _, point := range []string{failpoint.OutboxClaimed, failpoint.OutboxHanded, failpoint.OutboxPublished} {
		all = append(all, fault{"kill publisher at " + point, groupProcess, Takeover, killAt(publishers, point)})
		all = append(all, fault{"freeze publisher at " + point, groupProcess, Takeover, freezeAt(point)})
	}
	all = append(all, operatorKinds()...)
	all = append(all, fault{"kill projector at " + failpoint.ConsumerCommitted, groupProcess, NoRecovery, killAt(projectors, failpoint.ConsumerCommitted)})
	long = []fault{
		{"broker down 60 s", groupBroker, Outage, brokerDown(time.Minute)},
		{"broker connections forgotten", groupBroker, Outage, forgetBroker},
	}
	if broker != BrokerPubSub {
		return kafkaKinds(all, long)
	}
	return all, long
}

// Kinds returns the names of all faults of a run with a broker. Some need a long run.
func Kinds(broker string) []string {
	all, long := kinds(broker)
	var names []string
	for _, f := range slices.Concat(all, long) {
		names = append(names, f.kind)
	}
	return names
}

// inHand is the maximum number of events that a publisher may leave unsettled. Each worker may
// have a batch of its lanes, and half a batch of deferred events.
const inHand = workers * (batch + batch/2)

func (l *lab) allInHand() int {
	if l.cfg.Relay == RelayWAL {
		return inQueue
	}
	return len(l.publishers) * inHand
}

func apis(l *lab) []*process       { return l.apis }
func projectors(l *lab) []*process { return l.projectors }

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// between returns a random duration.
func between(r *rand.Rand, shortest, longest time.Duration) time.Duration {
	return shortest + time.Duration(r.Int64N(int64(longest-shortest)))
}

func (l *lab) mayRepeat(p *process) int {
	switch {
	case p.role != rolePublisher:
		return 0
	case l.cfg.Relay == RelayWAL:
		return inQueue
	}
	return inHand
}

// unsettled returns how many events the victims can have published but not settled. These are at
// most a batch of pending events and half a batch of deferred ones, for each claim that they hold. It
// waits until PostgreSQL has executed the last statements of the victims, and must be called
// before others can take their lanes. If the fault is not alone, or the count fails or comes too
// late, it returns atMost.
func (l *lab) unsettled(ctx context.Context, record *FaultRecord, atMost int, victims ...*process) int {
	if !record.Alone {
		return atMost
	}
	const done = 20 * time.Millisecond
	sleep(ctx, done)
	names := make([]string, 0, len(victims))
	for _, p := range victims {
		names = append(names, p.name)
	}
	var held int
	err := l.look(ctx, func(ctx context.Context, c conn) (err error) {
		if held, err = heldBy(ctx, c, names, batch); err == nil && l.cfg.Relay == RelayWAL {
			held, err = inTheLog(ctx, c)
		}
		return err
	})
	if err != nil || time.Since(record.Struck) > lease/2 {
		return atMost
	}
	record.Unsettled = held
	return min(held, atMost)
}

// leftBy returns how many events may be published twice after one process was killed or frozen.
// A publisher that continues may publish its events once more, and so may the publisher that took
// its lanes.
func (l *lab) leftBy(ctx context.Context, record *FaultRecord, p *process) int {
	if p.role != rolePublisher {
		return 0
	}
	return 2 * l.unsettled(ctx, record, l.mayRepeat(p), p)
}

// aim records the process that a fault affects.
func aim(record *FaultRecord, p *process) { record.Target, record.MayFail = p.name, p.serves }

// reaches orders a process to act at a point, and reports whether it got there.
func (p *process) reaches(ctx context.Context, r *rand.Rand, record *FaultRecord, point, action string) bool {
	reached := p.order(ctx, fmt.Sprintf("%s=%s@%d", point, action, 1+r.IntN(5)), 5*time.Second)
	if !reached {
		record.Missing = "point not reached"
	}
	return reached
}

// killAt kills a process at a failpoint. Empty: at once.
func killAt(from func(*lab) []*process, point string) injection {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		p := pick(r, from(l))
		aim(record, p)
		if point != "" {
			if e := p.running(); e != nil {
				p.expect(e, true)
			}
			p.reaches(ctx, r, record, point, "kill")
		}
		record.Struck = p.kill()
		record.MayRepeat = l.leftBy(ctx, record, p)
		sleep(ctx, between(r, 100*time.Millisecond, time.Second))
		return p.start(ctx)
	}
}

func killAll(ctx context.Context, l *lab, _ *rand.Rand, record *FaultRecord) error {
	record.MayFail = true
	var wait sync.WaitGroup
	for _, p := range l.processes {
		wait.Go(func() { p.kill() })
	}
	wait.Wait()
	record.Struck = time.Now()
	record.MayRepeat = l.unsettled(ctx, record, l.allInHand(), l.publishers...)
	return l.startAll(ctx)
}

// freezeAt freezes a publisher at a failpoint until others have its lanes, and then continues it. Empty: at once.
func freezeAt(point string) injection {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		p := pick(r, publishers(l))
		aim(record, p)
		record.GoesOn = p.serves
		if point == "" || !p.reaches(ctx, r, record, point, "stop") {
			p.signal(syscall.SIGSTOP)
		} // else it stops itself, a moment after it has removed the order; a SIGSTOP from here would be a second one
		record.Struck = time.Now()
		record.MayRepeat = l.leftBy(ctx, record, p)
		sleep(ctx, lease+between(r, 200*time.Millisecond, time.Second))
		p.signal(syscall.SIGCONT)
		return nil
	}
}

// freezeProjector freezes a projector until the broker has delivered its messages to others.
func freezeProjector(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	p := pick(r, l.projectors)
	record.Target = p.name
	p.signal(syscall.SIGSTOP)
	defer p.signal(syscall.SIGCONT)
	sleep(ctx, 500*time.Millisecond)
	if l.broker.expire(); l.broker.kafka != nil {
		sleep(ctx, kafkaSession)
	}
	sleep(ctx, between(r, 500*time.Millisecond, 2*time.Second))
	return nil
}

func terminate(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	p := pick(r, l.processes)
	record.Target = p.name
	l.timeline.InfoContext(ctx, "stopped", "process", p.name, "ms", p.stop().Milliseconds())
	return p.start(ctx)
}

// roll adds a migration, deploys the older binary, and then the present one again. Within a
// role, it replaces one process after the other.
func roll(ctx context.Context, l *lab, _ *rand.Rand, record *FaultRecord) error {
	record.Target = l.cfg.Older
	migration, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	l.migrations++
	column := fmt.Sprintf("later_%d", l.migrations)
	for _, table := range []string{"video_catalog.videos", "video_catalog.outbox", "video_catalog.outbox_pending", "video_catalog.requests", "video_catalog_read.video_projection", "video_catalog_read.inbox"} {
		if err := l.postgres.insist(migration, "ALTER TABLE "+table+" ADD COLUMN "+column+" text"); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	for _, binary := range []string{l.older, l.present} {
		var wait sync.WaitGroup
		errs := make([]error, 3)
		for i, role := range [][]*process{l.apis, l.publishers, l.projectors} {
			wait.Go(func() {
				for _, p := range role {
					p.stop()
					p.binary = binary
					errs[i] = errors.Join(errs[i], p.start(ctx))
				}
			})
		}
		wait.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// loseCommit closes a connection of an API process instead of passing on the result of a COMMIT.
// If kill is set, it also kills the process at that time.
func loseCommit(kill bool) injection {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		p := pick(r, l.serving)
		aim(record, p)
		met := make(chan struct{})
		cancel := p.proxy.interceptCommit(func() {
			if kill {
				record.Struck = p.kill()
				record.MayRepeat = l.leftBy(ctx, record, p)
			}
			close(met)
		})
		select {
		case <-met:
		case <-time.After(5 * time.Second):
			if cancel() {
				record.Missing = "no commit to intercept"
				return nil
			}
			<-met // the commit is being intercepted now
		}
		if !kill {
			return nil
		}
		sleep(ctx, between(r, 100*time.Millisecond, 500*time.Millisecond))
		return p.start(ctx)
	}
}

func brokerDown(d time.Duration) injection {
	return func(ctx context.Context, l *lab, _ *rand.Rand, record *FaultRecord) error {
		record.MayRepeat = l.allInHand()
		l.broker.SetDown(true)
		defer l.broker.SetDown(false)
		sleep(ctx, d)
		return nil
	}
}

func loseResponses(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	n := 3 + r.IntN(8)
	record.MayRepeat = n * batch
	defer l.broker.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.Unavailable, ResponseLost: true, Times: n})()
	sleep(ctx, between(r, 500*time.Millisecond, 1500*time.Millisecond))
	return nil
}

func refuseAll(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	code := pick(r, []codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.Internal, codes.PermissionDenied, codes.NotFound})
	record.Target = code.String()
	defer l.broker.Inject(pubsublocal.Fault{Method: "Publish", Code: code})()
	sleep(ctx, between(r, 500*time.Millisecond, 2*time.Second))
	return nil
}

func slowPublish(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	// Calls may take longer than the timeout of a request. Then their results are lost.
	record.MayRepeat = 2 * l.allInHand()
	delay := between(r, 100*time.Millisecond, time.Second)
	record.Target = delay.String()
	defer l.broker.Inject(pubsublocal.Fault{Method: "Publish", Delay: delay})()
	sleep(ctx, between(r, time.Second, 2*time.Second))
	return nil
}

// poison makes the broker refuse all messages of one video as invalid.
func poison(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	admit, _ := l.refuse(ctx, r, record, between(r, time.Second, 3*time.Second))
	admit()
	return nil
}

// refuse makes the broker refuse all messages of the target, which is any video, until admit is called. It returns
// after lasts, once one was refused. refused is false if there is no video, or none was refused within 10 s more.
func (l *lab) refuse(ctx context.Context, r *rand.Rand, record *FaultRecord, lasts time.Duration) (admit func(), refused bool) {
	name, ok := l.load.anyVideo(r)
	if !ok {
		record.Missing = "no video to refuse"
		return func() {}, false
	}
	record.Target = name
	before := l.refusals(ctx, name)
	admit = l.broker.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: name, Code: codes.InvalidArgument})
	sleep(ctx, lasts)
	for deadline := time.Now().Add(10 * time.Second); l.refusals(ctx, name) <= before; {
		if time.Now().After(deadline) || !sleep(ctx, 100*time.Millisecond) {
			record.Missing = "no event of that video was refused"
			return admit, false
		}
	}
	return admit, true
}

// refusals returns how often the first event of a video was refused. It returns 0 if the
// database is unreachable.
func (l *lab) refusals(ctx context.Context, name string) (n int) {
	_ = l.look(ctx, func(ctx context.Context, c conn) error { // on an error n is 0, and the caller tries again
		return c.QueryRow(ctx, `SELECT coalesce(max(attempts), 0) FROM video_catalog.outbox_blocked WHERE aggregate_id = $1`, name).Scan(&n)
	})
	return n
}

func duplicateDeliveries(_ context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	n := 1 + r.IntN(100)
	record.Target = fmt.Sprint(n)
	return errors.Join(
		l.broker.Duplicate(subscriptionName, n),
		l.broker.Duplicate("projects/"+project+"/subscriptions/"+tapName, n))
}

func lateDeliveries(_ context.Context, l *lab, r *rand.Rand, _ *FaultRecord) error {
	l.broker.clock.Advance(messageLease + between(r, 0, time.Minute))
	return nil
}

func cutStreams(ctx context.Context, l *lab, r *rand.Rand, _ *FaultRecord) error {
	for range 1 + r.IntN(5) {
		l.broker.CutStreams()
		sleep(ctx, between(r, 10*time.Millisecond, 200*time.Millisecond))
	}
	return nil
}

func cutBroker(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	for range 1 + r.IntN(3) {
		record.MayRepeat += l.allInHand()
		l.broker.CutConnections()
		sleep(ctx, between(r, 10*time.Millisecond, 300*time.Millisecond))
	}
	return nil
}

// forgetBroker silences all connections to the broker, as if the network had forgotten them. New
// connections work. Neither side gets an error: gRPC closes a connection after 40 s in which its
// keepalive got no response.
func forgetBroker(ctx context.Context, l *lab, _ *rand.Rand, record *FaultRecord) error {
	record.MayRepeat = 2 * l.allInHand()
	defer l.network.silence()()
	const noticed = 45 * time.Second
	sleep(ctx, time.Second) // until messages in flight have arrived
	since, deadline := time.Now(), record.Struck.Add(noticed)
	if !after(ctx, l.broker.lastPublished, since, deadline) || !after(ctx, l.broker.lastConsumed, since, deadline) {
		l.problem(NotBack, "after %s nobody publishes, or nobody consumes, over a new connection to the broker", noticed)
	}
	return nil
}

// forgotten returns how many settled events a crash of PostgreSQL may undo. Settlements are
// committed asynchronously, so a crash may lose the settlements of the last three rounds of the
// WAL writer (https://www.postgresql.org/docs/current/wal-async-commit.html).
func (l *lab) forgotten() int {
	return l.allInHand() + int(l.cfg.Rate)
}

// endDatabase ends PostgreSQL, and starts it again after at most a second.
func endDatabase(end func(*postgres) error, mayRepeat func(*lab) int) injection {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		record.MayRepeat = mayRepeat(l)
		if err := end(l.postgres); err != nil {
			return err
		}
		sleep(ctx, between(r, 0, time.Second))
		return l.postgres.start(context.WithoutCancel(ctx), l.cfg.Progress)
	}
}

func killBackend(ctx context.Context, l *lab, _ *rand.Rand, record *FaultRecord) error {
	record.MayRepeat = l.forgotten()
	if err := l.postgres.killBackend(ctx); err != nil {
		return err
	}
	return l.postgres.insist(ctx) // until the database accepts statements again
}

func cutDatabase(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	for range 1 + r.IntN(5) {
		p := pick(r, l.clients())
		record.Target += p.name + " "
		record.MayRepeat += l.mayRepeat(p)
		p.proxy.cut()
		sleep(ctx, between(r, 10*time.Millisecond, 300*time.Millisecond))
	}
	return nil
}

// slowDatabase delays all traffic to and from PostgreSQL. The delay is either small, or so large
// that settlements, batches of the projection and many calls time out. A large delay lasts
// longer than a lease.
func slowDatabase(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	record.MayRepeat = 2 * l.allInHand()
	delay, lasts := between(r, 5*time.Millisecond, 60*time.Millisecond), between(r, time.Second, 3*time.Second)
	if r.IntN(3) == 0 {
		delay, lasts = between(r, 300*time.Millisecond, 700*time.Millisecond), lease+between(r, time.Second, 3*time.Second)
	}
	record.Target = delay.String()
	for _, p := range l.clients() {
		p.proxy.slow(delay)
		defer p.proxy.slow(0)
	}
	sleep(ctx, lasts)
	return nil
}

// stallDatabase holds all traffic between a process and PostgreSQL for some time. Then the
// connections break, or continue.
func stallDatabase(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	p := pick(r, l.clients())
	record.Target, record.MayRepeat = p.name, 2*l.mayRepeat(p)
	resume := p.proxy.stall()
	sleep(ctx, between(r, time.Second, lease+time.Second))
	if r.IntN(2) == 0 {
		p.proxy.cut()
	}
	resume()
	return nil
}

// forgetDatabase silences all connections to PostgreSQL, as a firewall does that restarts.
// Neither side gets an error, and new connections work. It may silence them twice. After the
// time of a lease it closes PostgreSQL's side of the connections. That releases the locks of
// their transactions, as idle_in_transaction_session_timeout does.
func forgetDatabase(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	forget := func() {
		record.MayRepeat += 2 * l.allInHand()
		for _, p := range l.clients() {
			defer p.proxy.silence()()
		}
		sleep(ctx, lease)
	}
	for range 1 + r.IntN(2) {
		forget()
	}
	return nil
}

// longTransaction holds back the xmin horizon. Newer dead rows cannot be vacuumed, and the
// floors of the lanes cannot rise.
func longTransaction(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	record.MayFail = false
	conn, err := l.postgres.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	sleep(ctx, between(r, 2*time.Second, 5*time.Second))
	return nil
}

// diskFull makes a kind of statement fail as it does on a full disk.
func diskFull(table, statement string, mayRepeat int) injection {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		record.Target, record.MayRepeat, record.MayFail = table, mayRepeat, statement == "INSERT" // commands insert events
		err := l.postgres.insist(ctx,
			`CREATE OR REPLACE FUNCTION public.chaos_full() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$`,
			"CREATE OR REPLACE TRIGGER chaos_full BEFORE "+statement+" ON "+table+" FOR EACH ROW EXECUTE FUNCTION public.chaos_full()")
		if err != nil {
			return err
		}
		sleep(ctx, between(r, 500*time.Millisecond, 2*time.Second))
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		// DROP TRIGGER locks the partitions before their parent, and in another order than the publishers: it would meet them in deadlocks.
		return l.postgres.insist(ctx, "BEGIN; LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE; DROP TRIGGER IF EXISTS chaos_full ON "+table+"; COMMIT")
	}
}

// apiClock sets the clock of the events of one API process, and later sets it right
// again.
func apiClock(offsets ...time.Duration) injection {
	return func(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
		p, offset := pick(r, l.serving), pick(r, offsets)
		record.Target, record.Clock = p.name+" "+offset.String(), offset
		half := p.clock() + ".half"
		err := errors.Join(os.WriteFile(half, []byte(offset.String()), 0o600), os.Rename(half, p.clock()))
		if err != nil {
			return fmt.Errorf("set the clock of %s: %w", p.name, err)
		}
		sleep(ctx, between(r, time.Second, 3*time.Second))
		if err := os.Remove(p.clock()); err != nil {
			return fmt.Errorf("set the clock of %s: %w", p.name, err)
		}
		return nil
	}
}
