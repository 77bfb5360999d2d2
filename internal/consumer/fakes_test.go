package consumer_test

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
)

var discard = slog.New(slog.DiscardHandler)

// memStore is a catalog in memory, with an inbox and versions.
type memStore struct {
	// onProject and onQuarantine, when set, are called first, without the lock;
	// an error is the answer, and nothing is changed.
	onProject    func(ctx context.Context, events []domain.Event) error
	onQuarantine func(ctx context.Context, m envelope.Quarantined) error

	mu           sync.Mutex
	inbox        map[string]bool
	entries      map[uuid.UUID]domain.Entry
	quarantine   map[string]envelope.Quarantined
	transactions int
}

func (s *memStore) Project(ctx context.Context, consumer string, events []domain.Event) ([]domain.Outcome, error) {
	if s.onProject != nil {
		if err := s.onProject(ctx, events); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inbox == nil {
		s.inbox, s.entries = map[string]bool{}, map[uuid.UUID]domain.Entry{}
	}
	s.transactions++
	outcomes := make([]domain.Outcome, len(events))
	for i, e := range events {
		key := consumer + "/" + e.ID.String()
		if s.inbox[key] {
			outcomes[i] = domain.Duplicate
			continue
		}
		s.inbox[key] = true
		s.entries[e.Video.ID], outcomes[i] = domain.Fold(s.entries[e.Video.ID], e)
	}
	return outcomes, nil
}

func (s *memStore) Quarantine(ctx context.Context, consumer string, m envelope.Quarantined) error {
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

// versions are those of the entries, by video.
func (s *memStore) versions() map[uuid.UUID]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := map[uuid.UUID]int64{}
	for id, entry := range s.entries {
		versions[id] = entry.Version
	}
	return versions
}

func (s *memStore) entry(id uuid.UUID) domain.Entry {
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
type fakeSource []*pubsub.Message

func (s fakeSource) Receive(ctx context.Context, f func(context.Context, *pubsub.Message)) error {
	var callbacks sync.WaitGroup
	for _, m := range s {
		callbacks.Go(func() { f(ctx, m) })
	}
	<-ctx.Done()
	callbacks.Wait()
	return nil
}

func (s fakeSource) String() string { return "projects/p/subscriptions/fake" }

// slowSource hands over its messages one after the other.
type slowSource struct {
	fakeSource
	pause time.Duration
}

func (s slowSource) Receive(ctx context.Context, f func(context.Context, *pubsub.Message)) error {
	return s.fakeSource.Receive(ctx, func(ctx context.Context, m *pubsub.Message) {
		for i := range s.fakeSource {
			if s.fakeSource[i] == m {
				time.Sleep(time.Duration(i) * s.pause)
			}
		}
		f(ctx, m)
	})
}

// videoEvent is an event that leaves a video in a version.
func videoEvent(video uuid.UUID, version int64, typ domain.EventType) domain.Event {
	now := time.Now().UTC().Truncate(time.Millisecond)
	e := domain.Event{
		ID: uuid.Must(uuid.NewV7()), Type: typ, OccurredAt: now,
		Video: domain.Video{
			ID: video, Details: domain.Details{Title: "A title"}, State: domain.Draft, Version: version,
			CreateTime: now, UpdateTime: now,
		},
	}
	if typ == domain.VideoDeleted {
		e.Video.DeleteTime = now
	}
	return e
}

// messages are those of one first event for each of n videos.
func messages(t *testing.T, n int) fakeSource {
	t.Helper()
	var all fakeSource
	for range n {
		all = append(all, message(t, videoEvent(uuid.New(), 1, domain.VideoCreated)))
	}
	return all
}

func message(t *testing.T, e domain.Event) *pubsub.Message {
	t.Helper()
	m, err := event.Encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	return &pubsub.Message{ID: e.ID.String(), Data: m.Payload, Attributes: m.Attributes(), OrderingKey: m.AggregateID, PublishTime: e.OccurredAt}
}

// readings reads what a projector has counted.
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

// counter returns the values of a counter, by the value of its one attribute.
func (r readings) counter(name string) map[string]int64 {
	r.t.Helper()
	values := map[string]int64{}
	for _, m := range r.collect() {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
			for _, point := range sum.DataPoints {
				label := ""
				for _, attr := range point.Attributes.ToSlice() {
					label = attr.Value.AsString()
				}
				values[label] += point.Value
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
	if err := r.reader.Collect(context.Background(), &all); err != nil {
		r.t.Fatal(err)
	}
	var metrics []metricdata.Metrics
	for _, scope := range all.ScopeMetrics {
		metrics = append(metrics, scope.Metrics...)
	}
	return metrics
}
