package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
)

// A stop while the database is unavailable does not wait for it: everything is given
// back at once.
func TestProjectorStopsWhileDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memStore{onProject: func(context.Context, []note) error { return unavailable() }}
		start := time.Now()
		ended := projectTraced(t, consumer.Config{RetryMin: time.Hour, RetryMax: time.Hour}, store, messages(300))
		if took := time.Since(start) - time.Second; took > 10*time.Millisecond {
			t.Errorf("Run returned %s after ctx was done, want at once", took)
		}
		if diff := cmp.Diff(map[string]int{"given_back": 300}, ended); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	})
}

// What is too late is given back wherever it is: with a worker, in a batch that
// no worker is free for, or not collected yet.
func TestProjectorGivesBackEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memStore{onProject: func(ctx context.Context, _ []note) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		ended := projectTraced(t, consumer.Config{Workers: 1, BatchSize: 2, StopTimeout: time.Second}, store, messages(10))
		if diff := cmp.Diff(map[string]int{"given_back": 10}, ended); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	})
}

// A client that does not stop is left behind, but no call of the store is.
func TestProjectorLeavesClientThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		store := &memStore{onProject: func(ctx context.Context, _ []note) error {
			calls.Add(1)
			defer calls.Add(-1)
			<-ctx.Done()
			time.Sleep(1500 * time.Millisecond) // a slow rollback
			return ctx.Err()
		}}
		source := hangingSource{fakeSource: messages(1), release: make(chan struct{})}
		defer close(source.release)
		start := time.Now()
		project(t, consumer.Config{StopTimeout: 5 * time.Second}, store, source, time.Second)
		if took := time.Since(start) - time.Second; took != 5500*time.Millisecond {
			t.Errorf("Run returned %s after ctx was done, want 5.5s", took)
		}
		if got := calls.Load(); got != 0 {
			t.Errorf("calls of the store after Run = %d, want 0", got)
		}
	})
}

// A message that cannot even be quarantined does not keep the client from
// starting again after the broker has refused for good.
func TestProjectorReceivesAgainBesideWhatItCannotQuarantine(t *testing.T) {
	t.Parallel()
	resources := localbroker.Resources{Schemaless: true}
	b, store, refused := newBroker(t, resources), &memStore{}, make(chan struct{}, 2)
	store.onQuarantine = func(context.Context, envelope.Quarantined) error {
		select {
		case refused <- struct{}{}:
		default:
		}
		return errors.New("no such table")
	}
	read, stop := b.start(consumer.Config{RetryMin: time.Millisecond, RetryMax: time.Millisecond}, store)
	b.publish(&pubsub.Message{Data: []byte("no event")})
	<-refused
	<-refused
	if err := b.client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{
		Subscription: "projects/test-project/subscriptions/" + localtopics.Subscription,
	}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the client to give up", func() bool { return read.counter("consumer.failures")["receive"] > 0 })
	if err := localtopics.Create(t.Context(), b.client, resources); err != nil {
		t.Fatal(err)
	}
	id := uuid.NewString()
	b.publish(message(noteEvent(id, 1, written)))
	waitFor(t, "an event of the new subscription", func() bool { return store.versions()[id] == 1 })
	stop()
}

// hangingSource does not stop before it is released.
type hangingSource struct {
	fakeSource
	release chan struct{}
}

func (s hangingSource) Receive(ctx context.Context, f func(context.Context, *pubsub.Message)) error {
	err := s.fakeSource.Receive(ctx, f)
	<-s.release
	return err
}
