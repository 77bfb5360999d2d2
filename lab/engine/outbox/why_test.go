package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// The tests of this file show why there is an outbox. Each first lets a service write to its
// database and to its broker, one after the other, and shows what goes wrong. Then it shows
// the same with the outbox. lab/why-outbox.md explains them.

// writer is a process that writes letters.
type writer struct {
	pool  *pgxpool.Pool
	topic *pubsub.Publisher
}

// writeThenPublish commits a letter, then calls midway, and then publishes the event.
func (w writer) writeThenPublish(ctx context.Context, e envelope.Message, midway func()) error {
	if err := writeLetter(ctx, w.pool, e); err != nil {
		return err
	}
	midway()
	return w.publish(ctx, e)
}

// publishThenCommit publishes the event in the transaction that writes the letter.
func (w writer) publishThenCommit(ctx context.Context, e envelope.Message) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := writeLetter(ctx, tx, e); err != nil {
			return err
		}
		return w.publish(ctx, e)
	})
}

// writeBoth writes a letter and its event in one transaction: this is the outbox. It calls
// midway when both are written and not committed.
func (w writer) writeBoth(ctx context.Context, e envelope.Message, midway func()) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := writeLetter(ctx, tx, e); err != nil {
			return err
		}
		if err := storetest.TryAppend(ctx, tx, e); err != nil {
			return err
		}
		midway()
		return nil
	})
}

// writeInTwoPhases is the side of the database in a two-phase commit. It calls midway when the
// transaction is prepared, where a broker would prepare, too.
func (w writer) writeInTwoPhases(ctx context.Context, e envelope.Message, midway func()) error {
	return w.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		if err := writeLetter(ctx, conn, e); err != nil {
			return err
		}
		if err := storetest.TryAppend(ctx, conn, e); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "PREPARE TRANSACTION 'letter'"); err != nil {
			return err
		}
		midway()
		_, err := conn.Exec(ctx, "COMMIT PREPARED 'letter'")
		return err
	})
}

// writeLetter makes or changes the letter of an event, whose payload is the subject.
func writeLetter(ctx context.Context, to storetest.DB, e envelope.Message) error {
	_, err := to.Exec(ctx, `INSERT INTO letters (id, subject) VALUES ($1, $2)
		ON CONFLICT (id) DO UPDATE SET subject = excluded.subject`, e.AggregateID, string(e.Payload))
	return err
}

// publish publishes an event and waits for the response of the broker.
func (w writer) publish(ctx context.Context, e envelope.Message) error {
	_, err := w.topic.Publish(ctx, &pubsub.Message{Data: e.Payload, Attributes: e.Attributes()}).Get(ctx)
	return err
}

// A process that dies between its commit and its publish loses the event: nothing says that one
// is missing. With the outbox the event is in the database, and the next process publishes it.
func TestCrashAfterCommitBeforePublish(t *testing.T) {
	t.Parallel()
	t.Run("dual write", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.kill("before publish", hello())
		if letters, messages := s.letters(), len(s.server.Published()); letters != 1 || messages != 0 {
			t.Errorf("after the crash there are %d letters and %d messages, want 1 and none: the event is lost", letters, messages)
		}
		if err := s.writeThenPublish(t.Context(), newLetter(uuid.New(), "how are you?"), nothing); err != nil {
			t.Fatal(err)
		}
		if letters, messages := s.letters(), len(s.server.Published()); letters != 2 || messages != 1 {
			t.Errorf("after another letter, without a crash, there are %d letters and %d messages, want 2 and 1", letters, messages)
		}
	})
	t.Run("outbox", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.kill("after commit", hello())
		if letters, messages := s.letters(), len(s.server.Published()); letters != 1 || messages != 0 {
			t.Errorf("after the crash there are %d letters and %d messages, want 1 and none yet", letters, messages)
		}
		if published, messages := s.drain(), stored(s.server); published != 1 || !slices.Equal(messages, []string{"hello"}) {
			t.Errorf("the next process published %d events, and the topic has %q, want the event of the letter", published, messages)
		}
	})
}

// A process that publishes before its commit has told everybody about a letter, also if the
// commit is refused. In the outbox the event is rolled back with the letter.
func TestPublishThenRollback(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name   string
		write  func(*scene, context.Context, envelope.Message) error
		ghosts int // events of letters that do not exist
	}{
		{"dual write", func(s *scene, ctx context.Context, e envelope.Message) error { return s.publishThenCommit(ctx, e) }, 1},
		{"outbox", func(s *scene, ctx context.Context, e envelope.Message) error { return s.writeBoth(ctx, e, nothing) }, 0},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			if err := way.write(s, t.Context(), hello()); err != nil {
				t.Fatal(err)
			}
			// No two letters have one subject. PostgreSQL checks that at the commit.
			err := way.write(s, t.Context(), hello())
			if refusal, ok := errors.AsType[*pgconn.PgError](err); !ok || refusal.Code != "23505" { // unique_violation
				t.Fatalf("a second letter with the same subject: %v, want that PostgreSQL refuses the commit", err)
			}
			s.drain() // a dual write has left nothing there
			messages, ghosts := s.server.Published(), 0
			for _, m := range messages {
				ghosts += 1 - count(t, s.pool, "SELECT count(*) FROM letters WHERE id = $1", m.Attributes[envelope.AttrAggregateID])
			}
			if letters := s.letters(); letters != 1 || ghosts != way.ghosts || len(messages) != 1+way.ghosts {
				t.Errorf("there are %d letters, and %d messages, %d of them of no letter; want 1 letter and %d of no letter", letters, len(messages), ghosts, way.ghosts)
			}
		})
	}
}

// If the response to a publish is lost, the client publishes again, and the topic has the event
// twice. The outbox does not prevent that. The inbox has the event the second time.
func TestLostResponsePublishesTwice(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name     string
		write    func(*scene, context.Context, envelope.Message) error
		consumer func(*scene, context.Context) error
		want     int // letters that the consumer counts
	}{
		{"dual write", func(s *scene, ctx context.Context, e envelope.Message) error {
			return s.writeThenPublish(ctx, e, nothing)
		}, (*scene).countMessages, 2},
		{"outbox and inbox", func(s *scene, ctx context.Context, e envelope.Message) error { return s.writeBoth(ctx, e, nothing) }, (*scene).countEvents, 1},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.server.Inject(pubsublocal.Fault{Method: "Publish", Times: 1, Code: codes.Unavailable, ResponseLost: true})
			if err := way.write(s, t.Context(), hello()); err != nil {
				t.Fatal(err)
			}
			s.drain()
			messages := s.server.Published()
			if len(messages) != 2 {
				t.Fatalf("the topic has %d messages, want 2: the response to the first was lost", len(messages))
			}
			first, second := messages[0], messages[1]
			if first.ID == second.ID || first.Attributes[envelope.AttrEventID] != second.Attributes[envelope.AttrEventID] {
				t.Errorf("the messages are %+v and %+v, want two ids of messages, and one id of an event", first, second)
			}
			if got := s.receive(func(ctx context.Context) error { return way.consumer(s, ctx) }); got != way.want {
				t.Errorf("the consumer counted %d letters, want %d", got, way.want)
			}
		})
	}
}

// A process that dies between the phases of a two-phase commit leaves a transaction that holds
// its locks until somebody decides. One that dies before the commit of an ordinary transaction,
// as with the outbox, leaves nothing.
func TestTwoPhaseCommitLeavesLocks(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	e := hello()
	if err := s.writeBoth(t.Context(), e, nothing); err != nil {
		t.Fatal(err)
	}
	s.drain()
	e.Payload = []byte("changed")
	const prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"

	s.kill("between the phases", e)
	if n, locked := count(t, s.pool, prepared), s.locked(e); n != 1 || !locked {
		t.Errorf("after the crash there are %d prepared transactions, and that the letter is locked is %t; want 1 and true", n, locked)
	}
	if _, err := s.pool.Exec(t.Context(), "ROLLBACK PREPARED 'letter'"); err != nil {
		t.Fatal(err)
	}
	if s.locked(e) {
		t.Error("the letter is locked after somebody has decided")
	}

	s.kill("before commit", e)
	eventually(t, "PostgreSQL has noticed the end of the process", func() bool { return !s.locked(e) })
	var subject string
	if err := s.pool.QueryRow(t.Context(), "SELECT subject FROM letters").Scan(&subject); err != nil {
		t.Fatal(err)
	}
	if published := s.drain(); subject != "hello" || published != 0 {
		t.Errorf("after a crash before the commit the subject is %q, and %d events are pending; want hello and none", subject, published)
	}
}

// The page for teachers names every test and benchmark of these files, and no other.
func TestWhyPageNamesItsTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../why-outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	names := func(text []byte, pattern string) (found []string) {
		for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, string(match[1]))
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	var code []byte
	for _, file := range []string{"why_test.go", "why_bench_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code = append(code, text...)
	}
	want := slices.DeleteFunc(names(code, `(?m)^func ((?:Test|Benchmark)\w+)\(`), func(name string) bool { return name == t.Name() })
	if got := names(page, `\b((?:Test|Benchmark)[A-Z]\w+)`); !slices.Equal(got, want) {
		t.Errorf("lab/why-outbox.md names %q, want %q", got, want)
	}
}

// nothing is a midway where nothing happens.
func nothing() {}

// moments are where a writer can die.
var moments = map[string]func(context.Context, writer, envelope.Message) error{
	"before publish": func(ctx context.Context, w writer, e envelope.Message) error { return w.writeThenPublish(ctx, e, die) },
	"before commit":  func(ctx context.Context, w writer, e envelope.Message) error { return w.writeBoth(ctx, e, die) },
	"after commit": func(ctx context.Context, w writer, e envelope.Message) error {
		if err := w.writeBoth(ctx, e, nothing); err != nil {
			return err
		}
		die()
		return nil
	},
	"between the phases": func(ctx context.Context, w writer, e envelope.Message) error { return w.writeInTwoPhases(ctx, e, die) },
}

// die ends this process by SIGKILL: nothing that is deferred runs.
func die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // the signal comes at any time
}

// The environment variables of a process that dies: the moment, the database, and the id and the
// subject of its letter.
const (
	dieVariable      = "OUTBOX_TEST_DIE"
	databaseVariable = "OUTBOX_TEST_DATABASE"
	letterVariable   = "OUTBOX_TEST_LETTER"
	subjectVariable  = "OUTBOX_TEST_SUBJECT"
)

// dieAt writes a letter in this process, and dies at a moment. If that fails, it panics.
func dieAt(moment string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := db.Open(ctx, os.Getenv(databaseVariable), 1, nil)
	if err != nil {
		panic(err)
	}
	client, err := pubsub.NewClient(ctx, "test-project") // PUBSUB_EMULATOR_HOST says where
	if err != nil {
		panic(err)
	}
	w := writer{pool: pool, topic: client.Publisher(localtopics.Topic)}
	e := newLetter(uuid.MustParse(os.Getenv(letterVariable)), os.Getenv(subjectVariable))
	panic(fmt.Errorf("%s: %w", moment, moments[moment](ctx, w, e)))
}

// scene is a writer with a database, and a broker with one subscription.
type scene struct {
	writer
	t      *testing.T
	url    string
	client *pubsub.Client
	server *localbroker.Server
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, url: storetest.URL(t)}
	var err error
	if s.pool, err = db.Open(t.Context(), s.url, 4, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	if _, err := s.pool.Exec(t.Context(), `
		CREATE TABLE letters (id text PRIMARY KEY, subject text NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE received (letters int NOT NULL);
		INSERT INTO received VALUES (0)`); err != nil {
		t.Fatal(err)
	}
	s.client, s.server = newClient(t)
	s.topic = s.client.Publisher(localtopics.Topic)
	t.Cleanup(s.topic.Stop)
	return s
}

// newLetter is the event of a letter with a subject.
func newLetter(id uuid.UUID, subject string) envelope.Message {
	e := newEvent(id)
	e.Payload = []byte(subject)
	return e
}

// hello is the event of a new letter.
func hello() envelope.Message { return newLetter(uuid.Must(uuid.NewV7()), "hello") }

// kill writes a letter in another process, which is killed at a moment.
func (s *scene) kill(moment string, e envelope.Message) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), dieVariable+"="+moment, databaseVariable+"="+s.url, "PUBSUB_EMULATOR_HOST="+s.server.Addr(),
		letterVariable+"="+e.AggregateID, subjectVariable+"="+string(e.Payload))
	if out, err := cmd.CombinedOutput(); err == nil || err.Error() != "signal: killed" {
		s.t.Fatalf("the process ended with %v, want that it is killed %s:\n%s", err, moment, out)
	}
}

// letters returns how many letters the database has.
func (s *scene) letters() int {
	s.t.Helper()
	return count(s.t, s.pool, "SELECT count(*) FROM letters")
}

// locked reports whether a transaction holds the lock of a letter.
func (s *scene) locked(e envelope.Message) bool {
	s.t.Helper()
	_, err := s.pool.Exec(s.t.Context(), "SELECT FROM letters WHERE id = $1 FOR UPDATE NOWAIT", e.AggregateID)
	refusal, refused := errors.AsType[*pgconn.PgError](err)
	if err != nil && (!refused || refusal.Code != "55P03") { // lock_not_available
		s.t.Fatal(err)
	}
	return refused
}

// drain runs a publisher until the outbox is empty, as the next process would, and returns how
// many events it published.
func (s *scene) drain() int {
	s.t.Helper()
	topic := outbox.NewTopic(s.client.Publisher(localtopics.Topic), requestTimeout, 100)
	defer topic.Stop()
	published, err := mustNew(s.t, store.NewOutbox(s.pool), topic, outbox.Config{}).Drain(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return published
}

// receive runs a consumer until it has acknowledged every message, and returns how many letters
// it has counted.
func (s *scene) receive(run func(context.Context) error) int {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx); err != nil {
			s.t.Errorf("receive: %v", err)
		}
	})
	eventually(s.t, "every message is acknowledged", func() bool {
		return !slices.ContainsFunc(s.server.Published(), func(m localbroker.Message) bool { return m.Acks == 0 })
	})
	stop()
	running.Wait()
	return count(s.t, s.pool, "SELECT letters FROM received")
}

// countMessages is a consumer that counts a letter for each message.
func (s *scene) countMessages(ctx context.Context) error {
	return s.client.Subscriber(localtopics.Subscription).Receive(ctx, func(ctx context.Context, m *pubsub.Message) {
		if err := countLetter(ctx, s.pool); err != nil {
			s.t.Errorf("count: %v", err)
		}
		m.Ack()
	})
}

// countEvents is a consumer that counts a letter for each event that is new in its inbox, in
// one transaction.
func (s *scene) countEvents(ctx context.Context) error {
	handler := consumer.Handle(
		func(m envelope.Message) (uuid.UUID, error) { return m.ID, nil },
		func(ctx context.Context, name string, ids []uuid.UUID) ([]envelope.Outcome, error) {
			outcomes := make([]envelope.Outcome, len(ids))
			err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
				for i, id := range ids {
					isNew, err := storetest.Receive(ctx, tx, name, id)
					if err != nil {
						return err
					}
					if !isNew {
						outcomes[i] = envelope.Duplicate
						continue
					}
					outcomes[i] = envelope.Applied
					if err := countLetter(ctx, tx); err != nil {
						return err
					}
				}
				return nil
			})
			return outcomes, err
		})
	projector, err := consumer.New(consumer.Config{}, consumer.Subscription{
		Source: consumer.PubSub(s.client.Subscriber(localtopics.Subscription)), Consumer: "counter", Handlers: consumer.Handlers{"letter": handler},
	}, store.NewInbox(s.pool), discard, nil)
	if err != nil {
		return err
	}
	return projector.Run(ctx)
}

func countLetter(ctx context.Context, to storetest.DB) error {
	_, err := to.Exec(ctx, "UPDATE received SET letters = letters + 1")
	return err
}
