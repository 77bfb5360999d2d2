package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/port"
)

// A server that stops under load answers every request that it accepted, over gRPC and
// REST. A client sees an error only if its request was not accepted.
func TestDrainAnswersWhatItAccepted(t *testing.T) {
	t.Parallel()
	r := start(t, port.Config{})
	r.store.before = func(context.Context, string) error {
		time.Sleep(rand.N(2 * time.Millisecond))
		return nil
	}
	shared, sharedREST := r.grpcClient(t), httpClient(t, true)
	var creates []func() error
	for _, c := range []client{shared, shared, r.grpcClient(t), r.grpcClient(t)} {
		creates = append(creates, func() error {
			_, err := c.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
			return err
		})
	}
	for _, c := range []*http.Client{sharedREST, sharedREST, httpClient(t, false), httpClient(t, false), httpClient(t, true)} {
		creates = append(creates, func() error { return createOverREST(c, r.addr) })
	}
	var answered atomic.Int64
	var workers sync.WaitGroup
	for worker, create := range creates {
		workers.Go(func() {
			err := create()
			for ; err == nil; err = create() {
				answered.Add(1)
			}
			// An answer of the server would show that it accepted the request.
			_, lostREST := errors.AsType[*url.Error](err)
			lostGRPC := status.Code(err) == codes.Unavailable && !strings.Contains(err.Error(), port.ErrDraining.Message)
			if !lostREST && !lostGRPC {
				t.Errorf("worker %d: %v, want success or a lost connection", worker, err)
			}
		})
	}
	stream := watchFrom(t, shared, "")
	next(t, stream) // it is accepted
	workers.Go(func() {
		for {
			if _, err := stream.Recv(); err != nil {
				if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), port.ErrDraining.Message) {
					t.Errorf("watch: %v, want Unavailable from the server", err)
				}
				return
			}
		}
	})
	for answered.Load() < 200 && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
	began := time.Now()
	r.stop()
	workers.Wait()
	if err := <-r.done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("Run took %v to end, want below the drain timeout", took)
	}
	if got, want := int64(len(r.store.allEvents())), answered.Load(); got != want {
		t.Errorf("%d videos were created, but clients know of %d", got, want)
	}
	if log := r.log.String(); log != "" {
		t.Errorf("log = %s, want no call that failed or was cut off", log)
	}
}

func createOverREST(c *http.Client, addr string) error {
	response, err := c.Post("http://"+addr+"/v1/videos", "application/json", strings.NewReader(`{"title": "Ran"}`))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return err
}

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
// handler is done before Run is.
func TestDrainEndsInTime(t *testing.T) {
	t.Parallel()
	r, c := serve(t, port.Config{DrainTimeout: 300 * time.Millisecond})
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
