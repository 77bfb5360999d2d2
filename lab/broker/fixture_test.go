package broker_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/lab/internal/child"
	"example.com/videocatalog/lab/kafka"
)

// driver is a broker that the list tests. A third one is one more value in drivers.
type driver struct {
	name string // its key in drivers
	// start starts a server for the time of the test, or skips the test.
	start func(t *testing.T) server
	// connect connects to a server as a process of the service does, for a topic and the subscription of that name.
	connect func(addr, name string) (client, error)
}

// client is what app.Broker has for one topic.
type client struct {
	topic  outbox.Broker
	source consumer.Source
	stop   func()
}

// server is a running broker.
type server struct {
	*child.Process // nil: it may not be frozen

	addr string
	// create makes a topic with a subscription that has its name. The limit of a batch is for brokers that have one.
	create func(ctx context.Context, name string, limit int) error
	refuse func(m *envelope.Message) // makes a message that the broker refuses if the limit is 100 kB
	// other reads a message by a client that is not ours, as a member of a group: key, attributes, payload. It may be nil.
	other func(ctx context.Context, topic string) (string, error)
	// forget makes the broker notice at once that a receiver has died, if that takes more than seconds.
	forget func() error
}

// fixture is a topic and its subscription for one sentence.
type fixture struct {
	*testing.T
	server
	driver
	client

	id string // of the topic
}

func TestMain(m *testing.M) {
	if !child.Main(os.Stderr, roles) {
		m.Run()
	}
}

// Each broker does what each sentence says.
func TestBroker(t *testing.T) {
	for name, d := range drivers {
		d.name = name
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := d.start(t)
			for i, sentence := range sentences {
				t.Run(sentence.says, func(t *testing.T) {
					if !sentence.alone {
						t.Parallel()
					}
					f := &fixture{T: t, server: s, driver: d, id: fmt.Sprintf("letters-%d-%s", i, uuid.NewString()[:8])}
					f.must(s.create(t.Context(), f.id, kafka.MaxBatch))
					f.client = f.dial(f.id)
					sentence.test(f)
				})
			}
		})
	}
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) equal(what string, want, got any) {
	f.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		f.Errorf("%s (-want +got):\n%.2000s", what, diff)
	}
}

// dial connects as one more process.
func (f *fixture) dial(id string) client {
	f.Helper()
	c, err := f.connect(f.addr, id)
	f.must(err)
	c.stop = sync.OnceFunc(c.stop)
	f.Cleanup(c.stop)
	return c
}

// freeze stops the process of the broker until thaw.
func (f *fixture) freeze() (thaw func()) {
	if f.Process == nil {
		f.Skip("this broker may not be frozen")
	}
	f.must(f.Freeze())
	thaw = func() { _ = f.Signal(syscall.SIGCONT) }
	f.Cleanup(thaw)
	return thaw
}

// within returns a context that ends after a time.
func (f *fixture) within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(f.Context(), limit)
	f.Cleanup(cancel)
	return ctx
}

// series returns the names of the first n messages of some keys.
func series(n int, ids ...string) (names []string) {
	for i := range n {
		for _, id := range ids {
			names = append(names, id+strconv.Itoa(i+1))
		}
	}
	return names
}

// messages returns the messages with names: a12 is version 12 of the aggregate a.
func messages(names ...string) (all []envelope.Message) {
	for _, name := range names {
		id := strings.TrimRight(name, "0123456789")
		version, _ := strconv.ParseInt(name[len(id):], 10, 64)
		all = append(all, envelope.Message{
			ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id, Type: "LetterChanged", Version: version, SchemaVersion: 1,
			Payload: []byte(name), OccurredAt: time.Now().UTC(),
		})
	}
	return all
}

// hand hands messages over, as a pass does.
func (f *fixture) hand(all []envelope.Message) (receipts []outbox.Receipt) {
	for _, m := range all {
		receipts = append(receipts, f.topic.Publish(m))
	}
	return receipts
}

// collect waits for the responses to messages. Of each key the first are acknowledged, and none after a failure.
func (f *fixture) collect(limit time.Duration, all []envelope.Message, receipts []outbox.Receipt) (errs []error) {
	ctx, failed := f.within(limit), map[string]error{}
	for i, r := range receipts {
		err, id := r.Wait(ctx), all[i].AggregateID
		if err == nil && failed[id] != nil {
			f.Errorf("%s%d was sent, and before it of its key: %v", id, all[i].Version, failed[id])
		}
		failed[id] = cmp.Or(failed[id], err)
		errs = append(errs, err)
	}
	return errs
}

// pass hands messages over and waits for the responses.
func (f *fixture) pass(limit time.Duration, all []envelope.Message) []error {
	return f.collect(limit, all, f.hand(all))
}

// settle makes passes, as a publisher does, until all messages are acknowledged. It leaves out the keys whose first message
// was refused alone, and returns them.
func (f *fixture) settle(all []envelope.Message) (refused map[string]bool) {
	f.Helper()
	all = slices.Clone(all)
	suspects, end := map[string]bool{}, time.Now().Add(time.Minute) // a suspect was refused, and goes alone
	for {
		keys, failed, acknowledged := map[string]bool{}, map[string]error{}, map[uuid.UUID]bool{}
		pass := slices.DeleteFunc(slices.Clone(all), func(m envelope.Message) bool {
			behind := keys[m.AggregateID]
			keys[m.AggregateID] = true
			return behind && suspects[m.AggregateID]
		})
		for i, err := range f.pass(publishTimeout, pass) {
			acknowledged[pass[i].ID] = err == nil
			failed[pass[i].AggregateID] = cmp.Or(failed[pass[i].AggregateID], err)
		}
		all = slices.DeleteFunc(all, func(m envelope.Message) bool { return acknowledged[m.ID] })
		refused = map[string]bool{}
		isDone := true
		for _, m := range all {
			isRefused := isRefusal(failed[m.AggregateID])
			refused[m.AggregateID] = isRefused && suspects[m.AggregateID]
			isDone = isDone && refused[m.AggregateID]
		}
		for id := range refused {
			suspects[id] = isRefusal(failed[id])
		}
		if isDone {
			return refused
		} else if time.Now().After(end) {
			f.Fatalf("the broker does not take all messages: %v", failed)
		}
	}
}

// publish publishes the messages with names.
func (f *fixture) publish(names ...string) {
	f.Helper()
	f.equal("refused", map[string]bool{}, f.settle(messages(names...)))
}

func isRefusal(err error) bool {
	_, ok := errors.AsType[*outbox.RefusedError](err)
	return ok
}

// unknown checks errors of messages that the broker may or may not have.
func (f *fixture) unknown(errs ...error) {
	f.Helper()
	for _, err := range errs {
		if err == nil || isRefusal(err) {
			f.Errorf("Wait() = %v, want an error that is no refusal", err)
		}
	}
}

// receive receives from a new connection, until handle is done.
func (f *fixture) receive(handle func(context.Context, consumer.Message) (ack, done bool)) {
	f.Helper()
	limit := f.within(time.Minute)
	ctx, end := context.WithCancel(limit)
	defer end()
	err := f.dial(f.id).source.Receive(ctx, func(ctx context.Context, m consumer.Message) bool {
		ack, done := handle(ctx, m)
		if done {
			end()
		}
		return ack
	})
	if limit.Err() != nil || ctx.Err() == nil {
		f.Fatalf("Receive() = %v, before all messages came", err)
	}
}

// each is receive with one call of handle at a time.
func (f *fixture) each(handle func(name string, m consumer.Message) (ack, done bool)) {
	f.Helper()
	var mu sync.Mutex
	f.receive(func(_ context.Context, m consumer.Message) (ack, done bool) {
		mu.Lock()
		defer mu.Unlock()
		return handle(string(m.Data), m)
	})
}

// read acknowledges messages until the last ones have come, and returns the names of all by key, in the order of their arrival.
func (f *fixture) read(last ...string) map[string][]string {
	f.Helper()
	got := map[string][]string{}
	f.each(func(name string, m consumer.Message) (ack, done bool) {
		if got[m.Key] = append(got[m.Key], name); m.Defect != "" {
			f.Errorf("%s has a defect: %s", name, m.Defect)
		}
		last = slices.DeleteFunc(last, func(l string) bool { return l == name })
		return true, len(last) == 0
	})
	return got
}

// inOrder checks that the first deliveries of a key are in order, and none is missing.
func (f *fixture) inOrder(key string, names []string) {
	f.Helper()
	var first []string
	for _, name := range names {
		if !slices.Contains(first, name) {
			first = append(first, name)
		}
	}
	f.equal("first deliveries of "+key, series(len(first), key), first)
}
