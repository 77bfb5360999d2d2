package transport

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/iotest"
)

// A message that comes byte by byte is read whole, so that the transport keeps one
// buffer for it and not one for every byte. The read does not wait for the next message.
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
