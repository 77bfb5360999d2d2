package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/test/bufconn"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/port"
)

// newClient returns a client of a Pub/Sub with the topic and the subscription of the service.
func newClient(t *testing.T) *pubsub.Client {
	t.Helper()
	broker, err := localbroker.Start()
	if err != nil {
		t.Fatal(err)
	}
	client, err := broker.Client(t.Context(), "test-project")
	if err == nil {
		err = localtopics.Create(t.Context(), client, localbroker.Resources{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		if err := broker.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// eventually polls until something holds.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not within %s: %s", within, what)
}

// liveness serves what live returns, and calls /health/live.
func liveness(t *testing.T, live func() error) (ask func() int) {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	srv, err := port.New(port.Config{}, port.Deps{Live: live, Listener: listener, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) }}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func() int {
		t.Helper()
		response, err := (&http.Client{Transport: transport}).Get("http://server/health/live")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
}

// hungOutbox and hungQuarantine have calls that never come back, whatever their
// context says.
type (
	hungOutbox struct {
		outbox.Store
		release chan struct{}
	}
	hungQuarantine struct{ release chan struct{} }
)

func (h hungOutbox) ClaimEvents(context.Context, int, int64, time.Duration, envelope.Aggregate) (outbox.Claim, error) {
	<-h.release
	return outbox.Claim{}, nil
}

func (h hungQuarantine) Quarantine(context.Context, string, envelope.Quarantined) error {
	<-h.release
	return nil
}

// A publisher that is stuck makes /health/live answer 503.
func TestStuckPublisherIsNotLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := hungOutbox{release: make(chan struct{})}
		publisher, err := outbox.New(store, nil, outbox.Config{}, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		ask := liveness(t, live(publisher.Stuck))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = publisher.Run(ctx) }) // what it returns, others test
		time.Sleep(100 * time.Second)
		if got := ask(); got != http.StatusOK {
			t.Errorf("/health/live = %d after 100 s, want 200", got)
		}
		time.Sleep(10 * time.Second)
		if got := ask(); got != http.StatusServiceUnavailable {
			t.Errorf("/health/live = %d after 110 s, want 503", got)
		}
		close(store.release)
		stop()
		running.Wait()
	})
}

// So does a maintenance, and a process without a loop is live.
func TestStuckMaintenanceIsNotLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := maintenanceLoop("first"), maintenanceLoop("second")
		none, ask := liveness(t, live()), liveness(t, live(first.Check, second.Check))
		first.Beat()
		second.Beat()
		time.Sleep(5 * time.Hour)
		first.Beat()
		time.Sleep(2 * time.Hour)
		if got := ask(); got != http.StatusServiceUnavailable {
			t.Errorf("/health/live = %d after 7 h, want 503", got)
		}
		second.Beat()
		if got := ask(); got != http.StatusOK {
			t.Errorf("/health/live = %d once it has come by, want 200", got)
		}
		if got := none(); got != http.StatusOK {
			t.Errorf("/health/live = %d without a loop, want 200", got)
		}
	})
}

// So does a projector, here of a real subscription.
func TestStuckProjectorIsNotLive(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	store := hungQuarantine{release: make(chan struct{})}
	cfg := consumer.Config{TransactionTimeout: time.Millisecond, RetryMin: time.Millisecond, RetryMax: time.Millisecond}
	projector, err := consumer.New(cfg, []consumer.Source{{Subscriber: client.Subscriber(localtopics.Subscription), Consumer: "catalog"}}, store, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	ask := liveness(t, live(projector.Stuck))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = projector.Run(ctx) }) // what it returns, others test
	defer running.Wait()
	defer stop()
	defer close(store.release)
	if got := ask(); got != http.StatusOK {
		t.Errorf("/health/live = %d without a message, want 200", got)
	}
	publisher := client.Publisher(localtopics.Topic)
	defer publisher.Stop()
	if _, err := publisher.Publish(t.Context(), &pubsub.Message{Attributes: map[string]string{"name": "no event"}}).Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "/health/live answers 503", func() bool { return ask() == http.StatusServiceUnavailable })
}
