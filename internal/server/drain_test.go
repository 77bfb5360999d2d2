package server

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/transport"
)

// hang makes calls of the store wait until the test releases them. Calls of
// watches do not wait: they also come when no request is made.
func hang(r *running) (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 100), make(chan struct{})
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.before = func(ctx context.Context, method string) error {
		if method == "ListChanges" {
			return nil
		}
		in <- struct{}{}
		select {
		case <-out:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return in, func() { close(out) }
}

// A call that does not end is cut off when the drain timeout is over, and its
// handler returns before Run does.
func TestDrainEndsInTime(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{DrainTimeout: 300 * time.Millisecond})
	entered, _ := hang(r)
	var inside atomic.Int64
	hanging := r.store.before
	r.store.before = func(ctx context.Context, method string) error {
		inside.Add(1)
		defer inside.Add(-1)
		err := hanging(ctx, method)
		time.Sleep(100 * time.Millisecond) // such as to roll back
		return err
	}
	result := make(chan error, 1)
	go func() {
		_, err := c.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
		result <- err
	}()
	<-entered
	began := time.Now()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 3*time.Second {
		t.Errorf("Run took %v to end, want about the drain timeout", took)
	}
	if got := inside.Load(); got != 0 {
		t.Errorf("%d handlers are at work after Run, want 0", got)
	}
	if err := <-result; err == nil {
		t.Error("CreateVideo() succeeded, want an error")
	}
	if log := r.log.String(); !strings.Contains(log, "cutting off") {
		t.Errorf("log = %q, want it to tell", log)
	}
}
