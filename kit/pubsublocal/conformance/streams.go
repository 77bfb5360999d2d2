package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

// acrossStreams receives messages over one call, and acknowledges and nacks
// them over another.
func acrossStreams(t *testing.T, e *Env, from, over string) {
	topic, sub := e.Subscribed(t, leasedFor(60))
	e.Publish(t, topic, "", "a", "b", "c")
	var streams []*rawStream
	var got []*pubsubpb.ReceivedMessage
	if from == "stream" {
		streams = append(streams, openRaw(t, e, sub))
		got = streams[0].wantsAny(t, "a", "b", "c")
	} else {
		got = pullAny(t, e, sub, "a", "b", "c")
	}
	switch over {
	case "unary":
		e.Ack(t, sub, got[0])
		e.Extend(t, sub, 600, got[1])
		e.Nack(t, sub, got[2])
	default:
		stream := streams
		if over == "other stream" {
			stream = []*rawStream{openRaw(t, e, sub)}
			streams = append(streams, stream...)
		}
		stream[0].send(t, &pubsubpb.StreamingPullRequest{
			AckIds:                AckIDs(got[:1]),
			ModifyDeadlineAckIds:  AckIDs(got[1:]),
			ModifyDeadlineSeconds: []int32{600, 0},
		})
		stream[0].settle(t) // c may come again before a is acknowledged
	}
	if len(streams) == 0 {
		streams = append(streams, openRaw(t, e, sub))
	}
	again := slices.Concat(takeFrom(t, 1, streams...)...)
	wantEqual(t, []string{"c"}, Texts(again), "after ack, extension and nack")
	e.Ack(t, sub, again...)
	e.Advance(500 * time.Second) // past the first lease: a is acknowledged, b has a longer lease
	for _, stream := range streams {
		stream.quiet(t)
	}
	e.Advance(110 * time.Second)
	wantEqual(t, []string{"b"}, Texts(slices.Concat(takeFrom(t, 1, streams...)...)), "after the extension")
}

// tellsProperties checks the properties in responses of every kind.
func tellsProperties(t *testing.T, e *Env, ordered bool) {
	topic, sub := e.Subscribed(t, func(s *pubsubpb.Subscription) { s.EnableMessageOrdering = ordered })
	stream := openRaw(t, e, sub)
	stream.settle(t)
	e.Publish(t, topic, "key", "a")
	stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: AckIDs(stream.wants(t, "a"))})
	stream.settle(t)
	if n := len(stream.responses); n < 3 {
		t.Errorf("got %d responses, want those to two pings and one message", n)
	}
	for _, response := range stream.responses {
		if got := response.GetSubscriptionProperties(); got == nil || got.GetMessageOrderingEnabled() != ordered {
			t.Errorf("got properties %v, want ordering %v", got, ordered)
		}
	}
}

// endings are the ways in which a stream can end.
var endings = []struct {
	name string
	do   func(t *testing.T, s *rawStream)
}{
	{"canceled", func(_ *testing.T, s *rawStream) { s.cancel() }},
	{"half-closed", func(t *testing.T, s *rawStream) {
		must(t, s.CloseSend())
	}},
	{"by a fault of the client", func(t *testing.T, s *rawStream) {
		s.send(t, &pubsubpb.StreamingPullRequest{MaxOutstandingMessages: 1})
	}},
}

// rawStream is a StreamingPull without the client library. It reads only when a
// method needs a response.
type rawStream struct {
	pubsubpb.Subscriber_StreamingPullClient

	cancel    context.CancelFunc
	reading   chan streamRead                   // the running Recv; nil: none
	responses []*pubsubpb.StreamingPullResponse // all so far
	queue     []*pubsubpb.ReceivedMessage       // received, but not taken yet
}

type streamRead struct {
	response *pubsubpb.StreamingPullResponse
	err      error
}

// openRaw opens a stream with a deadline of 60 s and protocol version 1, without limits.
func openRaw(t *testing.T, e *Env, sub string, change ...func(*pubsubpb.StreamingPullRequest)) *rawStream {
	t.Helper()
	return openRawWith(t, e.Subs, sub, change...)
}

func openRawWith(t *testing.T, c *vkit.SubscriptionAdminClient, sub string, change ...func(*pubsubpb.StreamingPullRequest)) *rawStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := c.StreamingPull(ctx)
	must(t, err)
	s := &rawStream{Subscriber_StreamingPullClient: stream, cancel: cancel}
	request := &pubsubpb.StreamingPullRequest{
		Subscription: sub, StreamAckDeadlineSeconds: 60, ProtocolVersion: 1,
		ClientId: fmt.Sprint("client-", counter.Add(1)),
	}
	for _, f := range change {
		f(request)
	}
	s.send(t, request)
	return s
}

func streamLease(seconds int32) func(*pubsubpb.StreamingPullRequest) {
	return func(r *pubsubpb.StreamingPullRequest) { r.StreamAckDeadlineSeconds = seconds }
}

func outstanding(n int64) func(*pubsubpb.StreamingPullRequest) {
	return func(r *pubsubpb.StreamingPullRequest) { r.MaxOutstandingMessages = n }
}

func outstandingBytes(n int64) func(*pubsubpb.StreamingPullRequest) {
	return func(r *pubsubpb.StreamingPullRequest) { r.MaxOutstandingBytes = n }
}

func clientID(id string) func(*pubsubpb.StreamingPullRequest) {
	return func(r *pubsubpb.StreamingPullRequest) { r.ClientId = id }
}

// send sends a request. It ignores the end of the stream, which next returns.
func (s *rawStream) send(t *testing.T, request *pubsubpb.StreamingPullRequest) {
	t.Helper()
	if err := s.Send(request); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("send %v: %v", request, err)
	}
}

// modify sets ack deadlines.
func (s *rawStream) modify(t *testing.T, seconds int32, messages ...*pubsubpb.ReceivedMessage) {
	t.Helper()
	s.send(t, &pubsubpb.StreamingPullRequest{
		ModifyDeadlineAckIds: AckIDs(messages), ModifyDeadlineSeconds: slices.Repeat([]int32{seconds}, len(messages)),
	})
}

// next reads one response. It returns false if none comes within wait.
func (s *rawStream) next(wait time.Duration) (streamRead, bool) {
	if s.reading == nil {
		reading := make(chan streamRead, 1)
		s.reading = reading
		go func() { // runs until the stream ends
			response, err := s.Recv()
			reading <- streamRead{response, err}
		}()
	}
	select {
	case read := <-s.reading:
		s.reading = nil
		if read.err == nil {
			s.responses = append(s.responses, read.response)
			s.queue = append(s.queue, read.response.GetReceivedMessages()...)
		}
		return read, true
	case <-time.After(wait):
		return streamRead{}, false
	}
}

// settle sends a ping and waits for the response. The server has then handled
// all earlier requests.
func (s *rawStream) settle(t *testing.T) {
	t.Helper()
	s.send(t, &pubsubpb.StreamingPullRequest{})
	for {
		read, ok := s.next(time.Second)
		switch {
		case !ok: // the server does not respond to pings (G13), but it has had enough time
			return
		case read.err != nil:
			t.Fatalf("the stream ended with %v", read.err)
		case proto.Equal(read.response, &pubsubpb.StreamingPullResponse{SubscriptionProperties: read.response.GetSubscriptionProperties()}):
			return
		}
	}
}

// take waits for n messages. It keeps more that come with them for the next
// call.
func (s *rawStream) take(t *testing.T, n int) []*pubsubpb.ReceivedMessage {
	t.Helper()
	for end := time.Now().Add(patience); len(s.queue) < n; {
		read, ok := s.next(time.Until(end))
		if !ok {
			t.Fatalf("got %d messages within %v, want %d", len(s.queue), patience, n)
		}
		if read.err != nil {
			t.Fatalf("the stream ended with %v after %d messages, want %d", read.err, len(s.queue), n)
		}
	}
	taken := slices.Clone(s.queue[:n])
	s.queue = s.queue[n:]
	return taken
}

// wants fails the test unless these messages come, in this order.
func (s *rawStream) wants(t *testing.T, want ...string) []*pubsubpb.ReceivedMessage {
	t.Helper()
	got := s.take(t, len(want))
	if diff := cmp.Diff(want, Texts(got)); diff != "" {
		t.Fatalf("received (-want +got):\n%s", diff)
	}
	return got
}

// wantsAny fails the test unless these messages come, in any order. It returns
// them sorted by text.
func (s *rawStream) wantsAny(t *testing.T, want ...string) []*pubsubpb.ReceivedMessage {
	t.Helper()
	got := sortByText(s.take(t, len(want)))
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), Texts(got)); diff != "" {
		t.Fatalf("received, sorted (-want +got):\n%s", diff)
	}
	return got
}

// quiet fails the test if messages come or the stream ends.
func (s *rawStream) quiet(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(silence); len(s.queue) == 0; {
		read, ok := s.next(time.Until(end))
		if !ok {
			return
		}
		if read.err != nil {
			t.Fatalf("the stream ended with %v", read.err)
		}
	}
	t.Fatalf("received %.100q, want nothing", Texts(s.queue))
}

// silent fails the test if any response comes or the stream ends.
func (s *rawStream) silent(t *testing.T) {
	t.Helper()
	if read, ok := s.next(silence); ok {
		t.Fatalf("received %v, %v; want nothing", read.response, read.err)
	}
}

// end waits for the end of the stream, and returns its error. io.EOF is OK.
func (s *rawStream) end(t *testing.T) error {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		read, ok := s.next(time.Until(end))
		if !ok {
			t.Fatal("the stream goes on, want it to end")
		}
		if read.err != nil {
			return read.err
		}
	}
}

// stop ends the stream, and waits until the server has noticed.
func (s *rawStream) stop() {
	s.cancel()
	time.Sleep(silence)
}

// takeFrom waits for n messages from several streams together, and returns
// the messages of each stream.
func takeFrom(t *testing.T, n int, streams ...*rawStream) [][]*pubsubpb.ReceivedMessage {
	t.Helper()
	got := make([][]*pubsubpb.ReceivedMessage, len(streams))
	total := 0
	for end := time.Now().Add(patience); total < n; {
		if time.Now().After(end) {
			t.Fatalf("got %d messages within %v, want %d", total, patience, n)
		}
		for i, s := range streams {
			if len(s.queue) == 0 {
				if read, ok := s.next(10 * time.Millisecond); ok && read.err != nil {
					t.Fatalf("stream %d ended with %v", i, read.err)
				}
			}
			got[i] = append(got[i], s.queue...)
			total += len(s.queue)
			s.queue = nil
		}
	}
	if total > n {
		t.Fatalf("got %d messages, want %d", total, n)
	}
	return got
}
