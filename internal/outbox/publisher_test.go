package outbox_test

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
)

// quick are the settings of a publisher that polls often.
var quick = outbox.Config{MaxAttempts: 2, PollInterval: 5 * time.Millisecond}

// The events that a publisher had claimed when it died are published by another one when the
// lease ends, and not before.
func TestDeadPublisherIsReplaced(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	s, id := newStorm(t), uuid.Must(uuid.NewV7())
	s.change(id)
	start := time.Now()
	if claim, err := pg.NewOutbox(s.pool).ClaimEvents(t.Context(), outbox.Limits{Lanes: 1, Events: 10, Bytes: 1 << 20, Lease: lease}); len(claim.Events) != 1 || err != nil {
		t.Fatalf("ClaimEvents() = %+v, %v, want one event", claim, err)
	}
	defer s.publish(quick, nil, broker(s.take))()
	eventually(t, "the event is published", func() bool { return len(s.versions(id)) > 0 })
	if took := time.Since(start); took < lease {
		t.Errorf("published after %s, want not before the lease of %s has ended", took, lease)
	}
}

// An event that the broker refuses holds up its own letter only, and is parked after MaxAttempts.
// Once it is skipped, the later events of its letter follow, in order.
func TestPoisonIsParkedAndSkipped(t *testing.T) {
	t.Parallel()
	s, poisoned, healthy := newStorm(t), uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	var refusals atomic.Int64
	var skipped atomic.Bool
	stop := s.publish(quick, nil, broker(func(m envelope.Message) outbox.Receipt {
		switch {
		case m.AggregateID != poisoned.String() || m.Version == 1 || skipped.Load():
			return s.take(m)
		case m.Version == 2:
			refusals.Add(1)
			return responded(errRefused)
		default:
			return responded(errUnavailable) // its key is paused
		}
	}))
	for range 5 {
		s.change(poisoned)
		s.change(healthy)
	}
	events := pg.NewOutbox(s.pool)
	var blocked []pg.Blocked
	eventually(t, "the event is parked", func() bool {
		var err error
		blocked, _, err = events.ListBlocked(t.Context(), pg.Filter{}, 10)
		return err == nil && len(blocked) == 1 && !blocked[0].ParkedAt.IsZero()
	})
	if got := blocked[0]; got.ID != poisoned.String() || got.Version != 2 || got.Attempts != quick.MaxAttempts || got.LastError != "not a letter" {
		t.Errorf("blocked: %+v, want version 2 of %s after %d attempts", got, poisoned, quick.MaxAttempts)
	}
	s.change(poisoned)
	s.change(healthy)
	eventually(t, "the healthy letter is published", func() bool { return len(s.versions(healthy)) == 6 })
	if got := refusals.Load(); got != int64(quick.MaxAttempts) {
		t.Errorf("version 2 was tried %d times, want %d", got, quick.MaxAttempts)
	}
	skipped.Store(true)
	if _, err := events.SkipBlocked(t.Context(), blocked, pg.Entry{Filter: []byte("{}"), Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	s.settled()
	stop()
	for id, want := range map[uuid.UUID][]int64{poisoned: {1, 3, 4, 5, 6}, healthy: {1, 2, 3, 4, 5, 6}} {
		if diff := cmp.Diff(want, s.versions(id)); diff != "" {
			t.Errorf("versions of %s (-want +got):\n%s", id, diff)
		}
	}
}

// An outage of the broker counts no attempt and parks nothing. Everything is published after it,
// in order.
func TestOutageParksNothing(t *testing.T) {
	t.Parallel()
	s := newStorm(t)
	var mu sync.Mutex
	tries, most := make(map[uuid.UUID]int), 0
	var back atomic.Bool
	stop := s.publish(quick, nil, broker(func(m envelope.Message) outbox.Receipt {
		if back.Load() {
			return s.take(m)
		}
		mu.Lock()
		defer mu.Unlock()
		tries[m.ID]++
		most = max(most, tries[m.ID])
		return responded(errUnavailable)
	}))
	s.write(5, 10)
	eventually(t, "more tries than an event may have", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return most > quick.MaxAttempts
	})
	if n := s.count("SELECT count(*) FROM video_catalog.outbox_blocked"); n > 0 {
		t.Errorf("%d letters are blocked, want none", n)
	}
	back.Store(true)
	s.settled()
	stop()
	s.check()
}

// newTopic makes a Topic, and the Pub/Sub server that has it.
func newTopic(t testing.TB) (*outbox.Topic, *localbroker.Server) {
	t.Helper()
	server, client := localtopics.Start(t, "test-project", localbroker.Resources{Schemaless: true})
	topic := outbox.NewTopic(client.Publisher(localtopics.Topic), 5*time.Second, 10)
	t.Cleanup(topic.Stop)
	return topic, server
}

// pass hands messages over and waits for the responses, as a pass does. It returns how many were
// acknowledged.
func pass(t testing.TB, topic *outbox.Topic, names string) (acknowledged int) {
	t.Helper()
	var receipts []outbox.Receipt
	for name := range strings.FieldsSeq(names) {
		m := claimed(name)[0].Message
		m.ID, m.Type, m.SchemaVersion, m.Payload = uuid.Must(uuid.NewV7()), "LetterChanged", 1, []byte(name)
		receipts = append(receipts, topic.Publish(m))
	}
	for _, r := range receipts {
		if r.Wait(t.Context()) == nil {
			acknowledged++
		}
	}
	return acknowledged
}

// A message arrives with its bytes, its attributes, and its aggregate as the ordering key. After
// an error the client has paused the key. The next pass begins at the first message that is not
// acknowledged, and the order holds.
func TestTopicKeepsTheOrderAfterAnError(t *testing.T) {
	t.Parallel()
	topic, server := newTopic(t)
	if n := pass(t, topic, "a1 a2"); n != 2 {
		t.Fatalf("%d messages were acknowledged, want 2", n)
	}
	for range 3 { // the key is paused and resumed each time
		server.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: "a", Code: codes.PermissionDenied, Times: 1})
		if n := pass(t, topic, "a3 b1 a4 a5"); n != 1 {
			t.Errorf("%d messages were acknowledged in the pass that fails, want b1 only", n)
		}
	}
	if n := pass(t, topic, "a3 a4 a5 b2"); n != 4 {
		t.Errorf("%d messages were acknowledged in the pass after it, want 4", n)
	}
	var got []string
	for _, m := range server.Published() {
		if m.OrderingKey == "a" {
			got = append(got, string(m.Data))
		}
		if attributes := m.Attributes; attributes[envelope.AttrAggregateID] != m.OrderingKey || attributes[envelope.AttrEventType] != "LetterChanged" {
			t.Errorf("message %q has the attributes %v and the key %q", m.Data, attributes, m.OrderingKey)
		}
	}
	if want := []string{"a1", "a2", "a3", "a4", "a5"}; !slices.Equal(got, want) {
		t.Errorf("stored: %q, want %q", got, want)
	}
}
