package kafka

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/auth"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// service is a service that publishes to the topics of this repository, and reads letters.
type service struct {
	*testing.T

	pool    *pgxpool.Pool
	brokers string
	more    []string // settings
	newest  int32    // the newest schema version that it can decode
	log     lines
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.text.Bytes(), []byte(text))
}

func newService(t *testing.T, c *cluster) *service {
	t.Helper()
	s := &service{T: t, pool: pgtest.Pool(t, 8), brokers: strings.Join(c.ListenAddrs(), ","), newest: 1}
	pgtest.Execute(t, s.pool, effects)
	return s
}

// apply applies letters, each event once: it has one effect that is new, in the transaction of the inbox.
func apply(pool *pgxpool.Pool) func(context.Context, string, []envelope.Message) ([]envelope.Outcome, error) {
	return func(ctx context.Context, name string, events []envelope.Message) (outcomes []envelope.Outcome, err error) {
		return outcomes, pg.Wrap(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			for _, m := range events {
				recorded, err := tx.Exec(ctx, "INSERT INTO video_catalog_read.inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING", name, m.ID)
				if err != nil {
					return err
				}
				outcome, isNew := envelope.Duplicate, recorded.RowsAffected() == 1
				if isNew {
					outcome = envelope.Applied
				}
				outcomes = append(outcomes, outcome)
				if _, err := tx.Exec(ctx, "INSERT INTO effects (letter, version, new) VALUES ($1, $2, $3)", m.AggregateID, m.Version, isNew); err != nil {
					return err
				}
			}
			return nil
		}), "apply")
	}
}

// effects is the table of apply.
const effects = "CREATE TABLE effects (seq bigserial, letter text, version bigint, new boolean)"

// run runs a command, and returns its output.
func (s *service) run(ctx context.Context, args ...string) (string, error) {
	handler := func(b app.Backend) consumer.Handlers {
		return consumer.Handlers{"letter": consumer.Handle(func(m envelope.Message) (envelope.Message, error) {
			if m.SchemaVersion > s.newest {
				return m, envelope.Undecodable("schema version %d is newer", m.SchemaVersion)
			}
			return m, nil
		}, apply(b.QueryPool))}
	}
	program := app.Program{Options: []app.Option{Option()}, Registrations: []app.Registration{{
		AggregateType: "letter", Subscriptions: []app.Subscription{{ID: group, Consumer: "reader", Handlers: handler}},
	}}}
	var out bytes.Buffer
	environ := []string{"PORT=0", "AUTH=off", "DATABASE_URL=" + s.pool.Config().ConnString(), "BROKER=kafka", "KAFKA_BROKERS=" + s.brokers, "ROLES=publisher,projector"}
	err := program.Run(ctx, args, append(environ, s.more...), &out, &s.log)
	return out.String(), err
}

// serve serves until stop is called.
func (s *service) serve() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.run(ctx, "serve")
		ended <- err
	}()
	return func() {
		eventually(s, "the server runs", func() bool { return s.log.has("server: started") || len(ended) > 0 })
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("serve = %v", err)
		}
	}
}

func (s *service) must(args ...string) string {
	s.Helper()
	out, err := s.run(s.Context(), args...)
	if err != nil {
		s.Fatalf("server %s = %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Every mistake in the settings is named, and no password.
func TestSettings(t *testing.T) {
	t.Parallel()
	s := &service{T: t, pool: pgtest.Pool(t, 1)}
	for _, test := range []struct{ settings, want string }{
		{"KAFKA_BROKERS=", "KAFKA_BROKERS is required"},
		{"KAFKA_BROKERS=one:9092,two:http", `KAFKA_BROKERS has "two:http"`},
		{"KAFKA_BROKERS=one:1 KAFKA_SASL=digest", "KAFKA_SASL must be none, plain, scram-sha-512 or google"},
		{"KAFKA_BROKERS=one:1 KAFKA_SASL=plain KAFKA_USER=u KAFKA_PASSWORD=geheim", "KAFKA_TLS must be true"},
		{"KAFKA_BROKERS=one:1 KAFKA_SASL=scram-sha-512", "KAFKA_USER is required by each KAFKA_SASL but none, and has no effect with that\nKAFKA_PASSWORD is required by"},
		{"KAFKA_BROKERS=one:1 KAFKA_USER=u KAFKA_PASSWORD=geheim", "and has no effect with that\nKAFKA_PASSWORD has no effect"},
		{"KAFKA_BROKERS=one:1 KAFKA_SASL=google KAFKA_TLS=true", "KAFKA_USER is required by each"},
	} {
		s.more = strings.Fields(test.settings)
		for _, command := range [][]string{{"serve"}, {"drain"}, {"kafka", "provision"}} {
			if _, err := s.run(t.Context(), command...); app.ExitCode(err) != app.ExitUsage || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "geheim") {
				t.Errorf("server %s with %s = %v, want %q", command, test.settings, err, test.want)
			}
		}
	}
	s.more = []string{"BROKER=pubsub"}
	for _, args := range [][]string{{"kafka", "seek"}, {"kafka"}, {"kafka", "provision", "--partitions", "0"}} {
		if _, err := s.run(t.Context(), args...); app.ExitCode(err) != app.ExitUsage {
			t.Errorf("server %q = %v, want a mistake", args, err)
		}
		s.more = []string{"KAFKA_BROKERS=one:1"}
	}
}

// A start names what the cluster says is wrong. A cluster that does not respond stops no start. Provisioning creates
// the topics that are missing, and changes none.
func TestStartAndProvision(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	s, own := newService(t, c), ownTopics()
	if _, err := s.run(t.Context(), "serve"); app.ExitCode(err) != app.ExitUsage || !strings.Contains(err.Error(), own[0]+" does not exist: run `server kafka provision`") {
		t.Errorf("serve without the topic = %v, want what to do", err)
	}
	if out := s.must("kafka", "provision", "--dry-run"); c.TopicInfo(own[0]) != nil || !strings.Contains(out, "missing: would be created") {
		t.Errorf("a dry run has created the topic, or does not say that it would: %s", out)
	}
	for _, want := range []string{"created", "not changed"} {
		if out := s.must("kafka", "provision", "--partitions", map[string]string{"created": "4", "not changed": "5"}[want]); !strings.Contains(out, "4 partitions") || !strings.Contains(out, want) {
			t.Errorf("provision = %q, want 4 partitions, %s", out, want)
		}
	}
	s.must("drain")
	c.alter(t, own[0], 1000)
	if _, err := s.run(t.Context(), "serve"); app.ExitCode(err) != app.ExitUsage || !strings.Contains(err.Error(), "takes messages of 1000 bytes") {
		t.Errorf("serve with a small limit = %v, want the limits", err)
	}
	c.Close()
	s.serve()()
	if !s.log.has("the cluster does not respond") {
		t.Error("the log has no word about the cluster")
	}
}

// A wrong password, and a certificate that nobody knows, are refused. The password is in no error.
func TestWhoWeAre(t *testing.T) {
	t.Parallel()
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS()
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	for _, method := range []string{saslPlain, saslSCRAM} {
		secret := kfake.Superuser(strings.ToUpper(method), "letters", "geheim")
		c := newCluster(t, 1, kfake.EnableSASL(), secret, kfake.TLS(&tls.Config{Certificates: web.TLS.Certificates}))
		settings := Settings{Brokers: c.ListenAddrs(), TLS: true, SASL: method, User: "letters", Password: "geheim"}
		trusted := kgo.DialTLSConfig(&tls.Config{RootCAs: roots, ServerName: "example.com"})
		options, err := settings.Options(slog.New(slog.DiscardHandler))
		must(t, err)
		sink := NewSink(append(slices.Clone(options), trusted), topic, limit)
		defer sink.Stop()
		must(t, pass(t, sink, letters("a1"))[0])
		if err := checkCluster(t.Context(), options, topic); err == nil || isDefinite(err) {
			t.Errorf("%s: a certificate of nobody is %v, want an error that may pass", method, err)
		}
		c.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) { // kfake cuts the connection instead
			c.KeepControl()
			refusal := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
			refusal.ErrorCode = kerr.SaslAuthenticationFailed.Code
			return refusal, nil, true
		})
		settings.Password = "falsch"
		options, _ = settings.Options(slog.New(slog.DiscardHandler))
		if err := checkCluster(t.Context(), append(options, trusted), topic); !isDefinite(err) || !strings.Contains(err.Error(), "KAFKA_PASSWORD") || strings.Contains(err.Error(), "falsch") {
			t.Errorf("%s: a wrong password is %v, want a refusal", method, err)
		}
	}
}

type tokens struct{}

func (tokens) Token(context.Context) (*auth.Token, error) {
	return &auth.Token{Value: "ya29.x", Expiry: time.Unix(2_000_000_000, 0)}, nil
}

// Google's Kafka gets a token as the last of three segments.
func TestGoogle(t *testing.T) {
	t.Parallel()
	_, first, err := google(tokens{}, "letters@p.iam.gserviceaccount.com").Authenticate(t.Context(), "broker")
	must(t, err)
	_, token, _ := strings.Cut(string(first), "auth=Bearer ")
	segments := strings.Split(strings.TrimRight(token, "\x01"), ".")
	for i, want := range []string{`{"typ":"JWT","alg":"GOOG_OAUTH2_TOKEN"}`, `"exp":2000000000`, "ya29.x"} {
		if text, err := base64.RawURLEncoding.DecodeString(segments[i]); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("segment %d is %q, %v, want %q", i, text, err, want)
		}
	}
}

// A record that cannot be applied is quarantined with its place, and holds nothing back. The commands find it, and apply
// it in a build that can.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	s := newService(t, c)
	s.must("kafka", "provision")
	newer := letter("b", 1, 1)
	newer.SchemaVersion = 2
	pass(t, c.sink(t), []envelope.Message{letter("a", 1, 1), newer})
	keyless, empty := c.sink(t).record(letter("c", 1, 1)), c.sink(t).record(letter("d", 1, 1))
	keyless.Key, empty.Value = nil, nil
	foreign := []*kgo.Record{{Topic: topic, Value: []byte("no key, no headers")}, {Topic: topic, Key: []byte("a")}, keyless, empty}
	must(t, c.client(t).ProduceSync(t.Context(), foreign...).FirstErr())
	pass(t, c.sink(t), letters("a2"))
	stop := s.serve()
	eventually(t, "a2 is applied, and five are in quarantine", func() bool {
		return pgtest.Count(t, s.pool, "SELECT count(*) FROM effects WHERE new") == 2 && pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog_read.quarantine") == 5
	})
	eventually(t, "all is committed", func() bool { return c.committed()[0] == 7 })
	stop()
	places := strings.Join(pgtest.Column[string](t, s.pool, "SELECT message_id FROM video_catalog_read.quarantine ORDER BY message_id"), " ")
	if want := fmt.Sprintf("%[1]s/0/1 %[1]s/0/2 %[1]s/0/3 %[1]s/0/4 %[1]s/0/5", topic); places != want {
		t.Errorf("places = %s, want %s", places, want)
	}
	s.newest = 2
	if out, _ := s.run(t.Context(), "retry", "--all", "--why", "a newer build"); !strings.Contains(out, "retry: 3 of 5") {
		t.Errorf("retry = %s, want b1, c1 and d1 applied", out)
	}
	s.must("skip", "--all", "--why", "not ours")
	if n := pgtest.Count(t, s.pool, "SELECT count(*) FROM effects WHERE letter IN ('b', 'c', 'd')"); n != 3 {
		t.Errorf("b1, c1 and d1 have %d effects, want 3", n)
	}
}

// A seek applies what Kafka has since a time once more. It refuses a group with members, and names them.
func TestSeek(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	s := newService(t, c)
	s.must("kafka", "provision")
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeGroups}, Group: group, Err: kerr.GroupIDNotFound}) // as Kafka 4 has it
	s.must("kafka", "seek", group, "2026-01-01T00:00:00Z", "--why", "nobody has joined")
	record := (&Sink{topic: topic}).record(letter("a", 1, 1))
	record.Timestamp = time.Now().Add(-time.Hour)
	must(t, c.client(t).ProduceSync(t.Context(), record).FirstErr())
	pass(t, c.sink(t), letters("a2 b1"))
	stop := s.serve()
	effects := func() int { return pgtest.Count(t, s.pool, "SELECT count(*) FROM effects WHERE new") }
	eventually(t, "all is applied", func() bool { return effects() == 3 })
	since := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	if out, err := s.run(t.Context(), "kafka", "seek", group, since, "--why", "x"); err == nil || !strings.Contains(err.Error(), "has members, which must be stopped first: kafka-") {
		t.Errorf("seek beside a member = %s, %v, want the member", out, err)
	}
	stop()
	if n := pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog_read.inbox"); n != 3 {
		t.Errorf("the inbox has %d events, want 3", n)
	}
	if out := s.must("kafka", "seek", group, since, "--why", "rows were lost"); !strings.Contains(out, "the inbox has forgotten 3 events") {
		t.Errorf("seek = %s, want 3 events forgotten", out)
	}
	stop = s.serve()
	eventually(t, "what is younger is applied once more", func() bool { return effects() == 5 })
	stop()
	if n := pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog_read.audit WHERE action = 'inbox.seek' AND reason = 'rows were lost' AND items = 3"); n != 1 {
		t.Errorf("the audit has %d seeks, want 1", n)
	}
	for _, args := range [][]string{{group, since}, {"another.reader", since, "--why", "x"}, {group, "yesterday", "--why", "x"}} {
		if _, err := s.run(t.Context(), append([]string{"kafka", "seek"}, args...)...); app.ExitCode(err) != app.ExitUsage {
			t.Errorf("seek %q = %v, want a mistake", args, err)
		}
	}
}
