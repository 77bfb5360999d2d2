package conformance

import (
	"errors"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// snapshotCases are the cases of section L about snapshots.
var snapshotCases = []Case{
	{
		ID:       "L8",
		Sentence: "A snapshot keeps the messages unacknowledged at its creation and all published to the topic later, until it expires or is deleted.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic, retaining(10*time.Minute))
			e.Publish(t, topic, "", "acked", "waiting", "outstanding")
			for _, m := range expectDelivery(t, e, sub, "acked", "waiting", "outstanding") {
				switch string(m.GetMessage().GetData()) {
				case "acked":
					e.Ack(t, sub, m)
				case "waiting":
					e.Nack(t, sub, m)
				}
			}
			snapshot := snapshotOf(t, e, sub)
			e.Ack(t, sub, expectDelivery(t, e, sub, "waiting")...)
			e.Publish(t, topic, "", "later")
			e.Ack(t, sub, expectDelivery(t, e, sub, "later")...)
			// The snapshot outlives the retention of every subscription, and the subscription that
			// it was created from.
			e.Advance(day)
			if err := e.Subs.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: sub}); err != nil {
				t.Fatalf("DeleteSubscription: %v", err)
			}
			other := e.Subscription(t, topic)
			expectSilence(t, e, other)
			seekToSnapshot(t, e, other, snapshot)
			e.Ack(t, other, expectDelivery(t, e, other, "waiting", "outstanding", "later")...)
			expectSilence(t, e, other)
			e.Advance(6*day - time.Minute)
			seekToSnapshot(t, e, other, snapshot)
			expectDelivery(t, e, other, "waiting", "outstanding", "later")
		},
	},
	{
		ID:       "L9",
		Sentence: "Seek to a snapshot makes exactly its messages unacknowledged and all others acknowledged, also for another subscription of the topic.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub, other := e.Subscription(t, topic), e.Subscription(t, topic)
			e.Publish(t, topic, "", "a", "b", "c")
			for _, m := range expectDelivery(t, e, sub, "a", "b", "c") {
				if string(m.GetMessage().GetData()) == "a" {
					e.Ack(t, sub, m)
				}
			}
			snapshot := snapshotOf(t, e, sub)
			e.Publish(t, topic, "", "d")
			e.Ack(t, sub, expectDelivery(t, e, sub, "d")...)
			for _, m := range expectDelivery(t, e, other, "a", "b", "c", "d") {
				switch string(m.GetMessage().GetData()) {
				case "a":
					e.Nack(t, other, m) // the seek must acknowledge it
				case "c":
					e.Ack(t, other, m) // the seek must bring it back
				}
			}
			for _, test := range []struct{ name, sub string }{
				{"the same", sub},
				{"another", other},
				{"created later", e.Subscription(t, topic)},
				{"the same again", sub},
			} {
				t.Run(test.name, func(t *testing.T) {
					seekToSnapshot(t, e, test.sub, snapshot)
					e.Ack(t, test.sub, expectDelivery(t, e, test.sub, "b", "c", "d")...)
					expectSilence(t, e, test.sub)
				})
			}
		},
	},
	{
		ID:       "L10",
		Sentence: "A snapshot lives for 7 days less the age of the oldest unacknowledged message; with under 1 hour left it is FAILED_PRECONDITION.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub, acking := e.Subscription(t, topic), e.Subscription(t, topic)
			var moved time.Duration
			pass := func(d time.Duration) {
				e.Advance(d)
				moved += d
			}
			wantLife := func(when, sub string, want time.Duration) {
				t.Helper()
				snapshot, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Name: e.Name("snapshots"), Subscription: sub})
				if err != nil {
					t.Fatalf("CreateSnapshot %s: %v", when, err)
				}
				got := snapshot.GetExpireTime().AsTime().Sub(time.Now().Add(moved))
				if (got - want).Abs() > 10*time.Second {
					t.Errorf("%s: expires in %v, want %v", when, got, want)
				}
			}
			wantLife("without messages", sub, 7*day)
			e.Publish(t, topic, "", "oldest")
			pass(day)
			e.Publish(t, topic, "", "younger")
			pass(day)
			wantLife("after two days", sub, 5*day)
			for _, m := range expectDelivery(t, e, acking, "oldest", "younger") {
				if string(m.GetMessage().GetData()) == "oldest" {
					wantLife("with all outstanding", acking, 5*day)
					e.Ack(t, acking, m)
				}
			}
			wantLife("with the oldest acknowledged", acking, 6*day)
			pass(5*day - 90*time.Minute)
			wantLife("with 90 minutes left", sub, 90*time.Minute)
			pass(31 * time.Minute)
			refused := e.Name("snapshots")
			_, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Name: refused, Subscription: sub})
			WantCode(t, err, codes.FailedPrecondition)
			_, err = e.Subs.GetSnapshot(t.Context(), &pubsubpb.GetSnapshotRequest{Snapshot: refused})
			WantCode(t, err, codes.NotFound)
		},
	},
	{
		ID:       "L11",
		Sentence: "An expired snapshot is gone: NOT_FOUND.",
		Clock:    true,
		Run: func(t *testing.T, e *Env) {
			sub := e.Subscription(t, e.Topic(t))
			snapshot := snapshotOf(t, e, sub)
			e.Advance(7*day - time.Minute)
			if _, err := e.Subs.GetSnapshot(t.Context(), &pubsubpb.GetSnapshotRequest{Snapshot: snapshot}); err != nil {
				t.Fatalf("GetSnapshot a minute before: %v", err)
			}
			e.Advance(2 * time.Minute)
			wantSnapshotGone(t, e, sub, snapshot)
			// The name can be used again.
			if _, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Name: snapshot, Subscription: sub}); err != nil {
				t.Errorf("CreateSnapshot with the name of an expired one: %v", err)
			}
		},
	},
	{
		ID:       "L12",
		Sentence: "CreateSnapshot on a missing subscription is NOT_FOUND, on a detached one FAILED_PRECONDITION.",
		Run: func(t *testing.T, e *Env) {
			detached := e.Subscription(t, e.Topic(t))
			if _, err := e.Topics.DetachSubscription(t.Context(), &pubsubpb.DetachSubscriptionRequest{Subscription: detached}); err != nil {
				t.Fatalf("DetachSubscription: %v", err)
			}
			for _, test := range []struct {
				name, sub string
				want      codes.Code
			}{
				{"missing", e.Name("subscriptions"), codes.NotFound},
				{"detached", detached, codes.FailedPrecondition},
			} {
				t.Run(test.name, func(t *testing.T) {
					name := e.Name("snapshots")
					_, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Name: name, Subscription: test.sub})
					WantCode(t, err, test.want)
					_, err = e.Subs.GetSnapshot(t.Context(), &pubsubpb.GetSnapshotRequest{Snapshot: name})
					WantCode(t, err, codes.NotFound)
				})
			}
		},
	},
	{
		ID:       "L13",
		Sentence: "Deleting a snapshot frees what only it retained.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			e.Publish(t, topic, "", "m")
			first, second := snapshotOf(t, e, sub), snapshotOf(t, e, sub)
			remove := func(snapshot string) {
				if err := e.Subs.DeleteSnapshot(t.Context(), &pubsubpb.DeleteSnapshotRequest{Snapshot: snapshot}); err != nil {
					t.Fatalf("DeleteSnapshot: %v", err)
				}
			}
			e.Ack(t, sub, oneDelivery(t, e, sub))
			remove(first)
			wantSnapshotGone(t, e, sub, first)
			seekToSnapshot(t, e, sub, second) // the second snapshot retains it, too
			e.Ack(t, sub, oneDelivery(t, e, sub))
			remove(second)
			wantSnapshotGone(t, e, sub, second)
			// The message is lost: neither a seek to a time nor a new snapshot of that name brings
			// it back.
			seekToTime(t, e, sub, time.Unix(0, 0))
			expectSilence(t, e, sub)
			if _, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{Name: second, Subscription: sub}); err != nil {
				t.Fatalf("CreateSnapshot: %v", err)
			}
			seekToSnapshot(t, e, sub, second)
			expectSilence(t, e, sub)
		},
	},
	{
		ID:       "L14",
		Sentence: "GetSnapshot, ListSnapshots, ListTopicSnapshots and UpdateSnapshot work; with its topic deleted a snapshot names _deleted-topic_.",
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			name := e.Name("snapshots")
			created, err := e.Subs.CreateSnapshot(t.Context(), &pubsubpb.CreateSnapshotRequest{
				Name: name, Subscription: e.Subscription(t, topic), Labels: map[string]string{"a": "1"},
			})
			if err != nil {
				t.Fatalf("CreateSnapshot: %v", err)
			}
			other := snapshotOf(t, e, e.Subscription(t, e.Topic(t)))
			get := func() []any {
				got, err := e.Subs.GetSnapshot(t.Context(), &pubsubpb.GetSnapshotRequest{Snapshot: name})
				if err != nil {
					t.Fatalf("GetSnapshot: %v", err)
				}
				return []any{got.GetName(), got.GetTopic(), got.GetLabels(), got.GetExpireTime().AsTime()}
			}
			expire := created.GetExpireTime().AsTime()
			want := []any{name, topic, map[string]string{"a": "1"}, expire}
			if diff := cmp.Diff(want, []any{created.GetName(), created.GetTopic(), created.GetLabels(), expire}); diff != "" {
				t.Errorf("created (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, get()); diff != "" {
				t.Errorf("GetSnapshot (-want +got):\n%s", diff)
			}

			listed := listedSnapshots(t, e)
			if !slices.Contains(listed, name) || !slices.Contains(listed, other) {
				t.Errorf("ListSnapshots: got %q, want it to have %q and %q", listed, name, other)
			}
			var ofTopic []string
			for it := e.Topics.ListTopicSnapshots(t.Context(), &pubsubpb.ListTopicSnapshotsRequest{Topic: topic}); ; {
				next, err := it.Next()
				if errors.Is(err, iterator.Done) {
					break
				}
				if err != nil {
					t.Fatalf("ListTopicSnapshots: %v", err)
				}
				ofTopic = append(ofTopic, next)
			}
			if diff := cmp.Diff([]string{name}, ofTopic); diff != "" {
				t.Errorf("ListTopicSnapshots (-want +got):\n%s", diff)
			}

			updated, err := e.Subs.UpdateSnapshot(t.Context(), &pubsubpb.UpdateSnapshotRequest{
				Snapshot:   &pubsubpb.Snapshot{Name: name, Labels: map[string]string{"b": "2"}},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			})
			if err != nil {
				t.Fatalf("UpdateSnapshot: %v", err)
			}
			want[2] = map[string]string{"b": "2"}
			if diff := cmp.Diff(want, []any{updated.GetName(), updated.GetTopic(), updated.GetLabels(), updated.GetExpireTime().AsTime()}); diff != "" {
				t.Errorf("UpdateSnapshot (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, get()); diff != "" {
				t.Errorf("GetSnapshot after the update (-want +got):\n%s", diff)
			}

			if err := e.Topics.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: topic}); err != nil {
				t.Fatalf("DeleteTopic: %v", err)
			}
			want[1] = deletedTopic
			if diff := cmp.Diff(want, get()); diff != "" {
				t.Errorf("GetSnapshot without its topic (-want +got):\n%s", diff)
			}
		},
	},
}

// listedSnapshots returns the names of all snapshots of the project.
func listedSnapshots(t *testing.T, e *Env) (names []string) {
	t.Helper()
	for it := e.Subs.ListSnapshots(t.Context(), &pubsubpb.ListSnapshotsRequest{Project: "projects/" + e.Project}); ; {
		next, err := it.Next()
		if errors.Is(err, iterator.Done) {
			return names
		}
		if err != nil {
			t.Fatalf("ListSnapshots: %v", err)
		}
		names = append(names, next.GetName())
	}
}

// wantSnapshotGone fails the test if any call still finds the snapshot.
func wantSnapshotGone(t *testing.T, e *Env, sub, snapshot string) {
	t.Helper()
	_, err := e.Subs.GetSnapshot(t.Context(), &pubsubpb.GetSnapshotRequest{Snapshot: snapshot})
	WantCode(t, err, codes.NotFound)
	_, err = e.Subs.Seek(t.Context(), &pubsubpb.SeekRequest{Subscription: sub, Target: &pubsubpb.SeekRequest_Snapshot{Snapshot: snapshot}})
	WantCode(t, err, codes.NotFound)
	WantCode(t, e.Subs.DeleteSnapshot(t.Context(), &pubsubpb.DeleteSnapshotRequest{Snapshot: snapshot}), codes.NotFound)
	if listed := listedSnapshots(t, e); slices.Contains(listed, snapshot) {
		t.Errorf("ListSnapshots still has %q", snapshot)
	}
}
