package main

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
)

// BenchmarkReactor measures the time from when an event is received until the event of a
// reaction to it is received, at 500 events a second.
func BenchmarkReactor(b *testing.B) {
	s := newStack(b)
	i, _ := s.react(b, remind(false, 0))
	observer := names.TopicOf(event.AggregateVideo).Subscription("observer")
	subscribe(b, i.client, observer)
	var mu sync.Mutex
	first, took := make(map[string]time.Time), make([]time.Duration, 0, b.N)
	all := make(chan struct{})
	ctx, stop := context.WithCancel(b.Context())
	var receiving sync.WaitGroup
	receiving.Go(func() {
		_ = i.client.Subscriber(observer).Receive(ctx, func(_ context.Context, m *pubsub.Message) { // ends with ctx
			defer m.Ack()
			mu.Lock()
			defer mu.Unlock()
			switch m.Attributes[envelope.AttrVersion] {
			case "1":
				first[m.OrderingKey] = time.Now()
			case "2":
				if took = append(took, time.Since(first[m.OrderingKey])); len(took) == b.N {
					close(all)
				}
			}
		})
	})
	videos := store.NewVideos(i.database.commands.own, i.wake)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	b.ResetTimer()
	var commands sync.WaitGroup
	for range b.N {
		<-tick.C
		commands.Go(func() {
			stamp, err := server.Stamp()
			if err != nil {
				b.Error(err)
				return
			}
			created, err := domain.Create(uuid.Must(uuid.NewV7()), domain.Details{Title: "Ran"}, stamp)
			if err == nil {
				_, err = videos.CreateVideo(b.Context(), uuid.Nil, nil, created)
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	commands.Wait()
	<-all
	b.StopTimer()
	stop()
	receiving.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
