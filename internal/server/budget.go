package server

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
)

const (
	// pagesBudget is the bytes that all pages of lists in this process may have,
	// from before they are read until their clients have them.
	pagesBudget = 32 << 20
	// pageShare is what a list takes of it before its page is known: the text, and
	// as much again for the last item, names and times.
	pageShare = 2 * maxPageBytes
	// largeBodies is how many requests of more than smallBody bytes are received at
	// a time; more wait.
	largeBodies = 128
	smallBody   = 16 << 10
)

// Messages are encoded in buffers that gRPC keeps for the next one. By default
// there is no size between 32 KiB and 1 MiB, so that one of 50 kB holds 1 MiB
// until its client has read it.
func init() {
	experimental.SetDefaultBufferPool(mem.NewTieredBufferPool(
		256, 4<<10, 16<<10, 32<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20, 2<<20,
	))
}

// budget bounds the bytes of all pages. Callers wait for it in order.
type budget struct {
	bytes *semaphore.Weighted
	wait  time.Duration // for room
	read  time.Duration // how long a client may take to read its page
}

// share is what one HTTP request holds of a budget, until it ends.
type share struct {
	budget  *budget
	control *http.ResponseController

	mu    sync.Mutex
	bytes int64 // guarded by mu
	ended bool  // guarded by mu
}

// shareKey is where the context of a request has its *share.
type shareKey struct{}

// share gives a request its share, which end gives back.
func (b *budget) share(w http.ResponseWriter, r *http.Request) (shared *http.Request, end func()) {
	s := &share{budget: b, control: http.NewResponseController(w)}
	return r.WithContext(context.WithValue(r.Context(), shareKey{}, s)), s.end
}

// inBudget makes a call. One that is for a page waits for room first, and its
// client, who holds the room, may take only so long to read the page. The same
// call within another, as behind the gateway, has no share of its own.
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

// take waits for room for a page of any size.
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
	if s.ended { // the client has left
		s.budget.bytes.Release(pageShare)
		return context.Canceled
	}
	s.bytes = pageShare
	return nil
}

// keep gives back what a page does not need.
func (s *share) keep(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || bytes > s.bytes {
		return
	}
	s.budget.bytes.Release(s.bytes - bytes)
	s.bytes = bytes
	if bytes > 0 {
		_ = s.control.SetWriteDeadline(time.Now().Add(s.budget.read)) // that of the call holds else
	}
}

func (s *share) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.bytes.Release(s.bytes)
	s.bytes, s.ended = 0, true
}

// wholeMessages is the body of a gRPC request, read a message at a time. The
// transport has a buffer of 16 KiB for each read, and keeps it until the message
// is complete: of a message that comes byte by byte it would keep one per byte.
type wholeMessages struct {
	io.ReadCloser
	left int // of the message
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

// boundedBody is the body of a request that counts as large beyond smallBody.
// Read waits then until there are fewer than largeBodies.
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

// end is for the end of the request, when nobody reads.
func (b *boundedBody) end() {
	if b.counts {
		b.large.Release(1)
	}
}
