package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/store"
)

// newcomer is a consumer that knows nothing when it subscribes.
type newcomer struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan error

	mu       sync.Mutex
	entries  map[string]domain.Entry // guarded by mu; by the id of the video
	marks    map[string]int          // guarded by mu; messages by their mark
	mistakes []string                // guarded by mu
}

func (s *stack) subscribe(t *testing.T) *newcomer {
	t.Helper()
	client, err := s.pubsub.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name:                  "projects/" + project + "/subscriptions/newcomer",
		Topic:                 "projects/" + project + "/topics/" + names.VideoTopic.Name,
		EnableMessageOrdering: true,
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := &newcomer{t: t, cancel: cancel, done: make(chan error, 1), entries: make(map[string]domain.Entry), marks: make(map[string]int)}
	go func() {
		n.done <- client.Subscriber("newcomer").Receive(ctx, func(_ context.Context, m *pubsub.Message) {
			n.receive(m)
			m.Ack()
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-n.done; err != nil {
			t.Errorf("Receive() = %v", err)
		}
		_ = client.Close() // its server may have gone
	})
	return n
}

func (n *newcomer) receive(received *pubsub.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m, err := envelope.Parse(received.Attributes, received.Data)
	if err != nil {
		n.mistakes = append(n.mistakes, err.Error())
		return
	}
	e, err := event.Decode(m)
	if err != nil {
		n.mistakes = append(n.mistakes, err.Error())
		return
	}
	n.marks[m.Repeat]++
	entry, outcome := domain.Fold(n.entries[m.AggregateID], e)
	if outcome == domain.Conflict {
		n.mistakes = append(n.mistakes, fmt.Sprintf("version %d of %s, %q, is a conflict", m.Version, m.AggregateID, m.Repeat))
	}
	n.entries[m.AggregateID] = entry
}

// differs says how the newcomer differs from the owner, if it does.
func (n *newcomer) differs(owner map[string]domain.Entry) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cmp.Diff(owner, n.entries, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(domain.Entry{}, "EventID"))
}

// owned are the entries that should follow from the videos.
func (s *stack) owned(t *testing.T) map[string]domain.Entry {
	t.Helper()
	videos := store.NewVideos(s.pool, nil)
	owned := make(map[string]domain.Entry)
	for after := (*domain.VideoCursor)(nil); ; {
		page, more, err := videos.ListVideos(t.Context(), domain.VideoQuery{ShowDeleted: true, After: after, Limit: 1000, MaxBytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page {
			owned[v.ID.String()] = domain.EntryOf(v)
			after = &domain.VideoCursor{CreateTime: v.CreateTime, ID: v.ID}
		}
		if !more {
			return owned
		}
	}
}

// settle waits until nothing is pending.
func (s *stack) settle(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "nothing is pending", func() bool { return s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending") == 0 })
}

// backfill runs the command until it ends, or is killed when the audit has that many rows of
// it. It returns where to continue.
func (s *stack) backfill(t *testing.T, killAt int, args ...string) (last uuid.UUID) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"outbox", "backfill", "video", "--reason", "test"}, args...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.environ(), &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if killAt == 0 {
		if err := cmd.Wait(); err != nil {
			t.Errorf("server outbox backfill %s = %v: %s", strings.Join(args, " "), err, out.String())
		}
		return uuid.Nil
	}
	eventually(t, time.Minute, "the backfill has begun", func() bool {
		return s.count(t, "SELECT count(*) FROM video_catalog.audit WHERE action = $1", admin.ActionBackfill) >= killAt
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if err := s.pool.QueryRow(t.Context(), "SELECT before -> 0 ->> 'last' FROM video_catalog.audit WHERE action = $1 ORDER BY id DESC LIMIT 1", admin.ActionBackfill).Scan(&last); err != nil {
		t.Fatal(err)
	}
	return last
}

// A new consumer has the state of the owner after a backfill, although the videos change
// meanwhile, and the command is killed and continued. The events
// of the commands keep their order, and who had the state keeps it.
func TestNewConsumerCatchesUp(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t)
	const videos = 60
	var all []string
	for i := range videos {
		all = append(all, p.create(t, fmt.Sprint("Ran ", i)))
	}
	p.delete(t, all[0])
	s.settle(t)
	n := s.subscribe(t)

	stop := make(chan struct{})
	var commands sync.WaitGroup
	for worker := range 3 {
		commands.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending") > 5 {
					time.Sleep(time.Millisecond) // leaves room for the backfill, which waits while many events are pending
					continue
				}
				p.rename(t, all[1+random.IntN(videos-1)], fmt.Sprint("Kagemusha ", worker, i))
			}
		})
	}
	last := s.backfill(t, 2, "--pending", "10")
	s.backfill(t, 0, "--after", last.String())
	close(stop)
	commands.Wait()
	p.delete(t, all[1])
	s.settle(t)

	owned := s.owned(t)
	if len(owned) != videos {
		t.Fatalf("the owner has %d videos, want %d", len(owned), videos)
	}
	eventually(t, time.Minute, "the newcomer has every video and every snapshot", func() bool {
		n.mu.Lock()
		received := n.marks[""] > 0 && n.marks[envelope.RepeatSnapshot] >= videos
		n.mu.Unlock()
		return received && n.differs(owned) == ""
	})
	n.mu.Lock()
	if len(n.mistakes) > 0 {
		t.Errorf("the newcomer received %v and saw mistakes: %q", n.marks, n.mistakes)
	}
	n.mu.Unlock()
	newest, seen := make(map[string]string), make(map[string]bool)
	for _, m := range s.pubsub.Published() {
		id, version := m.Attributes[envelope.AttrEventID], fmt.Sprintf("%20s", m.Attributes[envelope.AttrVersion])
		if m.Attributes[envelope.AttrRepeat] != "" || seen[id] { // after a lost answer it is published twice
			continue
		}
		seen[id] = true
		if version <= newest[m.OrderingKey] {
			t.Errorf("version %s of %s was published after version %s", version, m.OrderingKey, newest[m.OrderingKey])
		}
		newest[m.OrderingKey] = version
	}
	catalog := store.NewCatalog(s.pool)
	eventually(t, time.Minute, "the catalog has every video", func() bool {
		for id, want := range owned {
			if got, err := catalog.GetEntry(t.Context(), uuid.MustParse(id)); err != nil || cmp.Diff(want, got, cmpopts.EquateEmpty()) != "" {
				return false
			}
		}
		return true
	})
	if p.logs("claim one version") || p.logs("was not seen") || p.logs("quarantined") {
		t.Error("the projector has logged a conflict, a gap or a message that it cannot read")
	}
}

// An interrupted command says how to continue, and what it and its continuation have done
// is what a dry run has counted.
func TestInterruptedBackfillContinues(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	if _, err := s.pool.Exec(t.Context(), `
		INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time)
		SELECT gen_random_uuid(), 'Ran', '', 0, 0, '', '{}', 'draft', 1, now(), now() FROM generate_series(1, 3000)`); err != nil {
		t.Fatal(err)
	}
	if out, err := s.command(t, "outbox", "backfill", "video", "--dry-run"); out != "3000 aggregates match; nothing was changed\n" || err != nil {
		t.Errorf("dry run = %q, %v, want 3,000", out, err)
	}
	// Nobody publishes, so it waits behind its first pages.
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, "outbox", "backfill", "video", "--reason", "test", "--pending", "1200", "--json")
	cmd.Env, cmd.Stdout, cmd.Stderr = s.environ(), &out, &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "two pages are pending", func() bool { return s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending") == 1000 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var result admin.BackfillResult
	if err := cmd.Wait(); exitOf(err) != app.ExitFailed || json.Unmarshal(out.Bytes(), &result) != nil || result.Done != 1000 || result.Matched != 3000 || result.Last == uuid.Nil {
		t.Fatalf("interrupted backfill = %v, %q, %s, want exit code %d and 1,000 of 3,000", err, out.String(), errOut.String(), app.ExitFailed)
	}
	rest, err := s.command(t, "outbox", "backfill", "video", "--reason", "test", "--pending", "5000", "--after", result.Last.String())
	if !strings.HasPrefix(rest, "published 2000 of 2000 aggregates; action ") || err != nil {
		t.Errorf("continued backfill = %q, %v, want the other 2,000", rest, err)
	}
	if got := s.count(t, "SELECT count(DISTINCT aggregate_id) FROM video_catalog.outbox_pending WHERE repeat = 'snapshot'"); got != 3000 {
		t.Errorf("%d videos have a snapshot, want 3,000", got)
	}
}

// Wrong input is refused with the name of the flag, and nothing becomes pending.
func TestBackfillMistakesAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"backfill", "--reason", "x"}, app.ExitUsage, "server help"},
		{[]string{"backfill", "video", "parcel", "--reason", "x"}, app.ExitUsage, "server help"},
		{[]string{"backfill", "parcel", "--reason", "x"}, app.ExitUsage, "type"},
		{[]string{"backfill", "video"}, app.ExitUsage, "reason"},
		{[]string{"backfill", "video", "--all", "--reason", "x"}, app.ExitUsage, "-all"},
		{[]string{"backfill", "video", "--filter", "id=x", "--reason", "x"}, app.ExitUsage, "-filter"},
		{[]string{"backfill", "video", "--after", "7", "--reason", "x"}, app.ExitUsage, "--after"},
		{[]string{"backfill", "video", "--pending", "-1", "--reason", "x"}, app.ExitUsage, "pending"},
		{[]string{"backfill", "video", "--pending", "many", "--reason", "x"}, app.ExitUsage, "-pending"},
		{[]string{"republish", "--all", "--reason", "x"}, app.ExitUsage, "server help"},
		{[]string{"backfill", "video", "--from", "2026-01-31T12:00:00Z", "--reason", "x"}, app.ExitUsage, "-from"},
	} {
		_, err := s.command(t, append([]string{"outbox"}, test.args...)...)
		if got := exitOf(err); got != test.exit || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("server outbox %s = %d, %v, want exit code %d with %q", strings.Join(test.args, " "), got, err, test.exit, test.want)
		}
	}
	if got := s.count(t, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.audit)"); got != 0 {
		t.Errorf("%d rows are pending or in the audit, want none", got)
	}
}
