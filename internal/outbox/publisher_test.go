package outbox_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

var (
	errUnavailable = errors.New("broker is unavailable")
	errRefused     = &outbox.RefusedError{Err: errors.New("not a letter")}
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
	pgtest.Eventually(t, 20*time.Second, "the event is published", func() bool { return len(s.versions(id)) > 0 })
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
			return receipt(func() error { return errRefused })
		default:
			return receipt(func() error { return errUnavailable }) // its key is paused
		}
	}))
	for range 5 {
		s.change(poisoned)
		s.change(healthy)
	}
	events := pg.NewOutbox(s.pool)
	var blocked []pg.Blocked
	pgtest.Eventually(t, 20*time.Second, "the event is parked", func() bool {
		var err error
		blocked, _, err = events.ListBlocked(t.Context(), pg.Filter{}, 10)
		return err == nil && len(blocked) == 1 && !blocked[0].ParkedAt.IsZero()
	})
	if got := blocked[0]; got.ID != poisoned.String() || got.Version != 2 || got.Attempts != quick.MaxAttempts || got.LastError != "not a letter" {
		t.Errorf("blocked: %+v, want version 2 of %s after %d attempts", got, poisoned, quick.MaxAttempts)
	}
	s.change(poisoned)
	s.change(healthy)
	pgtest.Eventually(t, 20*time.Second, "the healthy letter is published", func() bool { return len(s.versions(healthy)) == 6 })
	if got := refusals.Load(); got != int64(quick.MaxAttempts) {
		t.Errorf("version 2 was tried %d times, want %d", got, quick.MaxAttempts)
	}
	skipped.Store(true)
	_, err := events.SkipBlocked(t.Context(), blocked, pg.Entry{Filter: []byte("{}"), Reason: "test"})
	pgtest.Must(t, err)
	s.settled()
	stop()
	for id, want := range map[uuid.UUID][]int64{poisoned: {1, 3, 4, 5, 6}, healthy: {1, 2, 3, 4, 5, 6}} {
		if diff := cmp.Diff(want, s.versions(id)); diff != "" {
			t.Errorf("versions of %s (-want +got):\n%s", id, diff)
		}
	}
}
