package relayhttp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
)

var must = pgtest.Must

// underTest is an environment variable that makes this test binary run the program, with these limits of the outbox.
const underTest = "RELAY_UNDER_TEST"

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(underTest); ok {
		p := app.Program{Version: "test", Options: []app.Option{Option()}}
		if err := json.Unmarshal([]byte(text), &p.Limits.Outbox); err != nil {
			panic(err)
		}
		p.Main()
	}
	pgtest.Main(m)
}

// usual are the limits of a service, with small passes, so that a drain has many. fast have a lease of a second, for tests that
// wait for its end: a call may then fail on a busy machine.
var (
	usual = outbox.Config{Batch: 200}
	fast  = outbox.Config{Lease: time.Second, PublishTimeout: 450 * time.Millisecond, Batch: 200}
)

// stack is a database, an endpoint and a process of the program.
type stack struct {
	*endpoint

	t      testing.TB
	pool   *pgxpool.Pool
	url    string // of the relay
	cmd    *exec.Cmd
	stdout *os.File // of the process, which writes into it directly
}

func newStack(t testing.TB) *stack {
	stdout, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	must(t, err)
	t.Cleanup(func() { _ = stdout.Close() })
	return &stack{endpoint: newEndpoint(t), t: t, pool: pgtest.Pool(t, 2), stdout: stdout}
}

// command returns the program, which ends with the test.
func (s *stack) command(limits outbox.Config, args ...string) *exec.Cmd {
	text, err := json.Marshal(struct {
		Lease, PublishTimeout time.Duration
		Batch                 int
	}{limits.Lease, limits.PublishTimeout, limits.Batch})
	must(s.t, err)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{
		underTest + "=" + string(text), "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "DATABASE_URL=" + pgtest.Direct(s.t, s.pool.Config().ConnString()),
		"BROKER=http", "HTTP_SINK_URL=" + s.Server.URL + "/", "HTTP_SINK_SECRET=" + secret, "OTEL_TRACES_EXPORTER=console",
	}
	cmd.Stdout = s.stdout
	s.t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // also if it is frozen
			_ = cmd.Wait()
		}
	})
	return cmd
}

// start starts a relay.
func (s *stack) start(limits outbox.Config, args ...string) *stack {
	s.cmd = s.command(limits, append([]string{command, "--addr", "127.0.0.1:0"}, args...)...)
	log, err := s.cmd.StderrPipe()
	must(s.t, err)
	must(s.t, s.cmd.Start())
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var line struct{ Message, Addr string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "relay: started" {
			s.url = "http://" + line.Addr
			go io.Copy(io.Discard, log) //nolint:errcheck // until it ends
			return s
		}
	}
	s.t.Fatal("the relay did not start")
	return nil
}

// call posts to the relay. The status is 0 if there is no response.
func (s *stack) call(ctx context.Context) (status int, body string) {
	request, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/", strings.NewReader("{}"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(text))
}

// drained makes a call that publishes so many events, and leaves nothing.
func (s *stack) drained(published int) {
	s.t.Helper()
	want := fmt.Sprintf(`{"published":%d,"blocked":0,"parked":0,"left":0}`, published)
	if status, body := s.call(s.t.Context()); status != http.StatusOK || body != want {
		s.t.Errorf("POST / = %d %s, want %s", status, body, want)
	}
}

// drainedSoon calls until nothing is left.
func (s *stack) drainedSoon() {
	s.t.Helper()
	pgtest.Eventually(s.t, time.Minute, "a call leaves nothing", func() bool {
		status, body := s.call(s.t.Context())
		return status == http.StatusOK && strings.HasSuffix(body, `"left":0}`)
	})
}

// add appends events of versions from first to last to aggregates. They belong to a trace.
func (s *stack) add(aggregates, first, last int) {
	s.t.Helper()
	tx, err := s.pool.Begin(s.t.Context())
	must(s.t, err)
	for version := first; version <= last; version++ {
		for a := range aggregates {
			m := message(fmt.Sprint(a), int64(version))
			if a == 0 {
				m.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			}
			pgtest.Append(s.t, tx, m)
		}
	}
	must(s.t, tx.Commit(s.t.Context()))
}

// check checks that all events have come, and the first deliveries in order.
func (s *stack) check(aggregates, last int) {
	s.t.Helper()
	for a := range aggregates {
		if diff := cmp.Diff(series(last), s.first(fmt.Sprint(a))); diff != "" {
			s.t.Fatalf("aggregate %d (-want +got):\n%s", a, diff)
		}
	}
	if got := s.first("at the same time"); len(got) > 0 {
		s.t.Errorf("two requests at a time of %q", got)
	}
}

// A relay that is frozen for longer than a lease after each of 20 calls, while its connections end, loses nothing of 10,000
// events. After a response nothing is leased or open, and the spans are exported.
func TestFreezes(t *testing.T) {
	t.Parallel()
	s := newStack(t).start(fast)
	const aggregates, each = 50, 10
	var took []time.Duration
	for round := range 20 {
		s.add(aggregates, round*each+1, (round+1)*each)
		start := time.Now()
		s.drainedSoon() // by the first call, unless the machine is busy
		took = append(took, time.Since(start))
		if leased := pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog.outbox_lanes WHERE leased_until > now()"); leased > 0 {
			t.Errorf("round %d: %d lanes are leased after the response", round, leased)
		}
		exported, _ := os.ReadFile(s.stdout.Name())
		if spans, sent := bytes.Count(exported, []byte(`"Name":"outbox.publish"`)), s.sent("0"); spans < sent || sent < (round+1)*each {
			t.Errorf("round %d: %d spans are exported of %d requests that belong to a trace", round, spans, sent)
		}
		must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
		pgtest.Execute(t, s.pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		s.CloseClientConnections()
		time.Sleep(fast.Lease * 11 / 10) // is the freeze
		must(t, s.cmd.Process.Signal(syscall.SIGCONT))
	}
	slices.Sort(took)
	if t.Logf("the rounds took %s to %s", took[0], took[19]); took[18] > 3*time.Second { // one may meet a pause of the machine
		t.Errorf("two of 20 rounds took %s or more, want 3s at most", took[18])
	}
	s.check(aggregates, 20*each)
	if n := pgtest.Count(t, s.pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); n > 0 {
		t.Errorf("%d connections are open after the response, want none", n)
	}
}

// A call that is wrong does nothing; nor do the calls of a platform.
func TestCallsThatDoNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t).start(usual)
	s.add(1, 1, 1)
	for _, tt := range []struct {
		method, path string
		body         int
		want         int
	}{
		{"GET", "/", 0, 200}, {"HEAD", "/", 0, 200}, {"POST", "/initialize", 2, 200}, {"GET", "/pre-freeze", 0, 200}, {"GET", "/pre-stop", 0, 200},
		{"POST", "/", maxBody + 1, 413}, {"POST", "/invoke", maxBody + 1, 413}, {"PUT", "/", 0, 405}, {"DELETE", "/invoke", 0, 405}, {"GET", "/invoke", 0, 405},
		{"PATCH", "/initialize", 0, 405}, {"POST", "/other", 0, 404}, {"BREW", "/", 0, 405},
	} {
		request, _ := http.NewRequestWithContext(t.Context(), tt.method, s.url+tt.path, bytes.NewReader(make([]byte, tt.body)))
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		if response.Body.Close(); response.StatusCode != tt.want {
			t.Errorf("%s %s with %d bytes = %d, want %d", tt.method, tt.path, tt.body, response.StatusCode, tt.want)
		}
	}
	if s.count() > 0 {
		t.Errorf("%d requests were sent", s.count())
	}
	s.drained(1)
}

// A call that panics leaves the next one its turn.
func TestPanicEndsACall(t *testing.T) {
	t.Parallel()
	r := new(relay) // without a process
	func() {
		defer func() { _ = recover() }()
		r.invoke(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
		t.Error("a call without a process returns")
	}()
	if !r.running.TryLock() {
		t.Error("the call still runs")
	}
}

// While a call runs, another one is refused. If the caller is gone the call ends, and the next one goes on.
func TestTwoCallsAndACallerThatGoes(t *testing.T) {
	t.Parallel()
	s, release := newStack(t), make(chan struct{})
	s.fault.Store(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		s.accept(w, r)
	}))
	s.start(usual)
	s.add(100, 1, 10)
	ctx, leave := context.WithCancel(t.Context())
	var caller sync.WaitGroup
	caller.Go(func() { s.call(ctx) })
	pgtest.Eventually(t, 20*time.Second, "the call has sent", func() bool { return s.count() == inFlight })
	if status, body := s.call(t.Context()); status != http.StatusTooManyRequests {
		t.Errorf("a second call = %d %s, want 429", status, body)
	}
	leave()
	caller.Wait()
	pgtest.Eventually(t, 5*time.Second, "no lane is leased", func() bool {
		return pgtest.Count(t, s.pool, "SELECT count(*) FROM video_catalog.outbox_lanes WHERE leased_until > now()") == 0
	})
	close(release)
	pgtest.Eventually(t, 20*time.Second, "the next call drains", func() bool {
		status, _ := s.call(t.Context())
		return status == http.StatusOK
	})
	s.drained(0)
	s.check(100, 10)
}

// After SIGKILL in the middle of a drain, the next process waits for the lease, and loses nothing.
func TestKilledInMidDrain(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.add(50, 1, 40)
	for i := range 5 {
		s.start(fast)
		most := s.count() + 20 + 100*i
		s.fault.Store(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s.count() > most {
				<-r.Context().Done()
				return
			}
			s.accept(w, r)
		}))
		var caller sync.WaitGroup
		caller.Go(func() { s.call(t.Context()) })
		pgtest.Eventually(t, 20*time.Second, "it is in a drain", func() bool { return s.count() > most })
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		caller.Wait()
	}
	s.fault.Store(http.HandlerFunc(nil))
	s.start(fast)
	s.drainedSoon()
	s.check(50, 40)
}

// While the database is away a call fails, with the reason. So it does while the endpoint fails, after what it has published.
func TestOutages(t *testing.T) {
	t.Parallel()
	s := newStack(t).start(usual)
	s.add(10, 1, 10)
	other := s.pool.Config().ConnConfig.Database
	admin, err := pgxpool.New(t.Context(), strings.Replace(pgtest.Direct(t, s.pool.Config().ConnString()), other, "postgres", 1))
	must(t, err)
	defer admin.Close()
	s.pool.Reset()
	pgtest.Execute(t, admin, "ALTER DATABASE "+other+" ALLOW_CONNECTIONS false")
	if status, body := s.call(t.Context()); status != http.StatusInternalServerError || !strings.Contains(body, "is not currently accepting connections") {
		t.Errorf("without the database: %d %s", status, body)
	}
	pgtest.Execute(t, admin, "ALTER DATABASE "+other+" ALLOW_CONNECTIONS true")
	s.fault.Store(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusServiceUnavailable) }))
	if status, body := s.call(t.Context()); status != http.StatusInternalServerError || body != `after 0 events: the response is 503: "later\n"` {
		t.Errorf("without the endpoint: %d %s", status, body)
	}
	s.fault.Store(http.HandlerFunc(nil))
	s.drained(100)
	s.check(10, 10)
}

// A refused event blocks its own aggregate only, and the response counts it.
func TestRefusedEventBlocksItsKeyOnly(t *testing.T) {
	t.Parallel()
	s := newStack(t).start(usual)
	s.add(10, 1, 10)
	s.fault.Store(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keyOf(r) == "3" && r.Header.Get("Ce-Version") == "5" {
			http.Error(w, "no such letter", http.StatusUnprocessableEntity)
			return
		}
		s.accept(w, r)
	}))
	if status, body := s.call(t.Context()); status != http.StatusOK || body != `{"published":94,"blocked":1,"parked":0,"left":6}` {
		t.Errorf("POST / = %d %s, want one blocked aggregate, and its six events left", status, body)
	}
	if text := pgtest.Column[string](t, s.pool, "SELECT last_error FROM video_catalog.outbox_blocked")[0]; !strings.HasPrefix(text, "the response is 422: ") || !strings.Contains(text, "no such letter") {
		t.Errorf("the reason is %s", text)
	}
	if diff := cmp.Diff(series(4), s.first("3")); diff != "" {
		t.Errorf("of the blocked aggregate (-want +got):\n%s", diff)
	}
}

// Near the limit of its caller a call ends with what is left, and after SIGTERM with an error. The next one goes on.
func TestLimitAndStop(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.fault.Store(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Millisecond) // is the endpoint's time
		s.accept(w, r)
	}))
	s.start(outbox.Config{Lease: time.Second, PublishTimeout: 450 * time.Millisecond, Batch: 5}, "--limit", "3s")
	s.add(1, 1, 400)
	start := time.Now()
	if status, body := s.call(t.Context()); status != http.StatusOK || strings.HasSuffix(body, `"left":0}`) || time.Since(start) > 3*time.Second {
		t.Errorf("POST / = %d %s after %s, want events left within 3s", status, body, time.Since(start))
	}
	s.start(outbox.Config{Batch: 5})
	var caller sync.WaitGroup
	caller.Go(func() {
		if status, body := s.call(t.Context()); status != http.StatusInternalServerError || !strings.Contains(body, "context canceled") {
			t.Errorf("a call that is stopped = %d %s", status, body)
		}
	})
	before := s.count()
	pgtest.Eventually(t, 20*time.Second, "it sends", func() bool { return s.count() > before+10 })
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	caller.Wait()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the relay ended: %v", err)
	}
	s.fault.Store(http.HandlerFunc(nil))
	s.start(fast)
	s.drainedSoon()
	s.check(1, 400)
}

// Arguments that are wrong are refused.
func TestArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"now", "--limit 1s", "--limit soon", "--port 1", "--addr"} {
		p := app.Program{Options: []app.Option{Option()}}
		err := p.Run(t.Context(), append([]string{command}, strings.Fields(args)...), []string{"DATABASE_URL=postgres://x"}, io.Discard, io.Discard)
		if app.ExitCode(err) != app.ExitUsage {
			t.Errorf("%s %s = %v, want a mistake in the arguments", command, args, err)
		}
	}
}
