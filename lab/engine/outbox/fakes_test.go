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
	laneOf  map[int16]int // the lane where a test has put the events of an outbox.Lane
}

type memoryLane struct {
	pending []outbox.Claimed
	mark    int64 // the last event that was settled
	token   int64
	until   time.Time
}

type memoryClaim struct {
	at    time.Time
	batch int
	lane  int16
	found int // events
	busy  int // lanes that were leased already
}

func newMemory(lanes int) *memory {
	return &memory{lanes: make([]memoryLane, lanes), laneOf: make(map[int16]int)}
}

// add appends events to a lane.
func (s *memory) add(lane int, names string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range claimed(names) {
		s.seq++
		e.Seq = s.seq
		s.laneOf[outbox.Lane(e.Aggregate())] = lane
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

func (s *memory) ClaimEvents(_ context.Context, lane int16, batch int, maxBytes int64, lease time.Duration) (outbox.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	made := memoryClaim{at: now, batch: batch, lane: lane}
	only, known := s.laneOf[lane]
	pick := -1
	for i, candidate := range s.lanes {
		switch {
		case candidate.until.After(now):
			made.busy++
		case lane != outbox.AnyLane && (!known || i != only || !slices.ContainsFunc(candidate.pending, func(e outbox.Claimed) bool { return e.Seq > candidate.mark })):
		case len(candidate.pending) > 0 && (pick < 0 || candidate.until.Before(s.lanes[pick].until)):
			pick = i
		}
	}
	var claim outbox.Claim
	var err error
	if s.fail != nil {
		err = s.fail()
	}
	if err == nil && pick >= 0 {
		lane := &s.lanes[pick]
		lane.token++
		lane.until = now.Add(lease)
		claim = outbox.Claim{Lane: int16(pick), Token: lane.token}
		for _, e := range lane.pending[:min(batch, len(lane.pending))] {
			if maxBytes <= 0 {
				break
			}
			claim.Events = append(claim.Events, e)
			maxBytes -= int64(len(e.Payload))
		}
	}
	made.found = len(claim.Events)
	s.claims = append(s.claims, made)
	return claim, err
}

func (s *memory) SettleClaim(_ context.Context, settlement outbox.Settlement) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lane := &s.lanes[settlement.Lane]
	if lane.token != settlement.Token {
		return false, nil
	}
	lane.token++
	lane.until = time.Now()
	for _, seq := range settlement.Published {
		lane.mark = max(lane.mark, seq)
	}
	lane.pending = slices.DeleteFunc(lane.pending, func(e outbox.Claimed) bool {
		return slices.Contains(settlement.Published, e.Seq) || settlement.Resumed[e.Aggregate()] == e.Seq
	})
	s.settled = append(s.settled, settlement)
	return true, nil
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
		return answer(nil)
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
func logged(t *testing.T, store outbox.Store, broker outbox.Broker, cfg outbox.Config) (*outbox.Publisher, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	publisher, err := outbox.New(store, broker, cfg, slog.New(slog.NewTextHandler(&log, nil)), noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	return publisher, &log
}
