package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// quick is for relays that crash, whose lanes must soon be free.
var quick = outbox.Config{Batch: maxBatch, Workers: 2, PollInterval: time.Second, Lease: 5 * time.Second, PublishTimeout: 2 * time.Second}

// limits are the limits of a claim in tests.
var limits = outbox.Limits{Lanes: outbox.Lanes, Events: maxBatch, Bytes: 1 << 20, Lease: 3 * time.Second}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// start runs a relay until the returned function or the test ends.
func start(t *testing.T, client *firestore.Client, to outbox.Broker, cfg outbox.Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay(ctx, client, to, cfg, slog.New(slog.NewTextHandler(t.Output(), nil))) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func write(t *testing.T, letters *Letters, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, letters.Write(t.Context(), name, "Dear reader,"))
	}
}

func claim(t *testing.T, s *Store) outbox.Claim {
	t.Helper()
	c, err := s.ClaimEvents(t.Context(), limits)
	must(t, err)
	return c
}

// settle settles a claim. want says whether its lanes are still held.
func settle(t *testing.T, s *Store, settlement outbox.Settlement, want bool) {
	t.Helper()
	if held, err := s.SettleClaim(t.Context(), settlement); held != want || err != nil {
		t.Fatalf("settled: %v, %v, want %v", held, err, want)
	}
}

func named(c outbox.Claim) string {
	var names []string
	for _, e := range c.Events {
		names = append(names, fmt.Sprintf("%s%d/%d", e.AggregateID, e.Version, e.Attempts))
	}
	return strings.Join(names, " ")
}

// The filter of the relay needs no field that a new event lacks: with a field "published_at", or a status that the unit of
// work does not write, no query would find it. The listener tells a relay of another process.
func TestNewEventIsSeen(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "seen", emulator)
	to := new(topic)
	start(t, client, to, relayConfig) // it polls once a minute
	letters := NewLetters(client, func() {})
	write(t, letters, "a", "a", "a")
	must(t, letters.Send(t.Context(), "a"))
	eventually(t, "all events are published", func() bool { return to.letters() == "a1 a2 a3 a4" })
}

// An event that a relay has taken before it crashed is taken again when the lease ends: there is no state of an event,
// such as PROCESSING, that nobody leaves.
func TestEventOfACrashedRelayIsTakenAgain(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "again", emulator)
	write(t, NewLetters(client, func() {}), "a", "a")
	if got := named(claim(t, NewStore(client))); got != "a1/0 a2/0" {
		t.Fatalf("claim = %s", got)
	}
	other := NewStore(client)
	if got := claim(t, other); got.Token != 0 {
		t.Fatalf("another relay claims %s while the lease runs", named(got))
	}
	eventually(t, "another relay takes the events", func() bool { return named(claim(t, other)) == "a1/0 a2/0" })
}

// Two relays that claim at the same time never take one event: reading and then writing is not enough, the lease is taken
// only if its document has not changed since it was read.
func TestTwoRelaysTakeNoEventTwice(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "twice", emulator)
	letters := NewLetters(client, func() {})
	write(t, letters, "a", "b", "c", "d", "e")
	for _, when := range []string{"first", "when lanes were released"} {
		relays := []*Store{NewStore(client), NewStore(client)}
		var works []work
		var now time.Time
		for _, s := range relays { // both read before one of them writes
			free, at, err := s.freeLanes(t.Context())
			must(t, err)
			w, err := s.read(t.Context(), free, limits, at)
			must(t, err)
			works, now = append(works, w), at
		}
		var claims []outbox.Claim
		for i, s := range relays {
			c, err := s.lease(t.Context(), works[i], limits, now)
			must(t, err)
			claims = append(claims, c)
		}
		if len(claims[0].Events) != 5 || claims[1].Token != 0 {
			t.Errorf("%s: the relays take %q and %q, want all and none", when, named(claims[0]), named(claims[1]))
		}
		settle(t, relays[0], outbox.Settlement{Lease: claims[0].Lease}, true)
	}
}

// A relay whose lease has ended settles nothing in a lane that another one has taken.
func TestLostLeaseSettlesNothing(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "lost", emulator)
	write(t, NewLetters(client, func() {}), "a")
	slow, other := NewStore(client), NewStore(client)
	short := limits
	short.Lease = time.Second
	lost, err := slow.ClaimEvents(t.Context(), short)
	must(t, err)
	var taken outbox.Claim
	eventually(t, "another relay takes the lane", func() bool { taken = claim(t, other); return taken.Token != 0 })
	slow.claims.Store(lost.Token, map[int64]event{1: eventOf(lost.Events[0].Message)})
	settle(t, slow, outbox.Settlement{Lease: lost.Lease, Published: []int64{1}}, false)
	settle(t, other, outbox.Settlement{Lease: taken.Lease}, true)
	if left, err := client.Collection(pendingEvents).Documents(t.Context()).GetAll(); err != nil || len(left) != 1 {
		t.Errorf("%d events are left, %v, want 1", len(left), err)
	}
}

// A refused event holds back its own letter only, has growing pauses in place of the lock's time, and keeps the number of its
// attempts also when a relay fails after the publish.
func TestRefusedEventKeepsItsAttempts(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "refused", emulator)
	write(t, NewLetters(client, func() {}), "a", "a", "b")
	store := NewStore(client)
	refuse := func(want string, retryIn time.Duration, attempts int) {
		t.Helper()
		var c outbox.Claim
		eventually(t, want, func() bool { c = claim(t, store); return named(c) == want })
		s := outbox.Settlement{Lease: c.Lease, Refused: []outbox.Refusal{{
			Aggregate: c.Events[0].Aggregate(), Seq: c.Events[0].Seq, Attempts: attempts, Error: "bad letter", RetryIn: retryIn,
		}}}
		for _, e := range c.Events {
			switch {
			case e.AggregateID == "b":
				s.Published = append(s.Published, e.Seq)
			case !e.Deferred:
				s.Defer = append(s.Defer, e.Seq)
			}
		}
		settle(t, store, s, true)
	}
	refuse("a1/0 a2/0 b1/0", time.Millisecond, 1)
	eventually(t, "the refused event is due", func() bool { return named(claim(t, store)) == "a1/1" }) // this claim crashes
	refuse("a1/1", time.Millisecond, 2)
	refuse("a1/2", 0, 3) // parked
	if got := claim(t, store); got.Token != 0 {
		t.Errorf("claim = %s, want nothing: the letter is parked", named(got))
	}
	_, err := store.block(envelope.Aggregate{Type: "letter", ID: "a"}).Update(t.Context(), []firestore.Update{{Path: "next_retry", Value: time.Now()}, {Path: "attempts", Value: 0}})
	must(t, err)
	to := new(topic)
	start(t, client, to, quick) // the cause is mended
	write(t, NewLetters(client, func() {}), "a")
	eventually(t, "the letter goes on in order", func() bool { return to.letters() == "a1 a2 a3" })
	for _, name := range []string{pendingEvents, deferredEvents, blockedOnes} {
		eventually(t, name+" is empty", func() bool {
			left, err := client.Collection(name).Documents(t.Context()).GetAll()
			return err == nil && len(left) == 0
		})
	}
}

// A new event waits for the deferred events of its letter, also for those that the limit of a claim leaves out.
func TestNewEventWaitsForDeferredOnes(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "behind", emulator)
	letters, store := NewLetters(client, func() {}), NewStore(client)
	write(t, letters, strings.Fields("a a a a a b b b b b b")...) // in two lanes
	c := claim(t, store)
	s := outbox.Settlement{Lease: c.Lease}
	for _, e := range c.Events {
		s.Defer = append(s.Defer, e.Seq)
	}
	for _, id := range []string{"a", "b"} { // without attempts, as a person resumes them
		s.Refused = append(s.Refused, outbox.Refusal{Aggregate: envelope.Aggregate{Type: "letter", ID: id}, RetryIn: time.Millisecond})
	}
	settle(t, store, s, true)
	write(t, letters, "b")
	to := new(topic)
	start(t, client, to, quick) // it claims up to 8 deferred events
	eventually(t, "all events are published", func() bool { return len(strings.Fields(to.letters())) == 12 })
	if got, want := to.letters(), "a1 a2 a3 a4 a5 b1 b2 b3 b4 b5 b6 b7"; got != want {
		t.Errorf("published %s, want %s", got, want)
	}
}

// One bad letter among many is parked by the publisher, and all others are published.
func TestPoisonBlocksItsLetterOnly(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "poison", emulator)
	letters := NewLetters(client, func() {})
	for i := range 30 {
		write(t, letters, fmt.Sprint("a", i))
	}
	to := &topic{refuses: func(m envelope.Message) bool { return m.AggregateID == "a7" }}
	cfg := quick
	cfg.MaxAttempts = 2
	start(t, client, to, cfg)
	eventually(t, "the others are published", func() bool { return len(strings.Fields(to.letters())) == 29 })
	eventually(t, "the bad one is parked", func() bool {
		snapshot, err := client.Collection(blockedOnes).Doc("letter_a7").Get(t.Context())
		var b blocked
		return err == nil && snapshot.DataTo(&b) == nil && b.Attempts == 2 && b.NextRetry == nil && b.Error != ""
	})
}

// The unit of work commits when its function returns no error, without being asked, and writes nothing otherwise.
func TestUnitOfWorkIsWhole(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "whole", emulator)
	letters := NewLetters(client, func() {})
	if err := letters.Send(t.Context(), "none"); err == nil {
		t.Error("a letter was sent that does not exist")
	}
	write(t, letters, "a")
	must(t, letters.Send(t.Context(), "a"))
	if err := letters.Write(t.Context(), "a", "P.S."); err == nil {
		t.Error("a sent letter was changed")
	}
	// Another process has written the event of version 3: the letter must not change without its own event.
	e := eventOf(envelope.Message{ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: "a", Version: 3})
	_, err := client.Collection(pendingEvents).Doc(e.name()).Create(t.Context(), e)
	must(t, err)
	if err := letters.Send(t.Context(), "a"); err == nil {
		t.Error("an event was replaced")
	}
	snapshot, err := client.Collection("letters").Doc("a").Get(t.Context())
	var l Letter
	if err = errors.Join(err, snapshot.DataTo(&l)); err != nil || l.Version != 2 || !l.Sent || len(l.Lines) != 1 {
		t.Errorf("letter = %+v, %v, want version 2, sent, with one line", l, err)
	}
	events, err := client.Collection(pendingEvents).Documents(t.Context()).GetAll()
	if err != nil || len(events) != 3 {
		t.Errorf("%d events, %v, want 3: none of a unit that failed", len(events), err)
	}
}

// An idle poll costs at most 8 reads, and a backlog at most 1.2 for each event.
func TestReads(t *testing.T) {
	t.Parallel()
	writer, _ := newClient(t, "reads", emulator)
	client, counted := newClient(t, "reads", emulator)
	if c := claim(t, NewStore(client)); c.Token != 0 {
		t.Fatalf("claim = %s, want nothing", named(c))
	}
	if n := counted.n.Swap(0); n > 8 {
		t.Errorf("an idle poll has %d reads, want at most 8", n)
	}
	letters := NewLetters(writer, func() {})
	const names, versions = 200, 10
	var writers sync.WaitGroup
	for i := range names {
		writers.Go(func() {
			for range versions {
				write(t, letters, fmt.Sprint("a", i))
			}
		})
	}
	writers.Wait()
	to := new(topic)
	start(t, client, to, relayConfig)
	eventually(t, "the backlog is published", func() bool { return len(strings.Fields(to.letters())) >= names*versions })
	perEvent := float64(counted.n.Load()) / (names * versions)
	t.Logf("%.2f reads for each of %d events", perEvent, names*versions)
	if perEvent > 1.2 {
		t.Errorf("%.2f reads for each event, want at most 1.2", perEvent)
	}
}

// Nothing is lost, and the first deliveries of each letter are in order, while relays are killed, frozen beyond their
// leases, and cut off.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	client, _ := newClient(t, "storm", emulator)
	server, err := localbroker.Start()
	must(t, err)
	t.Cleanup(func() { server.Close() })
	broker, err := server.Client(t.Context(), "storm")
	must(t, err)
	t.Cleanup(func() { broker.Close() })
	_, err = broker.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/storm/topics/letter.events"})
	must(t, err)
	const names, versions, kills = 100, 20, 30
	var writers sync.WaitGroup
	for i := range names {
		writers.Go(func() {
			letters := NewLetters(client, func() {})
			for n := 0; n < versions && t.Context().Err() == nil; time.Sleep(time.Duration(rand.IntN(2000)) * time.Millisecond) {
				if letters.Write(t.Context(), fmt.Sprint("a", i), "Dear reader,") == nil { // the emulator refuses some under load
					n++
				}
			}
		})
	}
	count := func() (n, again int) { // the first deliveries, which must be in order, and the others
		first := make(map[string]int)
		for _, m := range server.Published() {
			name := m.Attributes[envelope.AttrAggregateID]
			v, err := strconv.Atoi(m.Attributes[envelope.AttrVersion])
			must(t, err)
			switch {
			case v <= first[name]:
				again++
			case v != first[name]+1:
				t.Fatalf("%s: version %d came after %d", name, v, first[name])
			default:
				first[name], n = v, n+1
			}
		}
		return n, again
	}
	through := newProxy(t)
	relays := []*exec.Cmd{nil, nil}
	replace := func(i int) {
		if relays[i] != nil {
			_ = relays[i].Process.Kill()
			_ = relays[i].Wait()
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), isRelay+"=storm", "FIRESTORE_EMULATOR_HOST="+through.addr, "PUBSUB_EMULATOR_HOST="+server.Addr())
		cmd.Stderr = t.Output()
		must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		relays[i] = cmd
	}
	freeze := func(i int) (n, again int) {
		_ = relays[i].Process.Signal(syscall.SIGSTOP)
		time.Sleep(time.Second) // its requests still reach the broker
		return count()
	}
	// The first relay is frozen in mid-pass: it waits for responses, which are lost. The second one publishes the same events
	// after the lease. Then the first one continues, alone.
	restore := server.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.Unavailable, ResponseLost: true})
	replace(0)
	eventually(t, "a relay publishes", func() bool { n, _ := count(); return n > 0 })
	_, before := freeze(0)
	restore()
	replace(1)
	eventually(t, "the second relay takes the lease", func() bool { _, again := count(); return again > before })
	published, _ := freeze(1)
	_ = relays[0].Process.Signal(syscall.SIGCONT)
	eventually(t, "the first relay goes on", func() bool { n, _ := count(); return n > published })
	_ = relays[1].Process.Signal(syscall.SIGCONT)
	for n := range kills {
		time.Sleep(time.Duration(200+rand.IntN(800)) * time.Millisecond)
		if n%10 == 8 {
			through.cut() // the listeners are cut off
		}
		replace(n % 2)
	}
	writers.Wait()
	want := 0
	all, err := list[Letter](client.Collection("letters").Documents(t.Context()))
	for _, l := range all {
		want += int(l.Version)
	}
	if err != nil || want < names*versions {
		t.Fatalf("%d versions are written, %v, want %d", want, err, names*versions)
	}
	eventually(t, "all events are published", func() bool { n, _ := count(); return n == want })
	_, again := count()
	t.Logf("%d events in order, %d came again", want, again)
}
