package main

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
)

// BenchmarkReactor measures the time, in whole milliseconds, from when Pub/Sub has an event
// until it has the event of a reaction to it, at 500 commands a second. Both times are
// Pub/Sub's own: a subscriber that keeps order gets the second event only after its ack of
// the first, which the client sends up to 100 ms later.
func BenchmarkReactor(b *testing.B) {
	const perSecond, seconds = 500, 6
	for b.Loop() {
		took := reactionTimes(b, perSecond, perSecond*seconds)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
	}
}

// reactionTimes runs n commands, each of which leads to one reaction. It returns the time from
// event to event of each, the shortest first.
func reactionTimes(b *testing.B, perSecond, n int) []time.Duration {
	b.Helper()
	s := newStack(b)
	defer s.react(b, remind(false, 0)).stop()
	videos := store.NewVideos(s.pool, nil)
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	var commands sync.WaitGroup
	for range n {
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
	eventually(b, time.Minute, "all reactions are published", func() bool { return len(s.pubsub.Published()) >= 2*n })
	first := make(map[string]time.Time)
	var took []time.Duration
	for _, m := range s.pubsub.Published() {
		if m.Attributes[envelope.AttrVersion] == "1" {
			first[m.OrderingKey] = m.PublishTime
		} else {
			took = append(took, m.PublishTime.Sub(first[m.OrderingKey]))
		}
	}
	slices.Sort(took)
	return took
}
