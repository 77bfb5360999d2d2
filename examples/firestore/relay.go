package main

import (
	"context"
	"log/slog"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sync/errgroup"

	"example.com/videocatalog/internal/outbox"
)

// relayConfig is for a relay that a listener wakes. Its poll, once a minute, finds what no listener reports: blocked
// aggregates that are due, and lanes of relays that crashed.
var relayConfig = outbox.Config{Batch: maxBatch, Workers: 2, PollInterval: time.Minute}

// relay publishes events until ctx ends. Any number of processes may run it.
func relay(ctx context.Context, client *firestore.Client, broker outbox.Broker, cfg outbox.Config, log *slog.Logger) error {
	publisher, err := outbox.New(NewStore(client), broker, cfg, log, noop.Meter{})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return publisher.Run(ctx) })
	group.Go(func() error { listen(ctx, client, publisher.Wake, log); return nil })
	return group.Wait()
}

// listen calls wake after each commit of events, until ctx ends. It watches the newest event only, so that a backlog
// costs no reads. After an interruption it wakes the relay once, for all events meanwhile.
func listen(ctx context.Context, client *firestore.Client, wake func(), log *slog.Logger) {
	pause := gax.Backoff{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
	for ctx.Err() == nil {
		snapshots := client.Collection(pendingEvents).OrderBy("committed", firestore.Desc).Limit(1).Snapshots(ctx)
		for {
			_, err := snapshots.Next()
			if err != nil {
				if ctx.Err() == nil {
					log.WarnContext(ctx, "firestore: the listener is cut off, trying again", "err", err)
				}
				break
			}
			pause = gax.Backoff{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
			wake()
		}
		snapshots.Stop()
		_ = gax.Sleep(ctx, pause.Pause()) // the loop checks ctx
	}
}
