package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/event"
)

// Newcomer is a consumer that subscribes to the topic during the run. It has missed what was published before, so an
// operator backfills it. It keeps the newest version of each video, and ignores what it has.
type Newcomer struct {
	Name   string
	Videos map[uuid.UUID]Held
	Odd    []string // messages that contradict what it has, or cannot be read
	begin  chan struct{}
	mu     sync.Mutex // guards Videos and Odd while it runs
}

// Held is a version of a video that a newcomer has.
type Held struct {
	Version int64
	State   uint64 // digest
}

// newcomers is how many newcomers a run has. Later backfills go to those that it has.
const newcomers = 3

func newNewcomers() (all []*Newcomer) {
	for n := range newcomers {
		all = append(all, &Newcomer{Name: fmt.Sprintf("%s-%d", tapName, n+1), Videos: map[uuid.UUID]Held{}, begin: make(chan struct{})})
	}
	return all
}

// began reports whether it has its subscription.
func (n *Newcomer) began() bool {
	select {
	case <-n.begin:
		return true
	default:
		return false
	}
}

// run receives until ctx ends, from when it has its subscription.
func (n *Newcomer) run(ctx context.Context, client *pubsub.Client) {
	select {
	case <-ctx.Done():
		return
	case <-n.begin:
	}
	subscriber := client.Subscriber(n.Name)
	for ctx.Err() == nil {
		_ = subscriber.Receive(ctx, func(_ context.Context, m *pubsub.Message) { // it is called again
			var e videov1.VideoEvent
			id, err := uuid.Parse(m.OrderingKey)
			if err = errors.Join(err, proto.Unmarshal(m.Data, &e)); err != nil {
				n.odd("message %s: %v", m.ID, err)
			} else {
				n.hold(id, Held{e.GetVersion(), stateOfEvent(&e).digest()})
			}
			m.Ack()
		})
		sleep(ctx, 100*time.Millisecond)
	}
}

func (n *Newcomer) odd(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Odd = append(n.Odd, fmt.Sprintf(format, args...))
}

// hold takes the state in a message if it is newer than its own.
func (n *Newcomer) hold(video uuid.UUID, got Held) {
	n.mu.Lock()
	defer n.mu.Unlock()
	has := n.Videos[video]
	if got.Version == has.Version && got.State != has.State {
		n.Odd = append(n.Odd, fmt.Sprintf("two states of version %d of video %s", got.Version, video))
	}
	if got.Version > has.Version {
		n.Videos[video] = got
	}
}

// differs returns how many videos it does not have as their rows are, or has without a row.
func (n *Newcomer) differs(rows []VideoRow) (differ int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := 0
	for _, row := range rows {
		got, ok := n.Videos[row.ID]
		if ok {
			found++
		}
		if got != (Held{row.Version, row.State}) {
			differ++
		}
	}
	return differ + len(n.Videos) - found
}

// backfillNewcomer subscribes a new consumer, while there is one left, and has the state of every video published for it,
// while commands go on. The first command is killed. The next one begins again, and what it repeats is ignored.
func backfillNewcomer(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	if i := slices.IndexFunc(l.newcomers, func(n *Newcomer) bool { return !n.began() }); i >= 0 {
		n := l.newcomers[i]
		record.Target = n.Name
		if err := l.subscribe(ctx, n.Name); err != nil {
			return err
		}
		close(n.begin)
	}
	if err := l.collectMarks(ctx); err != nil {
		return err
	}
	before := len(l.marks)
	args := []string{"backfill", why, event.AggregateVideo}
	life := between(r, 20*time.Millisecond, 150*time.Millisecond)
	o, err := l.command(ctx, func(ctx context.Context) bool { return sleep(ctx, life) }, args...)
	const done = 0
	if err == nil && o.code != done {
		_, _, err = l.untilDone(ctx, []int{done}, args, continued)
	}
	if err = errors.Join(err, l.collectMarks(ctx)); err == nil && len(l.marks) == before {
		record.Missing = "no video to publish"
	}
	return err
}

// subscribe creates a subscription, when the broker is there.
func (l *lab) subscribe(ctx context.Context, name string) error {
	for deadline := time.Now().Add(commandPatience); ; {
		err := l.broker.subscribe(ctx, name)
		if err == nil || status.Code(err) == codes.AlreadyExists { // the first response was lost
			return nil
		}
		if time.Now().After(deadline) || !sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// quietNewcomers waits until all newcomers have what the rows say, or until watchersWithin. The checker compares them.
func (l *lab) quietNewcomers(ctx context.Context) {
	var db Database
	err := l.look(ctx, func(ctx context.Context, c conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return readVideos(ctx, tx, &db) })
	})
	if err != nil {
		l.timeline.add("cannot read the videos", "err", err.Error())
		return
	}
	start := time.Now()
	differ := -1
	for ; differ != 0 && time.Since(start) < watchersWithin && ctx.Err() == nil; sleep(ctx, 50*time.Millisecond) {
		differ = 0
		for _, n := range l.newcomers {
			if n.began() {
				differ += n.differs(db.Videos)
			}
		}
	}
	l.timeline.add("newcomers", "differ", differ, "after_ms", time.Since(start).Milliseconds())
}

// checkNewcomers compares what newcomers have with the rows of the source, of which they have heard by a backfill and by
// events alone.
func (c *checker) checkNewcomers() {
	for _, n := range c.h.Newcomers {
		c.verdict.Figures.Held += len(n.Videos)
		rows := make(map[uuid.UUID]bool, len(c.h.Database.Videos))
		for _, row := range c.h.Database.Videos {
			rows[row.ID] = true
			if got := n.Videos[row.ID]; got != (Held{row.Version, row.State}) {
				c.broken(NewcomerDiffers, "%s: video %s: got version %d (0: none) with state %x, want version %d with %x", n.Name, row.ID, got.Version, got.State, row.Version, row.State)
			}
		}
		for id := range n.Videos {
			if !rows[id] {
				c.broken(NewcomerDiffers, "%s: there is no video %s", n.Name, id)
			}
		}
		for _, odd := range n.Odd {
			c.broken(NewcomerDiffers, "%s: %s", n.Name, odd)
		}
	}
}
