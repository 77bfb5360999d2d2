package outbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// memory is a store in memory: lanes with leases, and no blocked aggregates.
type memory struct {
	mu      sync.Mutex
	lanes   []memoryLane
	fail    func() error // of claims; nil: they succeed
	seq     int64
	claims  []memoryClaim
	settled []outbox.Settlement
	token   int64 // of the last claim
}

type memoryLane struct {
	pending []outbox.Claimed
	token   int64
	until   time.Time
}

type memoryClaim struct {
	at    time.Time
	batch int
	lanes int
	found int // events
	busy  int // lanes that were leased already
}

func newMemory(lanes int) *memory {
	return &memory{lanes: make([]memoryLane, lanes)}
}

// add appends events to a lane.
func (s *memory) add(lane int, names string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range claimed(names) {
		s.seq++
		e.Seq = s.seq
		s.lanes[lane].pending = append(s.lanes[lane].pending, e)
	}
}

// addPayload appends an event whose payload is its name.
func (s *memory) addPayload(lane int, name string) {
	s.add(lane, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	pending := s.lanes[lane].pending
	pending[len(pending)-1].Payload = []byte(name)
}

// left returns what is pending.
func (s *memory) left() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lane := range s.lanes {
		for _, e := range lane.pending {
			names = append(names, nameOf(e.Message))
		}
	}
	return names
}

// claimsSince returns the claims from a time on.
func (s *memory) claimsSince(start time.Time) []memoryClaim {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.claims, func(c memoryClaim) bool { return !c.at.Before(start) })
	if i < 0 {
		return nil
	}
	return slices.Clone(s.claims[i:])
}

func (s *memory) ClaimEvents(_ context.Context, limits outbox.Limits) (outbox.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	made := memoryClaim{at: now, batch: limits.Events, lanes: limits.Lanes}
	if s.fail != nil {
		if err := s.fail(); err != nil {
			return outbox.Claim{}, err
		}
	}
	var free []int16
	for i, lane := range s.lanes {
		if lane.until.After(now) {
			made.busy++
		} else if len(lane.pending) > 0 {
			free = append(free, int16(i))
		}
	}
	slices.SortStableFunc(free, func(a, b int16) int { return s.lanes[a].until.Compare(s.lanes[b].until) })
	free = free[:min(len(free), limits.Lanes)]
	var claim outbox.Claim
	if len(free) > 0 {
		share := limits.Share(len(free))
		s.token++
		claim.Token = s.token
		for _, i := range free {
			lane := &s.lanes[i]
			lane.token, lane.until = s.token, now.Add(limits.Lease)
			var events []outbox.Claimed
			left := share.Bytes
			for _, e := range lane.pending[:min(share.Events, len(lane.pending))] {
				if left <= 0 {
					break
				}
				events = append(events, e)
				left -= int64(len(e.Payload))
			}
			claim.Add(i, nil, events, share)
		}
	}
	made.found = len(claim.Events)
	s.claims = append(s.claims, made)
	return claim, nil
}

func (s *memory) SettleClaim(_ context.Context, settlement outbox.Settlement) (held bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held = true
	for _, span := range settlement.Spans {
		lane := &s.lanes[span.Lane]
		if lane.token != settlement.Token {
			held = false
			continue
		}
		lane.token, lane.until = 0, time.Now()
		lane.pending = slices.DeleteFunc(lane.pending, func(e outbox.Claimed) bool {
			return slices.Contains(settlement.Published, e.Seq) || settlement.Resumed[e.Aggregate()] == e.Seq
		})
	}
	s.settled = append(s.settled, settlement)
	return held, nil
}

// recorder is a broker that records what it is sent; answer may be nil, then
// it acknowledges at once.
type recorder struct {
	answer func(m envelope.Message) outbox.Receipt

	mu   sync.Mutex
	sent []string
	at   []time.Time
}

func (b *recorder) Publish(m envelope.Message) outbox.Receipt {
	b.mu.Lock()
	b.sent = append(b.sent, nameOf(m))
	b.at = append(b.at, time.Now())
	b.mu.Unlock()
	if b.answer == nil {
		return responded(nil)
	}
	return b.answer(m)
}

// take returns the messages since its last call, and the time of the last message.
func (b *recorder) take() (sent []string, last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.at) > 0 {
		last = b.at[len(b.at)-1]
	}
	sent, b.sent, b.at = b.sent, nil, nil
	return sent, last
}

// run runs a publisher until stop is called, which waits for it.
func run(t testing.TB, publisher *outbox.Publisher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := publisher.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// logged returns a publisher and the buffer of its log, to be read after Run
// has returned.
func logged(t testing.TB, store outbox.Store, broker outbox.Broker, cfg outbox.Config) (*outbox.Publisher, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	publisher, err := outbox.New(store, broker, cfg, slog.New(slog.NewTextHandler(&log, nil)), noop.Meter{})
	must(t, err)
	return publisher, &log
}
