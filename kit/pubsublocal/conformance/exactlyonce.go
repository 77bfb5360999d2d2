package conformance

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The values for an ack id in the metadata of the error.
const (
	invalidAckID   = "PERMANENT_FAILURE_INVALID_ACK_ID"
	unorderedAckID = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
)

// exactlyOnce are the cases of section J. J9 has none: it is about temporary failures, which only a
// fault produces.
var exactlyOnce = []Case{
	{
		ID: "J1", Sentence: "An outstanding message is not sent again before its deadline, whatever happens to streams.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			for _, end := range endings {
				for _, ordered := range []bool{false, true} {
					name, change := end.name, []func(*pubsubpb.Subscription){ExactlyOnce}
					if ordered {
						name, change = name+", ordered", append(change, Ordered)
					}
					t.Run(name, func(t *testing.T) {
						topic, sub := e.Subscribed(t, change...)
						stream := openRaw(t, e, sub)
						e.Publish(t, topic, "key", "a")
						stream.wants(t, "a")
						end.do(t, stream)
						other := openRaw(t, e, sub)
						other.quiet(t)
						pullNothing(t, e, sub)
						e.Advance(50 * time.Second)
						other.quiet(t)
						e.Advance(15 * time.Second)
						other.wants(t, "a")
					})
				}
			}
		},
	},
	{
		ID: "J2", Sentence: "After an ack that succeeded the message is never sent again.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce)
			stream := openRaw(t, e, sub)
			e.Publish(t, topic, "", "a", "b")
			got := stream.wantsAny(t, "a", "b")
			e.Ack(t, sub, got[0])
			stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: AckIDs(got[1:])})
			if confirmed := stream.ackConfirmation(t); !slices.Equal(confirmed.GetAckIds(), AckIDs(got[1:])) {
				t.Errorf("got %v, want success", confirmed)
			}
			for range 3 {
				e.Advance(11 * time.Minute)
				stream.quiet(t)
				stream.cancel()
				stream = openRaw(t, e, sub)
				stream.quiet(t)
				pullNothing(t, e, sub)
			}

			t.Run("client", func(t *testing.T) {
				topic, sub := e.Subscribed(t, ExactlyOnce)
				e.Publish(t, topic, "", "a")
				ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
				defer cancel()
				result := pubsub.AcknowledgeStatus(-1)
				var failure error
				if err := e.Client.Subscriber(sub).Receive(ctx, func(ctx context.Context, m *pubsub.Message) {
					result, failure = m.AckWithResult().Get(ctx)
					cancel()
				}); err != nil {
					t.Fatal(err)
				}
				if result != pubsub.AcknowledgeStatusSuccess || failure != nil {
					t.Errorf("AckWithResult gave %v, %v; want success", result, failure)
				}
				e.Advance(11 * time.Minute)
				pullNothing(t, e, sub)
			})
		},
	},
	{
		ID: "J3", Sentence: "Only the ack id of the latest delivery is valid, until its deadline, a nack or an ack.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce, leasedFor(20))
			e.Publish(t, topic, "", "a")
			old := pullInOrder(t, e, sub, "a")
			e.Advance(25 * time.Second)
			wantFailures(t, acknowledge(t, e, sub, AckIDs(old)...), invalidAckID, old...) // the lease has expired

			got := pullInOrder(t, e, sub, "a")
			wantFailures(t, acknowledge(t, e, sub, AckIDs(old)...), invalidAckID, old...) // a newer delivery exists
			e.Extend(t, sub, 20, got...)
			e.Nack(t, sub, got...)
			wantFailures(t, acknowledge(t, e, sub, AckIDs(got)...), invalidAckID, got...) // nacked

			got = pullInOrder(t, e, sub, "a")
			e.Ack(t, sub, got...)
			wantFailures(t, modifyDeadline(t, e, sub, 20, AckIDs(got)...), invalidAckID, got...) // acknowledged
			wantFailures(t, modifyDeadline(t, e, sub, 0, AckIDs(got)...), invalidAckID, got...)
			pullNothing(t, e, sub)
		},
	},
	{
		ID: "J4", Sentence: "Acknowledge with an id that is not valid is INVALID_ARGUMENT, with an ErrorInfo that says so.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce)
			e.Publish(t, topic, "", "a")
			got := pullInOrder(t, e, sub, "a")
			e.Nack(t, sub, got...)
			err := acknowledge(t, e, sub, AckIDs(got)...)
			WantCode(t, err, codes.InvalidArgument, "Some acknowledgement ids in the request were invalid.")
			wantFailures(t, err, invalidAckID, got...)
		},
	},
	{
		ID: "J5", Sentence: "The metadata names exactly the failed ids; the others took effect.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce)
			want := serial(1, 6)
			e.Publish(t, topic, "", want...)
			got := pullAny(t, e, sub, want...)
			stale := got[:3]
			e.Nack(t, sub, stale...)
			again := pullAny(t, e, sub, want[:3]...)
			err := acknowledge(t, e, sub, AckIDs([]*pubsubpb.ReceivedMessage{stale[0], got[3], stale[1], got[4], again[2], stale[2]})...)
			wantFailures(t, err, invalidAckID, stale...)
			e.Advance(65 * time.Second)
			pullAny(t, e, sub, want[0], want[1], want[5])
		},
	},
	{
		ID: "J6", Sentence: "ModifyAckDeadline, nack included, fails in the same way.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			for _, seconds := range []int32{600, 0} {
				topic, sub := e.Subscribed(t, ExactlyOnce)
				e.Publish(t, topic, "", "a", "b")
				got := pullAny(t, e, sub, "a", "b")
				stale := got[0]
				e.Nack(t, sub, stale)
				pullInOrder(t, e, sub, "a")
				err := modifyDeadline(t, e, sub, seconds, stale.GetAckId(), got[1].GetAckId())
				WantCode(t, err, codes.InvalidArgument, "Some acknowledgement ids in the request were invalid.")
				wantFailures(t, err, invalidAckID, stale)
				if seconds == 0 {
					pullInOrder(t, e, sub, "b")
				}
				e.Advance(50 * time.Second) // the newer lease of a has not ended
				pullNothing(t, e, sub)
				e.Advance(15 * time.Second)
				if seconds == 0 {
					pullAny(t, e, sub, "a", "b")
				} else {
					pullInOrder(t, e, sub, "a") // b had a longer lease
				}
			}
		},
	},
	{
		ID: "J7", Sentence: "With ordering, an ack before that of an earlier outstanding message of the key fails for now, without effect.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce, Ordered)
			e.Publish(t, topic, "key", "1", "2", "3")
			e.Publish(t, topic, "other key", "a")
			e.Publish(t, topic, "", "b")
			got := pullAny(t, e, sub, "1", "2", "3", "a", "b")
			wantFailures(t, acknowledge(t, e, sub, AckIDs(got[1:])...), unorderedAckID, got[1], got[2]) // a and b have no earlier message
			e.Ack(t, sub, got[0])
			e.Extend(t, sub, 60, got[1]) // it is not acknowledged yet
			e.Ack(t, sub, got[1])
			e.Ack(t, sub, got[2])
			e.Publish(t, topic, "key", "4")
			pullInOrder(t, e, sub, "4")
		},
	},
	{
		ID: "J8", Sentence: "The order of the ids within a request does not matter.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce, Ordered)
			for _, order := range [][]int{{2, 0, 1}, {2, 1, 0}, {1, 2, 0}} {
				e.Publish(t, topic, "key", "1", "2", "3")
				got := pullInOrder(t, e, sub, "1", "2", "3")
				e.Ack(t, sub, got[order[0]], got[order[1]], got[order[2]])
			}
			e.Publish(t, topic, "key", "1", "2", "3")
			got := pullInOrder(t, e, sub, "1", "2", "3")
			wantFailures(t, acknowledge(t, e, sub, got[2].GetAckId(), got[0].GetAckId()), unorderedAckID, got[2])
			e.Ack(t, sub, got[2], got[1])
			e.Publish(t, topic, "key", "4")
			pullInOrder(t, e, sub, "4")
		},
	},
	{
		ID: "J10", Sentence: "Acks and deadlines on the stream get confirmations; without exactly-once they never do.",
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce, Ordered)
			stream := openRaw(t, e, sub)
			e.Publish(t, topic, "key", "1", "2", "3")
			got := stream.wants(t, "1", "2", "3")
			e.Publish(t, topic, "", "stale")
			stale := stream.wants(t, "stale")
			e.Nack(t, sub, stale...)
			stream.wants(t, "stale")

			stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: AckIDs([]*pubsubpb.ReceivedMessage{got[2], got[0], stale[0]})})
			acks := stream.ackConfirmation(t)
			wantIDs(t, "ack_ids", acks.GetAckIds(), got[0])
			wantIDs(t, "invalid_ack_ids", acks.GetInvalidAckIds(), stale...)
			wantIDs(t, "unordered_ack_ids", acks.GetUnorderedAckIds(), got[2])
			wantIDs(t, "temporary_failed_ack_ids", acks.GetTemporaryFailedAckIds())

			for _, seconds := range []int32{60, 0} {
				stream.modify(t, seconds, got[1], stale[0])
				modified := stream.modifyConfirmation(t)
				wantIDs(t, "ack_ids", modified.GetAckIds(), got[1])
				wantIDs(t, "invalid_ack_ids", modified.GetInvalidAckIds(), stale...)
				wantIDs(t, "temporary_failed_ack_ids", modified.GetTemporaryFailedAckIds())
			}

			t.Run("without exactly-once", func(t *testing.T) {
				topic, sub := e.Subscribed(t)
				stream := openRaw(t, e, sub)
				e.Publish(t, topic, "", "a", "b")
				got := stream.wantsAny(t, "a", "b")
				stream.modify(t, 60, got...)
				stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: AckIDs(got)})
				stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: AckIDs(got)})
				stream.settle(t)
				stream.quiet(t)
				for _, response := range stream.responses {
					if response.GetAcknowledgeConfirmation() != nil || response.GetModifyAckDeadlineConfirmation() != nil {
						t.Errorf("got %v, want no confirmation", response)
					}
				}
			})
		},
	},
	{
		ID: "J11", Sentence: "Repeating an ack that succeeded is a success until the deadline of that delivery.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce)
			e.Publish(t, topic, "", "a")
			got := pullInOrder(t, e, sub, "a")
			e.Ack(t, sub, got...)
			e.Ack(t, sub, got...)
			e.Advance(50 * time.Second)
			e.Ack(t, sub, got...)
			e.Advance(15 * time.Second)
			wantFailures(t, acknowledge(t, e, sub, AckIDs(got)...), invalidAckID, got...)
		},
	},
	{
		ID: "J12", Sentence: "A malformed id is reported as any other id that is not valid.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub, other := e.Subscription(t, topic, ExactlyOnce), e.Subscription(t, topic, ExactlyOnce)
			e.Publish(t, topic, "", "a", "b", "c")
			got := pullAny(t, e, sub, "a", "b", "c")
			bad := []*pubsubpb.ReceivedMessage{{AckId: "nonsense"}, pullAny(t, e, other, "a", "b", "c")[0]}
			err := acknowledge(t, e, sub, append(AckIDs(bad), got[0].GetAckId())...)
			WantCode(t, err, codes.InvalidArgument)
			wantFailures(t, err, invalidAckID, bad...)
			err = modifyDeadline(t, e, sub, 600, append(AckIDs(bad), got[1].GetAckId())...)
			WantCode(t, err, codes.InvalidArgument)
			wantFailures(t, err, invalidAckID, bad...)

			stream := openRaw(t, e, sub)
			stream.send(t, &pubsubpb.StreamingPullRequest{AckIds: AckIDs(bad)})
			wantIDs(t, "invalid_ack_ids", stream.ackConfirmation(t).GetInvalidAckIds(), bad...)
			e.Advance(65 * time.Second) // a is acknowledged, b has a longer lease
			stream.wants(t, "c")
			stream.quiet(t)
		},
	},
	{
		ID: "J13", Sentence: "The server gives no lease of 60 s to a client that requests less.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce, leasedFor(10))
			e.Publish(t, topic, "", "a")
			pullInOrder(t, e, sub, "a")
			e.Advance(15 * time.Second)
			got := pullInOrder(t, e, sub, "a")
			e.Extend(t, sub, 60, got...)
			e.Extend(t, sub, 15, got...)
			e.Advance(20 * time.Second)
			stream := openRaw(t, e, sub, streamLease(10))
			stream.wants(t, "a")
			e.Advance(15 * time.Second)
			stream.wants(t, "a")
		},
	},
	{
		ID: "J14", Sentence: "A message whose receipt fails, which the client drops in silence, comes again after its deadline.", Clock: true,
		Run: func(t *testing.T, e *Env) {
			topic, sub := e.Subscribed(t, ExactlyOnce)
			e.Publish(t, topic, "", "a")
			lost := make(chan bool, 1)
			// lose fails the first receipt, a ModifyAckDeadline, without sending it.
			lose := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
				receipt, ok := req.(*pubsubpb.ModifyAckDeadlineRequest)
				if !ok || receipt.GetAckDeadlineSeconds() == 0 || len(lost) == cap(lost) {
					return call(ctx, method, req, reply, cc, o...)
				}
				failed := map[string]string{}
				for _, id := range receipt.GetAckIds() {
					failed[id] = invalidAckID
				}
				lost <- true
				s, err := status.New(codes.InvalidArgument, "lost").WithDetails(&errdetails.ErrorInfo{
					Reason: "EXACTLY_ONCE_ACKID_FAILURE", Domain: "pubsub.googleapis.com", Metadata: failed,
				})
				if err != nil {
					return err
				}
				return s.Err()
			}
			client, err := pubsub.NewClient(t.Context(), e.Project,
				append(slices.Clone(e.Options), option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(lose)))...)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got, done := make(chan string, 10), make(chan error, 1)
			go func() {
				done <- client.Subscriber(sub).Receive(ctx, func(_ context.Context, m *pubsub.Message) {
					m.Ack()
					got <- string(m.Data)
				})
			}()
			for end := time.Now().Add(2 * patience); len(lost) == 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the client sends no receipt")
				}
			}
			select {
			case text := <-got:
				t.Errorf("got %q, want the client to drop it", text)
			case <-time.After(silence):
			}
			e.Advance(70 * time.Second)
			select {
			case text := <-got:
				if text != "a" {
					t.Errorf("got %q, want a", text)
				}
			case err := <-done:
				t.Fatalf("Receive ended with %v", err)
			case <-time.After(patience):
				t.Fatal("it did not come again")
			}
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Receive: %v", err)
			}
		},
	},
}

// wantFailures fails the test unless err reports exactly these messages as failed for that reason.
func wantFailures(t *testing.T, err error, reason string, messages ...*pubsubpb.ReceivedMessage) {
	t.Helper()
	want := &errdetails.ErrorInfo{Reason: "EXACTLY_ONCE_ACKID_FAILURE", Domain: "pubsub.googleapis.com", Metadata: map[string]string{}}
	for _, m := range messages {
		want.Metadata[m.GetAckId()] = reason
	}
	for _, detail := range status.Convert(err).Details() {
		got, ok := detail.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		if got.GetReason() != want.GetReason() || got.GetDomain() != want.GetDomain() {
			t.Errorf("got reason %q of %q, want %q of %q", got.GetReason(), got.GetDomain(), want.GetReason(), want.GetDomain())
		}
		wantEqual(t, want.GetMetadata(), got.GetMetadata(), "failed ids")
		return
	}
	t.Errorf("got %v, want an error with an ErrorInfo", err)
}

// wantIDs compares ack ids with the ack ids of messages, in any order.
func wantIDs(t *testing.T, field string, got []string, messages ...*pubsubpb.ReceivedMessage) {
	t.Helper()
	want := AckIDs(messages)
	if strings.Join(slices.Sorted(slices.Values(got)), " ") != strings.Join(slices.Sorted(slices.Values(want)), " ") {
		t.Errorf("%s: got %q, want %q", field, got, want)
	}
}

// ackConfirmation waits for the next AcknowledgeConfirmation. Messages that come before it stay in the queue.
func (s *rawStream) ackConfirmation(t *testing.T) *pubsubpb.StreamingPullResponse_AcknowledgeConfirmation {
	t.Helper()
	return confirmation(t, s, (*pubsubpb.StreamingPullResponse).GetAcknowledgeConfirmation)
}

func (s *rawStream) modifyConfirmation(t *testing.T) *pubsubpb.StreamingPullResponse_ModifyAckDeadlineConfirmation {
	t.Helper()
	return confirmation(t, s, (*pubsubpb.StreamingPullResponse).GetModifyAckDeadlineConfirmation)
}

// confirmation waits for the next response with a confirmation of this kind.
func confirmation[T any](t *testing.T, s *rawStream, of func(*pubsubpb.StreamingPullResponse) *T) *T {
	t.Helper()
	for {
		read, ok := s.next(patience)
		if !ok {
			t.Fatal("no confirmation came")
		}
		if read.err != nil {
			t.Fatalf("the stream ended with %v", read.err)
		}
		if got := of(read.response); got != nil {
			return got
		}
	}
}
