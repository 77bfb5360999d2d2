package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
)

// pipe is a whole publisher: PostgreSQL, the client, and a Pub/Sub server.
type pipe struct {
	*storm
	server *localbroker.Server
	ids    []uuid.UUID
	claims atomic.Int64
}

// counted is a store whose claims are counted.
type counted struct {
	outbox.Store
	claims *atomic.Int64
}

func (s counted) ClaimEvents(ctx context.Context, batch int, bytes int64, lease time.Duration, of envelope.Aggregate) (outbox.Claim, error) {
	s.claims.Add(1)
	return s.Store.ClaimEvents(ctx, batch, bytes, lease, of)
}

// requestTimeout is what cmd/server gives to NewTopic.
const requestTimeout = 4 * time.Second

// newPipe makes a pipe with some letters, whose first event is published.
func newPipe(t testing.TB, letters int, cfg outbox.Config) (p *pipe, stop func()) {
	t.Helper()
	p = &pipe{storm: newStorm(t)}
	topic, server := newTopic(t, requestTimeout, 1000)
	p.server = server
	stop = p.publish(cfg, func(events outbox.Store) outbox.Store { return counted{events, &p.claims} }, topic)
	for range letters {
		p.ids = append(p.ids, uuid.Must(uuid.NewV7()))
	}
	p.changeAll()
	p.settled()
	return p, stop
}

// changeAll makes one more event of each letter.
func (p *pipe) changeAll() {
	p.t.Helper()
	for _, id := range p.ids {
		if err := p.change(id); err != nil {
			p.t.Error(err)
		}
	}
}

// stored returns the versions of a letter that the server has, in its order,
// but what came again.
func (p *pipe) stored(id uuid.UUID) (versions []string) {
	for _, m := range p.server.Published() {
		if version := m.Attributes[envelope.AttrVersion]; m.OrderingKey == id.String() && !slices.Contains(versions, version) {
			versions = append(versions, version)
		}
	}
	return versions
}

// blocked returns the blocked aggregates.
func (p *pipe) blocked() []admin.Blocked {
	p.t.Helper()
	blocked, err := listBlocked(p.t, p.pool)
	if err != nil {
		p.t.Fatal(err)
	}
	return blocked
}

// outage is a broker that is unavailable for a while, over the wall clock.
type outage struct {
	*pipe
	stop func()
	want []string      // the versions of each letter
	back time.Duration // from its return until the first message after it
	all  time.Duration // until everything is published
	done chan struct{}
}

// startOutage begins an outage that goes on beside other tests.
func startOutage(t testing.TB, lasts time.Duration, begin func(*localbroker.Server) (end func())) *outage {
	t.Helper()
	p, stop := newPipe(t, 10, outbox.Config{Workers: 4})
	o := &outage{pipe: p, stop: stop, want: []string{"1"}, done: make(chan struct{})}
	end := begin(p.server)
	start, before := time.Now(), len(p.server.Published())
	go func() {
		defer close(o.done)
		for i := 2; time.Since(start) < lasts; i++ {
			o.changeAll()
			o.want = append(o.want, fmt.Sprint(i))
			time.Sleep(min(lasts/4, time.Until(start.Add(lasts))))
		}
		if n := len(p.server.Published()); n != before {
			t.Errorf("%d messages were stored during the outage", n-before)
		}
		end()
		back := time.Now()
		o.waitFor("the first message after the outage", func() bool { return len(p.server.Published()) > before })
		o.back = time.Since(back)
		o.waitFor("everything is published", func() bool { return len(p.server.Published()) >= before+len(p.ids)*(len(o.want)-1) })
		o.all = time.Since(back)
	}()
	return o
}

// waitFor is eventually for another goroutine than the test's.
func (o *outage) waitFor(what string, is func() bool) {
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			o.t.Errorf("%s: not within 20s", what)
			return
		}
	}
}

// check waits for the end of the outage and holds that nobody was harmed.
func (o *outage) check(t *testing.T) {
	t.Helper()
	<-o.done
	o.settled()
	o.stop()
	if blocked := o.blocked(); len(blocked) > 0 {
		t.Errorf("blocked after an outage: %+v, want nothing", blocked)
	}
	checkInvariants(t, o.pool)
	for _, id := range o.ids {
		if diff := cmp.Diff(o.want, o.stored(id)); diff != "" {
			t.Errorf("versions of %s as they were first stored (-want +got):\n%s", id, diff)
		}
	}
	t.Logf("first message after %s, everything after %s", o.back.Round(time.Millisecond), o.all.Round(time.Millisecond))
	if o.back > 4*time.Second {
		t.Errorf("the first message came %s after the outage, want at most 4s", o.back)
	}
}

// Five seconds and a minute without Pub/Sub cost no attempt and park
// nothing, whether it returns Unavailable or is not there at all; everything
// is published soon after it is back.
func TestOutageOfPubSub(t *testing.T) {
	short := startOutage(t, 5*time.Second, func(server *localbroker.Server) (end func()) {
		return server.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.Unavailable})
	})
	long := startOutage(t, time.Minute, func(server *localbroker.Server) (end func()) {
		server.SetDown(true)
		return func() { server.SetDown(false) }
	})
	t.Parallel() // only now: the clock runs while other tests do
	short.check(t)
	long.check(t)
}

// A topic that does not exist, or may not be published to, is an outage: it
// harms nobody, and is tried about once per ProbeInterval.
func TestTopicThatRefusesEverythingIsAnOutage(t *testing.T) {
	t.Parallel()
	t.Run("NotFound", func(t *testing.T) {
		t.Parallel()
		client, server := newClient(t)
		const name = "projects/test-project/topics/made.later"
		topic := outbox.NewTopic(client.Publisher(name), requestTimeout, 100)
		defer topic.Stop()
		s := newStorm(t)
		if err := s.change(uuid.Must(uuid.NewV7())); err != nil {
			t.Fatal(err)
		}
		stop := s.publish(outbox.Config{Workers: 2}, nil, topic)
		time.Sleep(2 * time.Second)
		if blocked, err := listBlocked(t, s.pool); len(blocked) > 0 || err != nil {
			t.Errorf("blocked: %+v, %v, want nothing", blocked, err)
		}
		if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name}); err != nil {
			t.Fatal(err)
		}
		s.settled()
		stop()
		if n := len(server.Published()); n != 1 {
			t.Errorf("%d messages were stored, want 1", n)
		}
	})
	t.Run("PermissionDenied", func(t *testing.T) {
		t.Parallel()
		p, stop := newPipe(t, 5, outbox.Config{Workers: 4, MaxAttempts: 1, ProbeInterval: 500 * time.Millisecond})
		remove := p.server.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.PermissionDenied})
		p.changeAll()
		p.changeAll()
		claims := p.claims.Load()
		time.Sleep(3 * time.Second)
		// A pause is half of ProbeInterval at least, but for the first ones.
		if n := p.claims.Load() - claims; n > 20 {
			t.Errorf("%d claims in 3s, want at most 20", n)
		}
		if blocked := p.blocked(); len(blocked) > 0 {
			t.Errorf("blocked: %+v, want nothing", blocked)
		}
		remove()
		p.settled()
		stop()
		for _, id := range p.ids {
			if diff := cmp.Diff([]string{"1", "2", "3"}, p.stored(id)); diff != "" {
				t.Errorf("versions as they were first stored (-want +got):\n%s", diff)
			}
		}
		checkInvariants(t, p.pool)
	})
}

// Messages of one key that Pub/Sub refuses block their own aggregate only; it
// is parked, and requeued goes on where it was, in order.
func TestRefusedKeyBlocksItselfOnly(t *testing.T) {
	t.Parallel()
	p, stop := newPipe(t, 20, outbox.Config{Workers: 4, MaxAttempts: 3, RetryMin: 10 * time.Millisecond, RetryMax: 20 * time.Millisecond, PollInterval: 20 * time.Millisecond})
	poisoned := p.ids[7]
	remove := p.server.Inject(pubsublocal.Fault{Method: "Publish", OrderingKey: poisoned.String(), Code: codes.InvalidArgument})
	for range 3 {
		p.changeAll()
	}
	eventually(t, "the aggregate is parked", func() bool {
		blocked := p.blocked()
		return len(blocked) == 1 && !blocked[0].ParkedAt.IsZero()
	})
	got := p.blocked()[0]
	if got.ID != poisoned.String() || got.Version != 2 || got.Attempts != 3 {
		t.Errorf("blocked: %+v, want version 2 of %s after 3 attempts", got, poisoned)
	}
	eventually(t, "all others are published", func() bool { return len(p.server.Published()) >= 20+19*3 })
	remove()
	p.changeAll()
	if _, err := admin.Requeue(t.Context(), store.NewOutbox(p.pool), operator(got)); err != nil {
		t.Fatal(err)
	}
	p.settled()
	stop()
	for _, id := range p.ids {
		if diff := cmp.Diff([]string{"1", "2", "3", "4", "5"}, p.stored(id)); diff != "" {
			t.Errorf("versions of %s as they were first stored (-want +got):\n%s", id, diff)
		}
	}
	if blocked := p.blocked(); len(blocked) > 0 {
		t.Errorf("blocked: %+v, want nothing", blocked)
	}
	checkInvariants(t, p.pool)
}
