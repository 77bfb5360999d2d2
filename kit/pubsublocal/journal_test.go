package pubsublocal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	journalTopic        = "projects/p/topics/topic"
	journalSubscription = "projects/p/subscriptions/subscription"
)

// kept is a server with a data directory, and its services without a network.
type kept struct {
	*Server
	*publisherService
	*subscriberService

	t      testing.TB
	cfg    Config
	closed bool
}

func startKept(t testing.TB, cfg Config) *kept {
	t.Helper()
	cfg.InMemory = true
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	k := &kept{
		Server: s, publisherService: &publisherService{server: s}, subscriberService: &subscriberService{server: s}, t: t, cfg: cfg,
	}
	t.Cleanup(func() {
		if !k.closed {
			_ = k.Close() // the test has ended
		}
	})
	return k
}

func (k *kept) stop() {
	k.t.Helper()
	k.closed = true
	if err := k.Close(); err != nil {
		k.t.Fatal(err)
	}
}

// again stops the server, and starts another one on its directory.
func (k *kept) again() *kept {
	k.t.Helper()
	k.stop()
	return startKept(k.t, k.cfg)
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (k *kept) makeTopic(cfg *pubsubpb.Topic) {
	k.t.Helper()
	must[*pubsubpb.Topic](k.t)(k.CreateTopic(k.t.Context(), cfg))
}

func (k *kept) makeSubscription(cfg *pubsubpb.Subscription) {
	k.t.Helper()
	must[*pubsubpb.Subscription](k.t)(k.CreateSubscription(k.t.Context(), cfg))
}

func (k *kept) makeSnapshot(name, subscription string) {
	k.t.Helper()
	must[*pubsubpb.Snapshot](k.t)(k.CreateSnapshot(k.t.Context(), &pubsubpb.CreateSnapshotRequest{Name: name, Subscription: subscription}))
}

func (k *kept) publish(topic, key string, texts ...string) []string {
	k.t.Helper()
	r := &pubsubpb.PublishRequest{Topic: topic}
	for _, text := range texts {
		r.Messages = append(r.Messages, &pubsubpb.PubsubMessage{Data: []byte(text), OrderingKey: key})
	}
	return must[*pubsubpb.PublishResponse](k.t)(k.Publish(k.t.Context(), r)).GetMessageIds()
}

func (k *kept) pull(subscription string) []*pubsubpb.ReceivedMessage {
	k.t.Helper()
	return must[*pubsubpb.PullResponse](k.t)(k.Pull(k.t.Context(), &pubsubpb.PullRequest{
		Subscription: subscription, MaxMessages: 1000, ReturnImmediately: true, //nolint:staticcheck // this test needs it
	})).GetReceivedMessages()
}

func (k *kept) ack(subscription string, messages ...*pubsubpb.ReceivedMessage) {
	k.t.Helper()
	r := &pubsubpb.AcknowledgeRequest{Subscription: subscription}
	for _, m := range messages {
		r.AckIds = append(r.AckIds, m.GetAckId())
	}
	if _, err := k.Acknowledge(k.t.Context(), r); err != nil {
		k.t.Fatal(err)
	}
}

func dataOf(messages []*pubsubpb.ReceivedMessage) []string {
	texts := []string{}
	for _, m := range messages {
		texts = append(texts, string(m.GetMessage().GetData()))
	}
	return texts
}

// contents is everything that must survive a restart.
type contents struct {
	Topics        map[string]topicContents
	Subscriptions map[string]subscriptionContents
	Snapshots     map[string]snapshotContents
	Schemas       []*pubsubpb.Schema
	Messages      map[uint64]string // retained messages
}

type topicContents struct {
	Config   *pubsubpb.Topic
	Number   uint64
	LastTime int64
	Retained []uint64
}

type subscriptionContents struct {
	Config         *pubsubpb.Subscription
	Mark           uint32
	Topic          uint64
	RetainedUntil  time.Time
	Unacked, Acked []uint64
}

type snapshotContents struct {
	Config *pubsubpb.Snapshot
	Topic  uint64
	IDs    []uint64
}

func contentsOf(s *Server) contents {
	c := contents{
		Topics: map[string]topicContents{}, Subscriptions: map[string]subscriptionContents{},
		Snapshots: map[string]snapshotContents{}, Schemas: s.schemas.dump(), Messages: map[uint64]string{},
	}
	note := func(m *message) uint64 {
		c.Messages[m.id] = fmt.Sprint(m.time, m.key.Value(), m.encoded)
		return m.id
	}
	for _, t := range s.topics.all() {
		is := topicContents{Config: t.config(), Number: t.number}
		t.mu.Lock()
		is.LastTime = t.lastTime
		for i := range t.log.len() {
			is.Retained = append(is.Retained, note(t.log.at(i)))
		}
		t.mu.Unlock()
		c.Topics[t.name] = is
	}
	for _, sub := range s.subscriptions.all() {
		is := subscriptionContents{Config: sub.config(), Mark: sub.mark, Topic: sub.topic.number}
		sub.mu.Lock()
		if sub.closed == nil {
			is.RetainedUntil = sub.retainedUntil.UTC()
		}
		for i := range sub.backlog.len() {
			if d := sub.backlog.at(i); d.state != done {
				is.Unacked = append(is.Unacked, note(d.message))
			}
		}
		for i := range sub.acked.len() {
			is.Acked = append(is.Acked, note(sub.acked.at(i)))
		}
		sub.mu.Unlock()
		slices.Sort(is.Acked)
		is.Acked = slices.Compact(is.Acked)
		c.Subscriptions[sub.name] = is
	}
	for _, snap := range s.snapshots.all() {
		is := snapshotContents{Config: snap.config(), Topic: snap.topic.number}
		for _, m := range snap.messages() {
			is.IDs = append(is.IDs, note(m))
		}
		c.Snapshots[snap.name] = is
	}
	return c
}

func diffContents(want, got contents) string { return cmp.Diff(want, got, protocmp.Transform()) }

// All resources with their settings and messages survive a restart, and a
// second one.
func TestJournalKeepsEverything(t *testing.T) {
	k := startKept(t, Config{DataDir: t.TempDir()})
	fill(k)
	want := contentsOf(k.Server)
	for restart := range 2 {
		k = k.again()
		if diff := diffContents(want, contentsOf(k.Server)); diff != "" {
			t.Fatalf("after %d restarts (-want +got):\n%s", restart+1, diff)
		}
	}
}

// fill creates resources of all kinds, in many states.
func fill(k *kept) {
	t, ctx := k.t, k.t.Context()
	k.makeTopic(&pubsubpb.Topic{Name: "projects/p/topics/dead"})
	k.makeTopic(&pubsubpb.Topic{
		Name: journalTopic, Labels: map[string]string{"a": "b"}, MessageRetentionDuration: durationpb.New(time.Hour),
	})
	k.publish(journalTopic, "", "before any subscription")
	k.makeSubscription(&pubsubpb.Subscription{
		Name: journalSubscription, Topic: journalTopic, EnableMessageOrdering: true, AckDeadlineSeconds: 33,
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "projects/p/topics/dead", MaxDeliveryAttempts: 7},
		RetryPolicy:      &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(time.Second)},
	})
	k.makeSubscription(&pubsubpb.Subscription{
		Name: "projects/p/subscriptions/retaining", Topic: journalTopic, RetainAckedMessages: true, Labels: map[string]string{"c": "d"},
	})
	k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/filtered", Topic: journalTopic, Filter: `attributes.a = "1"`})
	k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/detached", Topic: journalTopic})
	for i := range 10 {
		k.publish(journalTopic, strconv.Itoa(i%3), fmt.Sprint("first ", i))
		must[*pubsubpb.PublishResponse](t)(k.Publish(ctx, &pubsubpb.PublishRequest{Topic: journalTopic, Messages: []*pubsubpb.PubsubMessage{
			{Data: []byte("filtered"), Attributes: map[string]string{"a": strconv.Itoa(i % 2)}},
		}}))
	}
	must[*pubsubpb.DetachSubscriptionResponse](t)(k.DetachSubscription(ctx, &pubsubpb.DetachSubscriptionRequest{
		Subscription: "projects/p/subscriptions/detached",
	}))
	for _, name := range []string{journalSubscription, "projects/p/subscriptions/retaining", "projects/p/subscriptions/filtered"} {
		messages := k.pull(name)
		k.ack(name, messages[1:len(messages)/2]...) // not the first one, so that there is a gap
	}
	k.makeSnapshot("projects/p/snapshots/early", journalSubscription)
	k.makeSnapshot("projects/p/snapshots/other", "projects/p/subscriptions/retaining")
	k.publish(journalTopic, "1", "second a", "second b")
	must[*pubsubpb.Snapshot](t)(k.UpdateSnapshot(ctx, &pubsubpb.UpdateSnapshotRequest{
		Snapshot:   &pubsubpb.Snapshot{Name: "projects/p/snapshots/early", Labels: map[string]string{"e": "f"}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
	}))
	k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/seeking", Topic: journalTopic, RetainAckedMessages: true})
	must[*pubsubpb.SeekResponse](t)(k.Seek(ctx, &pubsubpb.SeekRequest{
		Subscription: "projects/p/subscriptions/seeking", Target: &pubsubpb.SeekRequest_Snapshot{Snapshot: "projects/p/snapshots/early"},
	}))
	messages := k.pull("projects/p/subscriptions/seeking")
	k.ack("projects/p/subscriptions/seeking", messages[:3]...)
	must[*pubsubpb.SeekResponse](t)(k.Seek(ctx, &pubsubpb.SeekRequest{
		Subscription: "projects/p/subscriptions/filtered", Target: &pubsubpb.SeekRequest_Time{Time: timestamppb.New(time.Unix(0, 0))},
	}))
	must[*pubsubpb.Subscription](t)(k.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
		Subscription: &pubsubpb.Subscription{Name: journalSubscription, Labels: map[string]string{"g": "h"}},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
	}))
	// A topic that was deleted and created again. The old and the new one have
	// a subscription each.
	for _, which := range []string{"old", "new"} {
		k.makeTopic(&pubsubpb.Topic{Name: "projects/p/topics/again"})
		k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/" + which, Topic: "projects/p/topics/again"})
		k.publish("projects/p/topics/again", "", which)
		if which == "old" {
			k.makeSnapshot("projects/p/snapshots/old", "projects/p/subscriptions/old")
			must[any](t)(k.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: "projects/p/topics/again"}))
		}
	}
	// Deleted resources.
	k.makeSubscription(&pubsubpb.Subscription{Name: "projects/p/subscriptions/gone", Topic: journalTopic})
	k.makeSnapshot("projects/p/snapshots/gone", "projects/p/subscriptions/gone")
	k.publish(journalTopic, "", "third")
	must[any](t)(k.DeleteSnapshot(ctx, &pubsubpb.DeleteSnapshotRequest{Snapshot: "projects/p/snapshots/gone"}))
	must[any](t)(k.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: "projects/p/subscriptions/gone"}))
	// Schemas. One of them is deleted while a topic uses it.
	for _, id := range []string{"stays", "leaves"} {
		must[*pubsubpb.Schema](t)(k.schemas.CreateSchema(ctx, &pubsubpb.CreateSchemaRequest{
			Parent: "projects/p", SchemaId: id, Schema: revision(1),
		}))
		must[*pubsubpb.Schema](t)(k.schemas.CommitSchema(ctx, &pubsubpb.CommitSchemaRequest{
			Name: "projects/p/schemas/" + id, Schema: revision(2),
		}))
		k.makeTopic(&pubsubpb.Topic{
			Name:           "projects/p/topics/" + id,
			SchemaSettings: &pubsubpb.SchemaSettings{Schema: "projects/p/schemas/" + id, Encoding: pubsubpb.Encoding_JSON},
		})
	}
	must[any](t)(k.schemas.DeleteSchema(ctx, &pubsubpb.DeleteSchemaRequest{Name: "projects/p/schemas/leaves"}))
}

// After a restart, leased messages and those acknowledged out of order are
// delivered again, in the order of publishing and as a first attempt. Other
// acknowledged messages are not.
func TestJournalRedeliversInOrder(t *testing.T) {
	k := startKept(t, Config{DataDir: t.TempDir()})
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: journalSubscription, Topic: journalTopic, EnableMessageOrdering: true})
	k.publish(journalTopic, "k", "a", "b", "c", "d")
	leased := k.pull(journalSubscription)
	k.ack(journalSubscription, leased[0], leased[2]) // the ack of c waits for b
	k = k.again()
	again := k.pull(journalSubscription)
	if diff := cmp.Diff([]string{"b", "c", "d"}, dataOf(again)); diff != "" {
		t.Errorf("after the restart (-want +got):\n%s", diff)
	}
	k.ack(journalSubscription, leased[1:]...) // out of date: no error and no effect
	k.ack(journalSubscription, again[0])
	id := k.publish(journalTopic, "k", "e")[0]
	k = k.again()
	last := k.pull(journalSubscription)
	if diff := cmp.Diff([]string{"c", "d", "e"}, dataOf(last)); diff != "" {
		t.Errorf("after the second restart (-want +got):\n%s", diff)
	}
	if got := last[2].GetMessage().GetMessageId(); got != id {
		t.Errorf("message_id = %s, want %s", got, id)
	}
}

// A snapshot works after a restart. A seek to it brings back its messages, and
// they stay after another restart.
func TestJournalSeeksAfterRestart(t *testing.T) {
	k := startKept(t, Config{DataDir: t.TempDir()})
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	k.makeSubscription(&pubsubpb.Subscription{
		Name: journalSubscription, Topic: journalTopic, MessageRetentionDuration: durationpb.New(10 * time.Minute),
	})
	k.publish(journalTopic, "", "a", "b")
	k.makeSnapshot("projects/p/snapshots/snapshot", journalSubscription)
	k.publish(journalTopic, "", "c")
	k.ack(journalSubscription, k.pull(journalSubscription)...)
	k = k.again()
	if got := dataOf(k.pull(journalSubscription)); len(got) > 0 {
		t.Errorf("acknowledged messages came again: %q", got)
	}
	k.cfg.Clock = &Clock{}
	k.cfg.Clock.Advance(time.Hour)
	k = k.again()
	must[*pubsubpb.SeekResponse](t)(k.Seek(t.Context(), &pubsubpb.SeekRequest{
		Subscription: journalSubscription, Target: &pubsubpb.SeekRequest_Snapshot{Snapshot: "projects/p/snapshots/snapshot"},
	}))
	want := []string{"a", "b", "c"}
	if diff := cmp.Diff(want, dataOf(k.pull(journalSubscription))); diff != "" {
		t.Errorf("after the seek (-want +got):\n%s", diff)
	}
	k.cfg.Clock = &Clock{}
	k.stop()
	k.cfg.Clock.Advance(time.Hour)
	k = startKept(t, k.cfg)
	if diff := cmp.Diff(want, dataOf(k.pull(journalSubscription))); diff != "" {
		t.Errorf("after the seek and a restart (-want +got):\n%s", diff)
	}
}

// Ids, ack ids and publish times increase over a restart, even if the clock
// went back.
func TestJournalNumbersGoOn(t *testing.T) {
	clock := &Clock{}
	clock.Advance(time.Hour)
	k := startKept(t, Config{DataDir: t.TempDir(), Clock: clock})
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: journalSubscription, Topic: journalTopic, EnableExactlyOnceDelivery: true})
	seen := map[string]bool{}
	var lastID, lastLease uint64
	var lastTime time.Time
	var old []*pubsubpb.ReceivedMessage
	k.lastID.Add(8 * idReserve) // as if that many messages had been published
	for range 4 {
		for range 3 {
			k.publish(journalTopic, "", "x")
		}
		sub := k.subscriptions.get(journalSubscription)
		if lease := sub.lastLease; lease <= lastLease {
			t.Errorf("leases go on after %d, want more than %d", lease, lastLease)
		}
		received := k.pull(journalSubscription)
		for _, m := range received[len(received)-3:] {
			id, err := strconv.ParseUint(m.GetMessage().GetMessageId(), 10, 64)
			if err != nil || id <= lastID {
				t.Errorf("message id %s after %d (%v)", m.GetMessage().GetMessageId(), lastID, err)
			}
			if at := m.GetMessage().GetPublishTime().AsTime(); at.Before(lastTime) {
				t.Errorf("publish time %v after %v", at, lastTime)
			}
			lastID, lastTime = id, m.GetMessage().GetPublishTime().AsTime()
		}
		for _, m := range received {
			if seen[m.GetAckId()] {
				t.Errorf("ack id %s was given twice", m.GetAckId())
			}
			seen[m.GetAckId()] = true
		}
		for _, m := range old {
			_, err := k.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: journalSubscription, AckIds: []string{m.GetAckId()}})
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("ack with an id of before the restart = %v, want INVALID_ARGUMENT", err)
			}
		}
		old, lastLease = received, sub.lastLease
		k.cfg.Clock = nil
		k = k.again()
		// New ids are higher than the ids of messages that were delivered but not
		// written before a crash.
		if got := k.lastID.Load(); got < lastID+idReserve {
			t.Errorf("ids go on after %d, want at least %d", got, lastID+idReserve)
		}
	}
	if got, want := len(k.pull(journalSubscription)), 12; got != want {
		t.Errorf("%d messages, want %d", got, want)
	}
}

// A crash may cut the last write at any byte. The next server has all earlier
// batches, and all of the last batch or nothing of it.
func TestJournalCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, journalFile)
	k := startKept(t, Config{DataDir: dir})
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: journalSubscription, Topic: journalTopic})
	k.publish(journalTopic, "", "a", "b")
	before := contentsOf(k.Server)
	committed := must[os.FileInfo](t)(os.Stat(file)).Size()
	k.publish(journalTopic, "", "c", "d", "e")
	after := contentsOf(k.Server)
	whole := must[[]byte](t)(os.ReadFile(file))
	k.stop()
	if int64(len(whole)) <= committed {
		t.Fatalf("the file has %d bytes after the last batch, and %d before", len(whole), committed)
	}
	for size := committed; size <= int64(len(whole)); size++ {
		cut := t.TempDir()
		if err := os.WriteFile(filepath.Join(cut, journalFile), whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		k := startKept(t, Config{DataDir: cut, Log: slog.New(slog.NewTextHandler(&log, nil))})
		want := before
		if size == int64(len(whole)) {
			want = after
		}
		torn := size > committed && size < int64(len(whole))
		got := contentsOf(k.Server)
		for name, topic := range got.Topics { // LastTime is the time of the last message
			topic.LastTime = want.Topics[name].LastTime
			got.Topics[name] = topic
		}
		if diff := diffContents(want, got); diff != "" {
			t.Errorf("cut at %d of %d (-want +got):\n%s", size, len(whole), diff)
		}
		if logged := strings.Contains(log.String(), fmt.Sprintf("offset=%d", committed)); logged != torn {
			t.Errorf("cut at %d of %d: log = %q, want a word about the cut: %t", size, len(whole), &log, torn)
		}
		k.stop()
	}
}

// A damaged or foreign file is refused with the reason.
func TestJournalRefuses(t *testing.T) {
	dir := t.TempDir()
	k := startKept(t, Config{DataDir: dir})
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	size := must[os.FileInfo](t)(os.Stat(filepath.Join(dir, journalFile))).Size()
	for range 3 {
		k.publish(journalTopic, "", "x")
	}
	good := must[[]byte](t)(os.ReadFile(filepath.Join(dir, journalFile)))
	k.stop()
	flip := func(at int64) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"damaged length":  {flip(size), fmt.Sprintf("damaged at byte %d", size)},
		"damaged sum":     {flip(size + 4), fmt.Sprintf("damaged at byte %d", size)},
		"damaged record":  {flip(size + frameHeader + 7), fmt.Sprintf("damaged at byte %d", size)},
		"another version": {append([]byte("pubsublocal journal 2\n"), good[len(journalHeader):]...), `format "2"`},
		"another program": {[]byte("hello"), "not one of this program"},
		"nothing":         {nil, "not one of this program"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, journalFile), c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Start(Config{DataDir: dir, InMemory: true})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("Start() = %v, want the folder and %q", err, c.want)
			}
			if got := must[[]byte](t)(os.ReadFile(filepath.Join(dir, journalFile))); !bytes.Equal(got, c.file) {
				t.Error("the file was changed")
			}
		})
	}
}

// Two servers cannot share a directory. The first one is not affected.
func TestJournalLocksItsFolder(t *testing.T) {
	k := startKept(t, Config{DataDir: t.TempDir()})
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	if _, err := Start(Config{DataDir: k.cfg.DataDir, InMemory: true}); err == nil || !strings.Contains(err.Error(), "another server uses it") {
		t.Errorf("Start() = %v, want an error about the other server", err)
	}
	k.makeSubscription(&pubsubpb.Subscription{Name: journalSubscription, Topic: journalTopic})
	k.publish(journalTopic, "", "a")
	k = k.again()
	if diff := cmp.Diff([]string{"a"}, dataOf(k.pull(journalSubscription))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// After a write error every change fails. The error is logged once. A restart
// has everything that was confirmed.
func TestJournalWriteError(t *testing.T) {
	var log bytes.Buffer
	k := startKept(t, Config{DataDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: journalSubscription, Topic: journalTopic})
	k.publish(journalTopic, "", "a", "b")
	want := contentsOf(k.Server)
	if err := k.journal.file.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, err := k.Publish(t.Context(), publishOne(journalTopic, "lost"))
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "write journal") {
			t.Errorf("Publish() = %v, want INTERNAL with the reason", err)
		}
	}
	if _, err := k.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/p/topics/other"}); status.Code(err) != codes.Internal {
		t.Errorf("CreateTopic() = %v, want INTERNAL", err)
	}
	k.closed = true
	if err := k.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close() = %v, want the error of the write", err)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors were logged, want 1:\n%s", n, &log)
	}
	k = startKept(t, k.cfg)
	if diff := diffContents(want, contentsOf(k.Server)); diff != "" {
		t.Errorf("after the restart (-want +got):\n%s", diff)
	}
}

func publishOne(topic, text string) *pubsubpb.PublishRequest {
	return &pubsubpb.PublishRequest{Topic: topic, Messages: []*pubsubpb.PubsubMessage{{Data: []byte(text)}}}
}

const childFolder = "PUBSUBLOCAL_TEST_FOLDER"

// TestJournalChild is the process that TestJournalSurvivesKill kills.
func TestJournalChild(t *testing.T) {
	dir := os.Getenv(childFolder)
	if dir == "" {
		return // this is not that process
	}
	k := startKept(t, Config{DataDir: dir})
	k.journal.minimum.Store(1 << 12)
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: journalSubscription, Topic: journalTopic})
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for {
				response, err := k.Publish(t.Context(), publishOne(journalTopic, "x"))
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(os.Stdout, "id %s\n", response.GetMessageIds()[0])
			}
		})
	}
	work.Wait()
}

// A process that is killed under load has lost nothing that it had confirmed.
func TestJournalSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	answered := map[uint64]bool{}
	for round := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestJournalChild$")
		child.Env = append(os.Environ(), childFolder+"="+dir)
		out := must[interface{ Read([]byte) (int, error) }](t)(child.StdoutPipe())
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		n := 0
		for lines.Scan() {
			text, ok := strings.CutPrefix(lines.Text(), "id ")
			if !ok {
				continue
			}
			answered[must[uint64](t)(strconv.ParseUint(text, 10, 64))] = true
			if n++; n == 200 {
				_ = child.Process.Kill() // its earlier output is still read
			}
		}
		_ = child.Wait() // its error is that it was killed
		cancel()
		if n < 200 {
			t.Fatalf("the child answered only %d", n)
		}
		k := startKept(t, Config{DataDir: dir})
		there := map[uint64]bool{}
		for _, id := range contentsOf(k.Server).Subscriptions[journalSubscription].Unacked {
			there[id] = true
		}
		for id := range answered {
			if !there[id] {
				t.Errorf("round %d: message %d was answered, and is lost", round, id)
			}
		}
		// The next round creates them again.
		must[any](t)(k.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: journalTopic}))
		must[any](t)(k.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: journalSubscription}))
		clear(answered)
		k.stop()
	}
}

// The file does not grow with deleted and acknowledged data, and live data
// stays.
func TestJournalIsRewritten(t *testing.T) {
	k := startKept(t, Config{DataDir: t.TempDir()})
	const minimum = 1 << 14
	k.journal.minimum.Store(minimum)
	k.makeTopic(&pubsubpb.Topic{Name: journalTopic})
	k.makeSubscription(&pubsubpb.Subscription{Name: journalSubscription, Topic: journalTopic})
	k.publish(journalTopic, "", "stays")
	stays := k.pull(journalSubscription)
	for range 200 {
		k.publish(journalTopic, "", strings.Repeat("x", 1000))
		k.ack(journalSubscription, k.pull(journalSubscription)...)
	}
	deadline := time.Now().Add(10 * time.Second)
	for k.journal.size.Load() > 2*minimum && time.Now().Before(deadline) {
		k.publish(journalTopic, "", "x")
		k.ack(journalSubscription, k.pull(journalSubscription)...)
		time.Sleep(time.Millisecond)
	}
	if size := k.journal.size.Load(); size > 2*minimum {
		t.Errorf("the journal has %d bytes, want at most %d", size, 2*minimum)
	}
	k = k.again()
	if diff := cmp.Diff(dataOf(stays), dataOf(k.pull(journalSubscription))); diff != "" {
		t.Errorf("after the restart (-want +got):\n%s", diff)
	}
}

// Many changes happen concurrently while the file is rewritten all the time. A
// restart gives the same state.
func TestJournalUnderLoad(t *testing.T) {
	k := startKept(t, Config{DataDir: t.TempDir()})
	k.journal.minimum.Store(1 << 12)
	const topicCount, subscriptionCount, workers = 3, 6, 6
	// A message that is published while a subscription is created may or may
	// not be in it.
	var made sync.Map // name: [2]uint64, the range of ids during its creation
	var work sync.WaitGroup
	end := time.Now().Add(1500 * time.Millisecond)
	for seed := range uint64(workers) {
		work.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			pick := func(kind string, n int) string { return fmt.Sprintf("projects/p/%s/x%d-%d", kind, n, random.IntN(n)) }
			for time.Now().Before(end) {
				k.step(random.IntN(100), pick("topics", topicCount), pick("subscriptions", subscriptionCount), pick("snapshots", 3),
					strconv.Itoa(random.IntN(4)), &made)
			}
		})
	}
	work.Wait()
	if err := k.journal.handedOver().wait(); err != nil {
		t.Fatal(err)
	}
	want := contentsOf(k.Server)
	if len(want.Messages) == 0 || len(want.Subscriptions) == 0 {
		t.Errorf("nothing is left to compare: %d messages, %d subscriptions", len(want.Messages), len(want.Subscriptions))
	}
	for restart := range 2 {
		k = k.again()
		got := contentsOf(k.Server)
		for name, is := range got.Subscriptions {
			window, _ := made.Load(name)
			between, _ := window.([2]uint64)
			is.Unacked = slices.DeleteFunc(is.Unacked, func(id uint64) bool {
				return !slices.Contains(want.Subscriptions[name].Unacked, id) && id > between[0] && id <= between[1]
			})
			if len(is.Unacked) == 0 {
				is.Unacked = nil
			}
			got.Subscriptions[name] = is
		}
		maps.DeleteFunc(got.Messages, func(id uint64, _ string) bool { return want.Messages[id] == "" })
		if diff := diffContents(want, got); diff != "" {
			t.Fatalf("after %d restarts (-want +got):\n%s", restart+1, diff)
		}
	}
}

// step makes one random change. Its resources may not exist.
func (k *kept) step(what int, topic, sub, snap, key string, made *sync.Map) {
	ctx := k.t.Context()
	var err error
	switch {
	case what < 40:
		r := publishOne(topic, "text")
		r.Messages[0].OrderingKey = key
		r.Messages = append(r.Messages, proto.CloneOf(r.GetMessages()[0]))
		_, err = k.Publish(ctx, r)
	case what < 75:
		err = k.receive(ctx, sub, what < 70)
	case what < 80:
		_, err = k.CreateTopic(ctx, &pubsubpb.Topic{Name: topic, MessageRetentionDuration: durationpb.New(time.Hour)})
	case what < 81:
		_, err = k.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: topic})
	case what < 86:
		first := k.lastID.Load()
		_, err = k.CreateSubscription(ctx, &pubsubpb.Subscription{
			Name: sub, Topic: topic, EnableMessageOrdering: key < "2", RetainAckedMessages: key == "1",
		})
		if err == nil {
			made.Store(sub, [2]uint64{first, k.lastID.Load()})
		}
	case what < 87:
		_, err = k.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: sub})
	case what < 88 && key == "0":
		_, err = k.DetachSubscription(ctx, &pubsubpb.DetachSubscriptionRequest{Subscription: sub})
	case what < 90:
		_, err = k.ModifyPushConfig(ctx, &pubsubpb.ModifyPushConfigRequest{Subscription: sub, PushConfig: &pubsubpb.PushConfig{}})
	case what < 92:
		_, err = k.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
			Subscription: &pubsubpb.Subscription{Name: sub, RetainAckedMessages: key == "1", Labels: map[string]string{"key": key}},
			UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"retain_acked_messages", "labels"}},
		})
	case what < 94:
		_, err = k.CreateSnapshot(ctx, &pubsubpb.CreateSnapshotRequest{Name: snap, Subscription: sub})
	case what < 96 && key > "1":
		_, err = k.DeleteSnapshot(ctx, &pubsubpb.DeleteSnapshotRequest{Snapshot: snap})
	case what < 98:
		_, err = k.Seek(ctx, &pubsubpb.SeekRequest{Subscription: sub, Target: &pubsubpb.SeekRequest_Snapshot{Snapshot: snap}})
	default:
		at := timestamppb.New(time.Now().Add(-200 * time.Millisecond))
		_, err = k.Seek(ctx, &pubsubpb.SeekRequest{Subscription: sub, Target: &pubsubpb.SeekRequest_Time{Time: at}})
	}
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition:
	default:
		k.t.Error(err)
	}
}

func (k *kept) receive(ctx context.Context, sub string, ack bool) error {
	response, err := k.Pull(ctx, &pubsubpb.PullRequest{
		Subscription: sub, MaxMessages: 20, ReturnImmediately: true, //nolint:staticcheck // this test needs it
	})
	if err != nil || len(response.GetReceivedMessages()) == 0 {
		return err
	}
	var ids []string
	for _, m := range response.GetReceivedMessages() {
		ids = append(ids, m.GetAckId())
	}
	if ack {
		_, err = k.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: sub, AckIds: ids})
	} else {
		_, err = k.ModifyAckDeadline(ctx, &pubsubpb.ModifyAckDeadlineRequest{Subscription: sub, AckIds: ids})
	}
	if status.Code(err) == codes.InvalidArgument {
		return nil // the subscription was created again meanwhile
	}
	return err
}

// Records of concurrent changes may be in either order: a seek after the
// release of messages that it read, a message before its topic, a backlog before
// its subscription. If the file is rewritten in between, nothing is lost.
func TestJournalKeepsWhatHappensAtOnce(t *testing.T) {
	publish := func(retained bool) []byte {
		return appendRecord(nil, recordPublished, func(b []byte) []byte {
			return appendMessage(appendNumber(b, 1), 10, 1, retained, []byte("\x0a\x01x"))
		})
	}
	topic := func(retained uint64) []byte {
		return appendRecord(nil, recordTopic, func(b []byte) []byte {
			return appendTopic(b, 1, 1, false, 0, retained, &pubsubpb.Topic{Name: journalTopic})
		})
	}
	snapshot := appendRecord(nil, recordSnapshot, func(b []byte) []byte {
		return appendSnapshot(b, 1, 1, &pubsubpb.Snapshot{Name: "projects/p/snapshots/snapshot"}, []uint64{10})
	})
	deleted := func(name string) []byte {
		return appendRecord(nil, recordDeleted, func(b []byte) []byte { return protowire.AppendString(b, name) })
	}
	reset := appendRecord(nil, recordReset, func(b []byte) []byte { return appendReset(b, 7, 1, 0, []uint64{10}, nil) })
	for name, records := range map[string][][]byte{
		"snapshot deleted":       {topic(0), publish(false), snapshot, deleted("projects/p/snapshots/snapshot")},
		"topic retention ended":  {topic(0), publish(true), topic(11)},
		"topic not there yet":    {publish(true)},
		"subscription not there": {topic(0), publish(false), reset},
	} {
		t.Run(name, func(t *testing.T) {
			img := newImage()
			for _, record := range records {
				if err := img.apply(record); err != nil {
					t.Fatal(err)
				}
			}
			img.prune(time.UnixMilli(1))
			var written bytes.Buffer
			w := &frameWriter{w: &written, frame: make([]byte, frameHeader)}
			img.writeResources(w)
			if err := img.copyLive(w, publish(false), nil); err != nil {
				t.Fatal(err)
			}
			img.writeBacklogs(w)
			w.flush()
			again := newImage()
			if err := again.apply(written.Bytes()[frameHeader:]); err != nil {
				t.Fatal(err)
			}
			if again.topic(1).find(10) == nil {
				t.Error("the message is gone")
			}
			_, want := img.subscriptions[7]
			if _, got := again.subscription(7).unacked[10]; got != want {
				t.Errorf("the message is in the backlog: %t, want %t", got, want)
			}
		})
	}
}
