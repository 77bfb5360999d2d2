package port

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sync/semaphore"
)

// A message that comes byte by byte is read whole, so that the transport keeps one
// buffer for it and not one for every byte; what is behind it is not waited for.
func TestMessagesAreReadWhole(t *testing.T) {
	t.Parallel()
	message := func(size int) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), bytes.Repeat([]byte{'x'}, size)...)
	}
	in, out := io.Pipe()
	defer in.Close()
	body := &wholeMessages{ReadCloser: io.NopCloser(iotest.OneByteReader(in))}
	buffer := make([]byte, 16<<10)
	for _, size := range []int{0, 1, 1000, 16<<10 - 5} {
		go func() { _, _ = out.Write(message(size)) }()
		if n, err := body.Read(buffer); n != size+5 || err != nil {
			t.Errorf("a message of %d bytes: %d bytes read at once, %v, want all", size, n-5, err)
		}
	}
	go func() {
		_, _ = out.Write(message(20_000))
		_ = out.Close()
	}()
	rest, err := io.ReadAll(body)
	if !bytes.Equal(rest, message(20_000)) || err != nil {
		t.Errorf("a larger message: %d bytes, %v, want 20005", len(rest), err)
	}
}

// Only so many large requests are received at a time; small ones do not wait.
func TestLargeBodiesWait(t *testing.T) {
	t.Parallel()
	large := semaphore.NewWeighted(1)
	ctx, cancel := context.WithCancel(t.Context())
	read := func(size int) (*boundedBody, int, error) {
		body := &boundedBody{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat("x", size))), ctx: ctx, large: large}
		text, err := io.ReadAll(body)
		return body, len(text), err
	}
	first, n, err := read(2 * smallBody)
	if n != 2*smallBody || err != nil {
		t.Errorf("a large body: %d bytes, %v, want all", n, err)
	}
	if _, n, err := read(smallBody - 1); n != smallBody-1 || err != nil {
		t.Errorf("a small body beside it: %d bytes, %v, want all", n, err)
	}
	time.AfterFunc(10*time.Millisecond, cancel)
	second, n, err := read(2 * smallBody)
	if n != smallBody || err == nil {
		t.Errorf("another large body: %d bytes, %v, want it to wait", n, err)
	}
	second.end()
	first.end()
	if !large.TryAcquire(1) {
		t.Error("the room of the first is not given back")
	}
}
