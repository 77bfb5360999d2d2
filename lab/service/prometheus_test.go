package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/servicekit/localbroker"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/pg/pgtest"
)

// pace is the factor by which the rules are faster: 5 minutes become 1 second. Pool statistics are read once a second,
// so rules about them use slowPace: 5 minutes become 3 seconds.
const (
	pace     = 300
	slowPace = 100
)

// limits are the numbers in rules that are a time without a unit. Each is divided by the pace.
var limits = []struct {
	expr  string
	limit float64
}{
	{`max(outbox_backlog_age_seconds{job="videocatalog"}) >`, 60},
	{`histogram_quantile(0.95, sum by (le) (rate(consumer_lag_seconds_bucket{job="videocatalog"}[5m]))) >`, 60},
	{`max by (aggregate_type) (timer_oldest_lateness_seconds{job="videocatalog"}) >`, 60},
}

// speedUp returns the rules of alerts.yaml, faster by the factor pace. It changes nothing else.
func speedUp(t *testing.T, pace time.Duration) string {
	t.Helper()
	text := read(t, alerts+"alerts.yaml")
	for _, l := range limits {
		found := regexp.MustCompile(regexp.QuoteMeta(l.expr) + ` (\S+)`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("%s is in no rule: write the limits as the rules do", l.expr)
		}
		if limit, err := strconv.ParseFloat(found[1], 64); err != nil || limit != l.limit {
			t.Fatalf("%s %s, want %v, as in limits", l.expr, found[1], l.limit)
		}
		text = strings.Replace(text, found[0], l.expr+" "+strconv.FormatFloat(l.limit/float64(pace), 'f', -1, 64), 1)
	}
	units := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	text = regexp.MustCompile(`(\[|:|offset |for: )(\d+)([mhd])\b`).ReplaceAllStringFunc(text, func(found string) string {
		m := regexp.MustCompile(`(.*?)(\d+)([mhd])`).FindStringSubmatch(found)
		n, err := strconv.Atoi(m[2])
		must(t, err)
		return fmt.Sprintf("%s%dms", m[1], (time.Duration(n) * units[m[3]] / pace).Milliseconds())
	})
	return text
}

type tools struct{ server, prometheus, promtool string }

// system is a service with its own database, broker and Prometheus. Only the alerts of its own faults may fire.
type system struct {
	*testing.T
	tools
	broker  *localbroker.Server
	client  *pubsub.Client
	db      *pgxpool.Pool
	videos  videov1.VideoServiceClient // client of the first process with the role api
	environ []string
	targets []string // private ports that Prometheus scrapes
	started int      // how many of targets are used by a process
	pace    time.Duration
	url     string // of Prometheus

	expected, tolerated, resolved map[string]bool // alerts by name
}

func newSystem(t *testing.T, p tools) *system {
	t.Helper()
	s := &system{T: t, tools: p, pace: pace, expected: map[string]bool{}, resolved: map[string]bool{}}
	// At this pace the limit of the first two is 0.2 seconds, which one call may take on a busy machine. The others
	// fire if no scrape succeeds, or no event is applied, for about two seconds.
	s.tolerated = map[string]bool{"OutboxStalled": true, "ProjectionLag": true, "OutboxNotMeasured": true, "NothingApplied": true}
	s.broker, s.client = localtopics.Start(t, project, localbroker.Resources{})
	database := pgtest.URL(t)
	s.db = pgtest.Open(t, database, 4)
	s.environ = environ("DATABASE_URL="+database, "PUBSUB_PROJECT="+project, "PUBSUB_EMULATOR_HOST="+s.broker.Addr(), "LAB_OUTBOX_POLL_INTERVAL=20ms")
	for range 3 {
		s.targets = append(s.targets, freeAddr(t))
	}
	return s
}

// serve starts a process of the service. A system has at most three.
func (s *system) serve(roles string, environ ...string) *program {
	s.Helper()
	public := freeAddr(s.T)
	_, port, _ := net.SplitHostPort(public)
	all := append(slices.Clone(s.environ), "ROLES="+roles, "PORT="+port, "TELEMETRY_ADDR="+s.targets[s.started])
	s.started++
	if s.videos == nil && strings.Contains(roles, "api") {
		conn, err := grpc.NewClient(public, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		must(s, err)
		s.Cleanup(func() { conn.Close() })
		s.videos = videov1.NewVideoServiceClient(conn)
	}
	return start(s.T, append(all, environ...), s.server)
}

// quiet starts Prometheus. It waits until Prometheus scrapes the started processes and no alert fires.
func (s *system) quiet() {
	s.Helper()
	dir := s.TempDir()
	for name, content := range map[string]string{
		"alerts.yaml": speedUp(s.T, s.pace),
		"prometheus.yml": fmt.Sprintf("global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 250ms}\n"+
			"rule_files: [alerts.yaml]\nscrape_configs: [{job_name: videocatalog, static_configs: [{targets: ['%s']}]}]\n",
			strings.Join(s.targets, "', '")),
	} {
		must(s, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	addr := freeAddr(s.T)
	s.url = "http://" + addr
	start(s.T, nil, s.prometheus, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr)
	s.eventually("Prometheus is ready", func() bool {
		req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.url+"/-/ready", http.NoBody)
		must(s, err)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	s.eventually("the service is scraped", func() bool {
		var answer struct {
			Data struct{ Result []struct{ Value [2]any } }
		}
		s.get("/api/v1/query?query=sum(up)", &answer)
		return len(answer.Data.Result) == 1 && answer.Data.Result[0].Value[1] == strconv.Itoa(s.started)
	})
	s.eventually("no alert fires", func() bool { return len(s.firing()) == 0 }) // OutboxNotMeasured fires before the first scrape
}

// fire waits until all these alerts have fired.
func (s *system) fire(alerts ...string) {
	s.Helper()
	seen := map[string]bool{}
	for _, a := range alerts {
		s.expected[a] = true
	}
	s.eventually(strings.Join(alerts, ", ")+" fired", func() bool {
		for _, a := range s.firing() {
			seen[a] = true
		}
		return !slices.ContainsFunc(alerts, func(a string) bool { return !seen[a] })
	})
}

// resolve waits until no alert fires.
func (s *system) resolve() {
	s.Helper()
	s.eventually("all resolved", func() bool { return len(s.firing()) == 0 })
	maps.Copy(s.resolved, s.expected)
}

// firing returns the names of the alerts that fire, without pending ones. An unexpected alert is an error.
func (s *system) firing() []string {
	s.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	s.get("/api/v1/alerts", &answer)
	var names []string
	for _, a := range answer.Data.Alerts {
		if a.State != "firing" {
			continue
		}
		name := a.Labels["alertname"]
		names = append(names, name)
		if len(s.expected) > 0 && !s.expected[name] && !s.tolerated[name] {
			s.tolerated[name] = true // so that it is reported only once
			s.Errorf("%s fires, want only %v", name, slices.Sorted(maps.Keys(s.expected)))
		}
	}
	return names
}

// get reads a response of Prometheus.
func (s *system) get(path string, answer any) {
	s.Helper()
	must(s, json.Unmarshal([]byte(s.fetch(s.url+path)), answer))
}

// fetch returns the body of a page.
func (s *system) fetch(url string) string {
	s.Helper()
	code, body := getURL(s, url)
	if code != http.StatusOK {
		s.Fatalf("GET %s: %d\n%s", url, code, body)
	}
	return body
}

// create creates a video.
func (s *system) create() *videov1.Video {
	video, err := s.videos.CreateVideo(s.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
	if err != nil && s.Context().Err() == nil {
		s.Errorf("CreateVideo() = %v", err)
	}
	return video
}

// repeat calls a function until stop is called or the test ends.
func (s *system) repeat(pause time.Duration, call func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			call(ctx)
			time.Sleep(pause)
		}
	})
	stop = func() { cancel(); running.Wait() }
	s.Cleanup(stop)
	return stop
}

func (s *system) exec(sql string, args ...any) { s.Helper(); pgtest.Execute(s, s.db, sql, args...) }

// value returns the single value of a query.
func value[T any](s *system, sql string) T { s.Helper(); return pgtest.Column[T](s, s.db, sql)[0] }

// command runs an operator's command of the service.
func (s *system) command(args ...string) string {
	s.Helper()
	return run(s.T, s.environ, s.server, args...)
}

func (s *system) eventually(what string, ok func() bool) {
	s.Helper()
	began := time.Now()
	pgtest.Eventually(s, time.Minute, what, ok)
	s.Logf("%s after %v", what, time.Since(began).Round(100*time.Millisecond))
}

// program is a process that ends with the test at the latest.
type program struct {
	cmd  *exec.Cmd
	wait func() error // for its end; returns its error
	mu   sync.Mutex
	log  bytes.Buffer // guarded by mu
}

func start(t testing.TB, environ []string, binary string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(binary, args...)}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.wait = environ, p, p, sync.OnceValue(p.cmd.Wait)
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("end of the log of %s %s:\n%s", filepath.Base(binary), strings.Join(args, " "), p.log.Bytes()[max(0, p.log.Len()-4000):])
		}
	})
	return p
}

// Write keeps the log.
func (p *program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(text)
}

// lines returns the log.
func (p *program) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Split(p.log.String(), "\n")
}

// addrOf returns the address in the line of the log with a message, or "".
func (p *program) addrOf(message string) string {
	for _, text := range p.lines() {
		var line struct{ Message, Addr string }
		if json.Unmarshal([]byte(text), &line) == nil && line.Message == message {
			return line.Addr
		}
	}
	return ""
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	_ = p.wait()             // its error is that it was killed
}

// run runs a program to its end, and returns its output.
func run(t *testing.T, environ []string, binary string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = environ
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(binary), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// lastPort counts from a random port on. Ports from 32768 on are not used, because Linux assigns them to connections.
var lastPort atomic.Int32

// freeAddr returns an address on which nobody listens, and which it has not returned before.
func freeAddr(t *testing.T) string {
	t.Helper()
	const lowest, highest = 15_000, 32_000
	lastPort.CompareAndSwap(0, lowest+rand.Int32N(highest-lowest-1000))
	for {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(lastPort.Add(1))))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		} else if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}
