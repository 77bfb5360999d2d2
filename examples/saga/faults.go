package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/pubsublocal"
)

// breakThings breaks one thing after the other until ctx ends. Then all works again.
func (s *shop) breakThings(ctx context.Context) error {
	if !s.faults {
		return nil
	}
	random := rand.New(rand.NewPCG(s.seed, 1))
	for i := 0; ; i++ {
		fault := faults[i%len(faults)] // each in its turn
		if !sleep(ctx, time.Second+time.Duration(random.Int64N(int64(2*time.Second)))) {
			return nil
		}
		s.mu.Lock()
		s.fault = fault.name
		s.mu.Unlock()
		if err := fault.make(ctx, s, random); err != nil {
			return fmt.Errorf("%s: %w", fault.name, err)
		}
	}
}

// faults are what breaks. When make returns, all works again.
var faults = []struct {
	name string
	make func(ctx context.Context, s *shop, random *rand.Rand) error
}{
	{"a service is killed", func(ctx context.Context, s *shop, random *rand.Rand) error {
		p := s.processes[services[random.IntN(len(services))]]
		p.end(syscall.SIGKILL)
		sleep(ctx, time.Second)
		return p.start()
	}},
	{"Pub/Sub is down", func(ctx context.Context, s *shop, _ *rand.Rand) error {
		s.broker.SetDown(true)
		sleep(ctx, 2*time.Second)
		s.broker.SetDown(false)
		return nil
	}},
	{"messages are delivered twice", func(_ context.Context, s *shop, _ *rand.Rand) error {
		for _, name := range s.subscriptions {
			if err := s.broker.Duplicate(name, 20); err != nil {
				return err
			}
		}
		return nil
	}},
	{"responses to publishes are lost", func(ctx context.Context, s *shop, _ *rand.Rand) error {
		remove := s.broker.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.Unavailable, ResponseLost: true, Times: 10})
		sleep(ctx, time.Second)
		remove()
		return nil
	}},
	{"all connections with PostgreSQL are cut", func(_ context.Context, s *shop, _ *rand.Rand) error {
		s.cutLinks()
		return nil
	}},
	{"publishes are late, each for itself", func(ctx context.Context, s *shop, _ *rand.Rand) error {
		remove := s.broker.Inject(pubsublocal.Fault{Method: "Publish", Delay: 500 * time.Millisecond, Times: 20})
		sleep(ctx, 2*time.Second)
		remove()
		return nil
	}},
	{"streams of messages are cut", func(_ context.Context, s *shop, _ *rand.Rand) error {
		s.broker.CutStreams()
		return nil
	}},
	{"PostgreSQL crashes", func(ctx context.Context, s *shop, _ *rand.Rand) error {
		if err := s.server().Kill(); err != nil {
			return err
		}
		s.cutLinks()
		return s.startPostgres(context.WithoutCancel(ctx), false)
	}},
}

// sleep waits for d, and returns true. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool { return gax.Sleep(ctx, d) == nil }
