package port

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/internal/aip"
)

const (
	// pageShare is what a list call reserves before the size of its page is
	// known. It is aip.MaxPageBytes of text, and as much again for the last item,
	// names and times.
	pageShare = 2 * aip.MaxPageBytes
	// largeBodies is how many bodies of more than smallBody bytes are received
	// at the same time; more wait.
	largeBodies = 128
	smallBody   = 16 << 10
)

// gRPC reuses the buffers in which it encodes messages. Its default sizes have
// a gap between 32 KiB and 1 MiB: a message of 50 kB would hold 1 MiB until its
// client has read it.
func init() {
	experimental.SetDefaultBufferPool(mem.NewTieredBufferPool(
		256, 4<<10, 16<<10, 32<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20, 2<<20,
	))
}

// budget limits the bytes of all pages together. Waiting callers are served in
// order.
type budget struct {
	bytes *semaphore.Weighted
	wait  time.Duration // longest wait for room
	read  time.Duration // longest time in which a client may read its page
}

// share is what one HTTP request holds of a budget. It is safe for concurrent
// use.
type share struct {
	budget  *budget
	control *http.ResponseController

	mu    sync.Mutex
	bytes int64 // guarded by mu
	ended bool  // guarded by mu
}

// shareKey is the context key of the *share of a request.
type shareKey struct{}

// share adds an empty share to a request. The caller must call end, which frees
// it.
func (b *budget) share(w http.ResponseWriter, r *http.Request) (shared *http.Request, end func()) {
	s := &share{budget: b, control: http.NewResponseController(w)}
	return r.WithContext(context.WithValue(r.Context(), shareKey{}, s)), s.end
}

// inBudget makes a call. A list call first waits for room; its client then has
// a limited time to read the page, because it holds that room. A call without a
// share in its context does not wait. Calls of the gateway have none, because
// the REST request already holds the room.
func inBudget(ctx context.Context, request any, call func() (any, error)) (any, error) {
	s, hasShare := ctx.Value(shareKey{}).(*share)
	if _, isList := request.(interface{ GetPageSize() int32 }); !isList || !hasShare {
		return call()
	}
	if err := s.take(ctx); err != nil {
		return nil, toStatus(err)
	}
	response, err := call()
	page, ok := response.(proto.Message)
	if err != nil || !ok {
		s.keep(0)
		return response, err
	}
	s.keep(int64(proto.Size(page)))
	return response, nil
}

// take waits for room for a page of the largest size.
func (s *share) take(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, s.budget.wait)
	defer cancel()
	if err := s.budget.bytes.Acquire(waiting, pageShare); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errTooManyPages
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended { // the request has ended
		s.budget.bytes.Release(pageShare)
		return context.Canceled
	}
	s.bytes = pageShare
	return nil
}

// keep frees the room beyond bytes, and limits the time to read the page.
func (s *share) keep(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || bytes > s.bytes {
		return
	}
	s.budget.bytes.Release(s.bytes - bytes)
	s.bytes = bytes
	if bytes > 0 {
		_ = s.control.SetWriteDeadline(time.Now().Add(s.budget.read)) // on error the deadline of the call still holds
	}
}

func (s *share) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.bytes.Release(s.bytes)
	s.bytes, s.ended = 0, true
}

// wholeMessages is the body of a gRPC request, read one message at a time. The
// transport allocates 16 KiB for each read and keeps it until the message is
// complete. A message sent byte by byte would hold one such buffer per byte.
type wholeMessages struct {
	io.ReadCloser
	left int // bytes of the current message that are still to be read
}

func (b *wholeMessages) Read(p []byte) (n int, err error) {
	const prefix = 5 // https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
	if b.left == 0 {
		if n, err = io.ReadFull(b.ReadCloser, p[:prefix]); err != nil {
			return n, err //nolint:wrapcheck // a reader returns io.EOF as it is
		}
		b.left = int(binary.BigEndian.Uint32(p[1:prefix]))
	}
	m, err := io.ReadFull(b.ReadCloser, p[n:min(len(p), n+b.left)])
	b.left -= m
	return n + m, err //nolint:wrapcheck // the same
}

// boundedBody is a request body that needs a place among largeBodies once it
// exceeds smallBody bytes. Read waits for that place.
type boundedBody struct {
	io.ReadCloser
	ctx    context.Context // of the request
	large  *semaphore.Weighted
	read   int
	counts bool
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.read == smallBody && !b.counts {
		if err := b.large.Acquire(b.ctx, 1); err != nil {
			return 0, err //nolint:wrapcheck // that of the request
		}
		b.counts = true
	}
	if !b.counts {
		p = p[:min(len(p), smallBody-b.read)]
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	return n, err //nolint:wrapcheck // a reader returns io.EOF as it is
}

// end frees the place. Nobody may be reading then.
func (b *boundedBody) end() {
	if b.counts {
		b.large.Release(1)
	}
}
