package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/pg/pgtest"
)

// A stop while the database is unavailable does not wait for it: everything is given
// back at once.
func TestReceiverStopsWhileDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.before = func(context.Context, []note) error { return unavailable() }
		source, start := &countingSource{fakeSource: messages(300)}, time.Now()
		project(t, consumer.Config{}, store, source, time.Second)
		if took := time.Since(start) - time.Second; took > 10*time.Millisecond {
			t.Errorf("Run returned %s after ctx was done, want at once", took)
		}
		if acks, nacks := source.acks.Load(), source.nacks.Load(); acks != 0 || nacks != 300 {
			t.Errorf("acks = %d, nacks = %d, want 0 and 300", acks, nacks)
		}
	})
}

// A message that is too late is given back wherever it is: with a worker, in a
// batch that no worker is free for, or not collected yet.
func TestReceiverGivesBackEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.before = func(ctx context.Context, _ []note) error {
			<-ctx.Done()
			return ctx.Err()
		}
		source := &countingSource{fakeSource: messages(10)}
		project(t, consumer.Config{Workers: 1, BatchSize: 2, StopTimeout: time.Second}, store, source, time.Second)
		if got := source.nacks.Load(); got != 10 {
			t.Errorf("nacks = %d, want 10", got)
		}
	})
}

// A client that does not stop is left behind, but no call of the store is.
func TestReceiverLeavesClientThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		store := newStore()
		store.before = func(ctx context.Context, _ []note) error {
			calls.Add(1)
			defer calls.Add(-1)
			<-ctx.Done()
			time.Sleep(1500 * time.Millisecond) // a slow rollback
			return ctx.Err()
		}
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
// starting again after a permanent error of the broker.
func TestReceiverReceivesAgainBesideWhatItCannotQuarantine(t *testing.T) {
	t.Parallel()
	b, store, refused := newBroker(t), newStore(), make(chan struct{}, 2)
	store.refuse = func(envelope.Quarantined) error {
		select {
		case refused <- struct{}{}:
		default:
		}
		return errors.New("no such table")
	}
	var logged bytes.Buffer
	store.log = slog.NewTextHandler(&logged, nil)
	read := store.read(t)
	stop := b.start(consumer.Config{}, store)
	b.publish(consumer.Message{Data: []byte("no event")})
	<-refused
	<-refused
	name := "projects/test-project/subscriptions/" + localtopics.Subscription
	pgtest.Must(t, b.client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: name}))
	pgtest.Eventually(t, 20*time.Second, "the client to give up", func() bool { return read.counter("consumer.failures")["receive"] > 0 })
	pgtest.Must(t, localtopics.Create(t.Context(), b.client, localbroker.Resources{Schemaless: true}))
	note := uuid.NewString()
	b.publish(newNote(note, 1))
	pgtest.Eventually(t, 20*time.Second, "an event of the new subscription", func() bool {
		versions, _, _ := store.state()
		return versions[note] == 1
	})
	stop()
	if got := logged.String(); !strings.Contains(got, "subscription="+name) {
		t.Errorf("log = %s\nwant it to name the subscription", got)
	}
}
