package debezium

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/servicekit/localpg"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/options/wal"
)

var must = pgtest.Must

const properties = "../../options/wal/debezium/outbox.properties"

var discard = slog.New(slog.DiscardHandler)

// sent is a record, as Debezium or our publisher sends it. A header with the value null counts as none: the router cannot leave it out.
type sent struct {
	Topic   string
	Key     string
	Headers map[string]*string
	Value   []byte
}

// ofPublisher returns what our publisher sends.
func ofPublisher(m envelope.Message) sent {
	s := sent{Topic: "?", Key: m.AggregateID, Headers: make(map[string]*string), Value: m.Payload}
	for _, topic := range names.Topics() {
		if slices.Contains(topic.AggregateTypes, m.AggregateType) {
			s.Topic = topic.Name
		}
	}
	for name, value := range m.Attributes() {
		s.Headers[name] = &value
	}
	return s
}

// stack is a PostgreSQL with a database of the service, and Debezium.
type stack struct {
	*testing.T

	config    localpg.Config
	postgres  *localpg.Server
	pool      *pgxpool.Pool
	classpath string
	offsets   string // Debezium's own note of its position
	file      string // of properties

	mu       sync.Mutex
	ours     map[string]sent // appended, by the id of the event
	first    map[string][]int64
	again    int
	mistakes []string
}

// newStack skips the test, with the reason, where Java or Maven is missing.
func newStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{T: t, classpath: libraries(t), offsets: filepath.Join(t.TempDir(), "offsets"), file: properties, ours: make(map[string]sent), first: make(map[string][]int64)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	listener.Close()
	s.config = localpg.Config{Dir: t.TempDir(), Settings: map[string]string{"wal_level": "logical", "listen_addresses": "127.0.0.1", "port": port, "synchronous_commit": "on"}}
	s.start()
	t.Cleanup(func() { _ = s.postgres.Stop() })
	admin := s.open("postgres")
	pgtest.Execute(t, admin, "CREATE DATABASE service")
	_, err = db.Migrate(t.Context(), s.url("service"), discard, pgtest.Options()...)
	must(t, err)
	s.pool = s.open("service")
	// The reader has no more rights than these.
	pgtest.Execute(t, s.pool, `CREATE ROLE reader LOGIN REPLICATION; GRANT CONNECT ON DATABASE service TO reader;
		GRANT USAGE ON SCHEMA video_catalog TO reader; GRANT SELECT (id) ON video_catalog.outbox TO reader`)
	return s
}

func (s *stack) start() {
	s.Helper()
	var err error
	if s.postgres, err = localpg.Start(s.Context(), s.config); err != nil {
		s.Fatal(err)
	}
}

// url is the same after a restart, as the folder of the socket is not.
func (s *stack) url(database string) string {
	return "postgres://postgres@127.0.0.1:" + s.config.Settings["port"] + "/" + database + "?sslmode=disable"
}

func (s *stack) open(database string) *pgxpool.Pool {
	s.Helper()
	return pgtest.Open(s, s.url(database), 20)
}

// libraries returns the class path of Debezium and of Route, which it compiles.
var libraries = func() func(*testing.T) string {
	var once sync.Once
	var failure string
	return func(t *testing.T) string {
		once.Do(func() {
			for _, program := range []string{"java", "javac", "mvn"} {
				if _, err := exec.LookPath(program); err != nil {
					failure = program + " is not installed"
					return
				}
			}
			for _, command := range [][]string{
				{"mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=target/jars"},
				{"javac", "-d", "target/classes", "-cp", "target/jars/*", "Route.java"},
			} {
				if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
					failure = fmt.Sprintf("%q: %v: %.300s", command, err, out)
					return
				}
			}
		})
		if failure != "" {
			t.Skip("Debezium was not run: " + failure)
		}
		return "target/classes:target/jars/*"
	}
}()

// relay switches the service.
func (s *stack) relay(mode string) {
	s.Helper()
	var out strings.Builder
	program := app.Program{Options: []app.Option{wal.Option()}}
	err := program.Run(s.Context(), []string{"relay", mode, "--why", "test", "--by", "ann"}, []string{"DATABASE_URL=" + s.url("service")}, &out, &out)
	if err != nil {
		s.Fatalf("relay %s = %v, %s", mode, err, &out)
	}
}

// run starts Debezium. kill ends it as a crash does; wait returns what it said when it has ended.
func (s *stack) run() (kill func(), wait func() string) {
	s.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	cmd := exec.CommandContext(ctx, "java", "-Xmx256m", "-cp", s.classpath, "Route", s.file,
		"database.hostname=127.0.0.1", "database.port="+s.config.Settings["port"], "database.user=reader", "database.password=x", "database.dbname=service",
		"offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore", "offset.storage.file.filename="+s.offsets, "offset.flush.interval.ms=200",
		"errors.max.retries=0")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(s, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			s.receive(lines.Bytes())
		}
		_ = cmd.Wait() // it was killed, or what it said has the reason
	}()
	kill = func() { cancel(); <-done }
	s.Cleanup(kill)
	return kill, func() string { <-done; return said.String() }
}

// receive compares a record of Debezium with ours.
func (s *stack) receive(line []byte) {
	var record sent
	if err := json.Unmarshal(line, &record); err != nil {
		s.Errorf("%s: %v", line, err)
		return
	}
	if strings.HasPrefix(record.Topic, "__debezium-heartbeat") {
		return
	}
	maps.DeleteFunc(record.Headers, func(_ string, value *string) bool { return value == nil })
	if at := record.Headers[envelope.AttrOccurredAt]; at != nil { // the same time, but always with six digits
		*at = strings.Replace(strings.TrimRight(strings.TrimSuffix(*at, "Z"), "0")+"Z", ".Z", "Z", 1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := record.Headers[envelope.AttrEventID]
	if id == nil {
		s.mistakes = append(s.mistakes, "no header event_id")
		return
	}
	ours := s.ours[*id]
	if diff := cmp.Diff(ours, record); diff != "" {
		s.mistakes = append(s.mistakes, strings.ReplaceAll(diff, "\u00a0", " ")) // cmp uses either space, at random
	}
	s.deliver(record.Key, record.Headers[envelope.AttrVersion])
}

// deliver notes a delivery of a version. s is locked.
func (s *stack) deliver(key string, text *string) {
	var version int64
	if text != nil {
		_, _ = fmt.Sscan(*text, &version) // 0 is out of order
	}
	switch all := s.first[key]; {
	case slices.Contains(all, version):
		s.again++
	case version != int64(len(all))+1:
		s.mistakes = append(s.mistakes, fmt.Sprintf("version %d of %s after %d others", version, key, len(all)))
		fallthrough
	default:
		s.first[key] = append(all, version)
	}
}

// Publish implements outbox.Broker, for the lanes.
func (s *stack) Publish(m envelope.Message) outbox.Receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := fmt.Sprint(m.Version)
	s.deliver(m.AggregateID, &version)
	return received{}
}

type received struct{}

func (received) Wait(context.Context) error { return nil }

// append appends versions of an aggregate of the first type that the service publishes, with and without what an event may lack.
func (s *stack) append(key string, from, to int64) {
	for v := from; v <= to; v++ {
		m := envelope.Message{
			ID: uuid.Must(uuid.NewV7()), AggregateType: names.Topics()[0].AggregateTypes[0], AggregateID: key, Type: fmt.Sprint("Event", v%7), Version: v, SchemaVersion: int32(1 + v%2),
			Payload: randomBytes(rand.IntN(200)), OccurredAt: time.UnixMicro(time.Now().UnixMicro() - rand.Int64N(3)*1000*rand.Int64N(1000)).UTC(),
		}
		if v%3 == 0 {
			m.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		}
		if v%4 == 0 {
			m.Causation = envelope.Causation{CausationID: uuid.Must(uuid.NewV7()), CorrelationID: uuid.Must(uuid.NewV7())}
		}
		s.mu.Lock()
		s.ours[m.ID.String()] = ofPublisher(m)
		s.mu.Unlock()
		for { // PostgreSQL may be away; an answer to a commit may be lost, so the row is looked for
			ctx, _ := envelope.ContinueTrace(context.WithoutCancel(s.Context()), m.Traceparent)
			err := pg.InTx(ctx, s.pool, "append", func(ctx context.Context, tx *pg.Tx) error {
				pg.AppendEvent(ctx, tx, m)
				return nil
			})
			if err == nil || strings.Contains(err.Error(), "exists") {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// publish runs our publisher, which sends what is in the lanes.
func (s *stack) publish() {
	s.Helper()
	p, err := outbox.New(pg.NewOutbox(s.open("service")), s, outbox.Config{PollInterval: 20 * time.Millisecond}, discard, noop.Meter{})
	must(s, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	s.Cleanup(func() { cancel(); <-done })
}

// delivered waits until n events have been delivered, and fails the test at the first mistake.
func (s *stack) delivered(n int) {
	s.Helper()
	pgtest.Eventually(s, 2*time.Minute, fmt.Sprintf("%d events are delivered", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.mistakes) > 0 {
			s.Fatalf("%d mistakes, the first: %s", len(s.mistakes), s.mistakes[0])
		}
		total := 0
		for _, all := range s.first {
			total += len(all)
		}
		return total >= n
	})
}

// 10,000 events of all shapes reach the broker with the topic, key, headers and bytes of our publisher, while Debezium and PostgreSQL are killed,
// and over switches between the lanes and the log. First deliveries of an aggregate are in order.
func TestDebeziumSendsWhatThePublisherSends(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.publish()
	const aggregates, each = 20, 500
	var writers sync.WaitGroup
	for i := range aggregates {
		writers.Go(func() { s.append(fmt.Sprint("a", i), 1, each) })
	}
	s.delivered(500) // by the lanes
	s.relay("external")
	kill, _ := s.run()
	s.delivered(2000)
	kill()
	kill, _ = s.run()
	s.delivered(4000)
	must(t, s.postgres.Kill())
	kill()
	s.start()
	s.pool.Reset() // it has connections of the server that was killed
	kill, _ = s.run()
	s.delivered(6000)
	kill()
	s.relay("lanes")
	s.delivered(7000)
	s.relay("external")
	must(t, os.Remove(s.offsets)) // they are of the slot that was dropped
	kill, _ = s.run()
	writers.Wait()
	s.delivered(aggregates * each)
	// Its heartbeats confirm what others write, so that a quiet outbox keeps no log.
	end := pgtest.Column[string](t, s.pool, "SELECT pg_current_wal_lsn()::text FROM pg_logical_emit_message(true, 'other', repeat('x', 1000))")[0]
	pgtest.Eventually(t, time.Minute, "the end of the log is confirmed", func() bool {
		return pgtest.Count(t, s.pool, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'video_catalog_outbox' AND confirmed_flush_lsn >= $1::text::pg_lsn", end) == 1
	})
	kill()
	s.relay("lanes")
	t.Logf("%d events, %d came again", aggregates*each, s.again)
}

// signs lead from a failure to the property that causes it. The first that matches counts.
var signs = []struct{ sign, property string }{
	{`(?i)int64|event timestamp`, "transforms.outbox.table.field.event.timestamp="},
	{`(?i)permission denied|must be owner`, "publication.autocreate.mode="},
	{`caller`, "occurred_at:header,"},
	{`(?m)^\s*[-+]\s+Topic:`, "transforms.outbox.route."},
	{`(?m)^\s*[-+]\s+Key:`, "transforms.outbox.table.field.event.key="},
	{`Value: `, "value.converter="},
}

// lineOf returns the number and the text of the line of a file that a failure leads to.
func lineOf(text, failure string) string {
	for _, s := range signs {
		if regexp.MustCompile(s.sign).MatchString(failure) {
			for i, line := range strings.Split(text, "\n") {
				if strings.HasPrefix(line, s.property) {
					return fmt.Sprintf("%d: %s", i+1, line)
				}
			}
		}
	}
	return "?"
}

// Each line of the properties on which the contract depends is missed: Debezium fails, or sends something else, and the failure leads to the line.
func TestBrokenPropertiesAreFound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(properties)
	must(t, err)
	const router = "transforms.outbox."
	for name, test := range map[string]struct{ line, broken, found string }{
		"the time of the event":     {router + "table.field.event.payload=payload", "$0\n" + router + "table.field.event.timestamp=occurred_at", router + "table.field.event.timestamp=occurred_at"},
		"no converter of bytes":     {"value.converter=.*", "value.converter=org.apache.kafka.connect.json.JsonConverter", "value.converter=org.apache.kafka.connect.json.JsonConverter"},
		"a publication of Debezium": {"publication.autocreate.mode=disabled", "publication.autocreate.mode=filtered\npublication.name=debezium", "publication.autocreate.mode=filtered"},
		"the wrong column as key":   {router + "table.field.event.key=aggregate_id", router + "table.field.event.key=event_type", router + "table.field.event.key=event_type"},
		"the caller as header":      {"(occurred_at:header.*)", "$1,caller:header", "correlation_id:header,caller:header"},
		"no route":                  {router + "route.topic.replacement=.*", "", router + "route.by.field=aggregate_type"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := regexp.MustCompile("(?m)^"+test.line+"$").ReplaceAllString(string(text), test.broken)
			if broken == string(text) {
				t.Fatalf("outbox.properties has no line %q", test.line)
			}
			s := newStack(t)
			s.file = filepath.Join(t.TempDir(), "outbox.properties")
			must(t, os.WriteFile(s.file, []byte(broken), 0o600))
			s.relay("external")
			s.append("a", 1, 12)
			kill, wait := s.run()
			ended := make(chan string, 1)
			go func() { ended <- wait() }()
			var failure string
			pgtest.Eventually(t, time.Minute, "a failure", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				failure = strings.Join(s.mistakes, "\n")
				select {
				case said := <-ended:
					failure += said
				default:
				}
				return failure != ""
			})
			kill()
			if got := lineOf(broken, failure); !strings.HasSuffix(got, test.found) {
				t.Errorf("the failure leads to line %s, want %s:\n%.2000s", got, test.found, failure)
			}
		})
	}
}
