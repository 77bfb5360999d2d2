package consumer_test

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

var discard = slog.New(slog.DiscardHandler)

// memStore has notes in memory, with an inbox and versions.
type memStore struct {
	// onProject and onQuarantine, when set, are called first, without the lock;
	// their error is returned, and nothing is changed.
	onProject    func(ctx context.Context, notes []note) error
	onQuarantine func(ctx context.Context, m envelope.Quarantined) error

	mu           sync.Mutex
	inbox        map[string]bool
	entries      map[string]note // the newest of each
	quarantine   map[string]envelope.Quarantined
	transactions int
}

// handlers returns the handlers of notes.
func (s *memStore) handlers() consumer.Handlers {
	return consumer.Handlers{"note": consumer.Handle(decodeNote, s.project)}
}

func (s *memStore) project(ctx context.Context, consumerName string, notes []note) ([]envelope.Outcome, error) {
	if s.onProject != nil {
		if err := s.onProject(ctx, notes); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inbox == nil {
		s.inbox, s.entries = map[string]bool{}, map[string]note{}
	}
	s.transactions++
	outcomes := make([]envelope.Outcome, len(notes))
	for i, n := range notes {
		key := consumerName + "/" + n.ID.String()
		if s.inbox[key] {
			outcomes[i] = envelope.Duplicate
			continue
		}
		s.inbox[key] = true
		outcomes[i] = s.fold(n)
	}
	return outcomes, nil
}

// fold keeps the newest version of a note.
func (s *memStore) fold(n note) envelope.Outcome {
	last := s.entries[n.AggregateID]
	if n.Version <= last.Version {
		return envelope.Stale
	}
	s.entries[n.AggregateID] = n
	if n.Version > last.Version+1 {
		return envelope.AppliedAfterGap
	}
	return envelope.Applied
}

func (s *memStore) Quarantine(ctx context.Context, _ string, m envelope.Quarantined) error {
	if s.onQuarantine != nil {
		if err := s.onQuarantine(ctx, m); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quarantine == nil {
		s.quarantine = map[string]envelope.Quarantined{}
	}
	s.quarantine[m.MessageID] = m
	return nil
}

// versions returns the versions of the entries, by note.
func (s *memStore) versions() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := map[string]int64{}
	for id, entry := range s.entries {
		versions[id] = entry.Version
	}
	return versions
}

func (s *memStore) entry(id string) note {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[id]
}

func (s *memStore) quarantined() map[string]envelope.Quarantined {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.quarantine)
}

func (s *memStore) transactionCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.transactions
}

// fakeSource hands over all its messages at once, as the client does with
// messages of different keys.
type fakeSource []consumer.Message

func (s fakeSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	var calls sync.WaitGroup
	for _, m := range s {
		calls.Go(func() { handle(ctx, m) })
	}
	<-ctx.Done()
	calls.Wait()
	return nil
}

func (s fakeSource) String() string { return "projects/p/subscriptions/fake" }

// slowSource hands over its messages one after the other.
type slowSource struct {
	fakeSource
	pause time.Duration
}

func (s slowSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	return s.fakeSource.Receive(ctx, func(ctx context.Context, m consumer.Message) bool {
		for i := range s.fakeSource {
			if s.fakeSource[i].ID == m.ID {
				time.Sleep(time.Duration(i) * s.pause)
			}
		}
		return handle(ctx, m)
	})
}

// countingSource counts the acks and nacks of its messages.
type countingSource struct {
	fakeSource
	acks, nacks atomic.Int64
}

func (s *countingSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	return s.fakeSource.Receive(ctx, func(ctx context.Context, m consumer.Message) bool {
		ack := handle(ctx, m)
		if ack {
			s.acks.Add(1)
		} else {
			s.nacks.Add(1)
		}
		return ack
	})
}

// lateSource hands over one message more after a minute.
type lateSource struct {
	fakeSource
	late consumer.Message
}

func (s lateSource) Receive(ctx context.Context, handle func(context.Context, consumer.Message) bool) error {
	var late sync.WaitGroup
	late.Go(func() {
		time.Sleep(time.Minute)
		handle(ctx, s.late)
	})
	defer late.Wait()
	return s.fakeSource.Receive(ctx, handle)
}

// note is an event of a note, an aggregate of these tests.
type note struct {
	envelope.Message
	deleted bool
}

// The types of the events of a note.
const (
	written = "NoteWritten"
	edited  = "NoteEdited"
	deleted = "NoteDeleted"
)

// decodeNote reads a note, whose payload is its type.
func decodeNote(m envelope.Message) (note, error) {
	if m.SchemaVersion > 1 {
		return note{}, envelope.Undecodable("schema version %d is newer", m.SchemaVersion)
	}
	if !strings.HasPrefix(string(m.Payload), "Note") {
		return note{}, envelope.Undecodable("payload is no note")
	}
	return note{m, string(m.Payload) == deleted}, nil
}

// noteEvent returns the event that brings a note to a version.
func noteEvent(id string, version int64, typ string) note {
	return note{envelope.Message{
		ID: uuid.Must(uuid.NewV7()), Type: typ, AggregateType: "note", AggregateID: id, Version: version, SchemaVersion: 1,
		Payload: []byte(typ), OccurredAt: time.Now().UTC().Truncate(time.Millisecond),
	}, typ == deleted}
}

// messages returns n messages: the first event of each of n notes.
func messages(n int) fakeSource {
	var all fakeSource
	for range n {
		all = append(all, message(noteEvent(uuid.NewString(), 1, written)))
	}
	return all
}

func message(n note) consumer.Message {
	return consumer.Message{ID: n.ID.String(), Key: n.AggregateID, Attributes: n.Attributes(), Data: n.Payload, PublishTime: n.OccurredAt}
}

// readings reads what a receiver has counted.
type readings struct {
	t      *testing.T
	reader *sdkmetric.ManualReader
}

// newMeter makes a meter and a way to read it.
func newMeter(t *testing.T) (metric.Meter, readings) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	return provider.Meter("test"), readings{t, reader}
}

// counter returns the values of a counter, by the values of its attributes
// without the aggregate type.
func (r readings) counter(name string) map[string]int64 {
	r.t.Helper()
	return r.counterBy(name, func(attr attribute.KeyValue) bool { return attr.Key != "aggregate_type" })
}

// counterByType returns the values of a counter, by aggregate type and the value
// of its other attribute.
func (r readings) counterByType(name string) map[string]int64 {
	r.t.Helper()
	return r.counterBy(name, func(attribute.KeyValue) bool { return true })
}

func (r readings) counterBy(name string, keep func(attribute.KeyValue) bool) map[string]int64 {
	r.t.Helper()
	values := map[string]int64{}
	for _, m := range r.collect() {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
			for _, point := range sum.DataPoints {
				var label []string
				for _, attr := range point.Attributes.ToSlice() { // in the order of their keys
					if keep(attr) {
						label = append(label, attr.Value.AsString())
					}
				}
				values[strings.Join(label, " ")] += point.Value
			}
		}
	}
	return values
}

// histogram returns how many values a histogram has, and their sum.
func (r readings) histogram(name string) (count uint64, sum float64) {
	r.t.Helper()
	for _, m := range r.collect() {
		if m.Name != name {
			continue
		}
		switch data := m.Data.(type) {
		case metricdata.Histogram[int64]:
			for _, point := range data.DataPoints {
				count, sum = count+point.Count, sum+float64(point.Sum)
			}
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				count, sum = count+point.Count, sum+point.Sum
			}
		}
	}
	return count, sum
}

func (r readings) collect() []metricdata.Metrics {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	must(r.t, r.reader.Collect(context.Background(), &all))
	var metrics []metricdata.Metrics
	for _, scope := range all.ScopeMetrics {
		metrics = append(metrics, scope.Metrics...)
	}
	return metrics
}
