package console

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/envelope"
)

// sides is both sides of a service, in memory. It counts its samples.
type sides struct {
	samples atomic.Int64
	takes   time.Duration // for each sample
	fails   atomic.Bool
}

func (s *sides) SampleCommands(_ context.Context, _ time.Time) (CommandSample, error) {
	n := s.samples.Add(1)
	time.Sleep(s.takes)
	if s.fails.Load() {
		return CommandSample{}, errors.New("unavailable")
	}
	return CommandSample{Lanes: []Lane{{Pending: n}}, Until: time.Now(), Over: time.Second, Appended: n}, nil
}

func (s *sides) Events(context.Context, envelope.Aggregate, time.Time, time.Time) (History, error) {
	return History{}, nil
}
func (s *sides) CommandPrivileges(context.Context) (Privileges, error) { return Privileges{}, nil }
func (s *sides) SampleQueries(context.Context, []string) (QuerySample, error) {
	return QuerySample{}, nil
}
func (s *sides) Reacted(context.Context, []string, []Event) error    { return nil }
func (s *sides) Applied(context.Context, []string, []Event) error    { return nil }
func (s *sides) Quarantined(context.Context, int64) (Message, error) { return Message{}, nil }
func (s *sides) QueryPrivileges(context.Context) (Privileges, error) { return Privileges{}, nil }

func newServer(t *testing.T, s *sides) *Server {
	t.Helper()
	server, err := New(Config{Service: "test", Guard: unguarded, Commands: s, Queries: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// Nothing is measured before somebody looks, and nothing any more 15 minutes after that.
func TestHubMeasuresWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(sides)
		hub := newServer(t, s).hub
		ctx, cancel := context.WithCancel(t.Context())
		hub.start(ctx)
		expect := func(what string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := s.samples.Load(); got != want {
				t.Errorf("%s: %d samples, want %d", what, got, want)
			}
		}
		time.Sleep(time.Hour)
		expect("before anybody looks", 0)
		hub.look(ctx)
		expect("at the first look", 1)
		time.Sleep(time.Minute + time.Millisecond)
		expect("a minute later", 61)
		time.Sleep(time.Hour)
		expect("an hour later", 900)
		hub.look(ctx)
		expect("at the next look", 901)
		if points := hub.current().Points; len(points) != history {
			t.Errorf("%d points, want %d", len(points), history)
		}
		cancel()
		hub.wait()
	})
}

// Slow samples are rare: they use a fifth of a connection.
func TestHubRestsAfterSlowSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sides{takes: time.Second}
		hub := newServer(t, s).hub
		ctx, cancel := context.WithCancel(t.Context())
		hub.start(ctx)
		hub.look(ctx)
		time.Sleep(time.Minute)
		if got := s.samples.Load(); got != 13 {
			t.Errorf("%d samples in 61 s, want 13: one every 5 s", got)
		}
		cancel()
		hub.wait()
	})
}

// A reader gets what has changed since its number, and everything with a number of another
// process.
func TestHubNews(t *testing.T) {
	s := new(sides)
	hub := newServer(t, s).hub
	hub.sample(t.Context())
	all, first, _ := hub.news("")
	if len(all) != len(partNames) {
		t.Fatalf("%d parts, want %d", len(all), len(partNames))
	}
	hub.sample(t.Context())
	news, second, _ := hub.news(first)
	if news["lanes"] == "" || news["quarantine"] != "" {
		t.Errorf("news = %v, want the lanes, and not the quarantine", news)
	}
	if news, _, _ := hub.news(second); len(news) != 0 {
		t.Errorf("news after the last sample = %v, want none", news)
	}
	for _, id := range []string{"", "1", "other-1", hub.boot, hub.boot + "-x"} {
		if news, _, _ := hub.news(id); len(news) != len(partNames) {
			t.Errorf("news(%q) has %d parts, want all", id, len(news))
		}
	}
	s.fails.Store(true)
	hub.sample(t.Context())
	if news, _, _ := hub.news(second); !strings.Contains(string(news["health"]), "The command side cannot be read: unavailable.") {
		t.Errorf("health = %q", news["health"])
	}
}

// Streams and pages run side by side, and all end with the console.
func TestServerStops(t *testing.T) {
	server := newServer(t, new(sides))
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, listener) }()
	url := "http://" + listener.Addr().String()
	open := func(path string) io.ReadCloser {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, http.NoBody)
		if err != nil {
			t.Error(err)
			return io.NopCloser(strings.NewReader(""))
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return io.NopCloser(strings.NewReader(""))
		}
		return response.Body
	}
	var readers, begun sync.WaitGroup // begun: streams with an event, and whole pages
	begun.Add(16)
	for range 8 {
		readers.Go(func() {
			stream := open("/live?parts=lanes")
			defer stream.Close()
			lines := bufio.NewScanner(stream)
			for begins := true; lines.Scan(); {
				if begins && strings.HasPrefix(lines.Text(), "data: ") {
					begins = false
					begun.Done()
				}
			}
		})
		readers.Go(func() {
			defer begun.Done()
			page := open("/")
			defer page.Close()
			if text, err := io.ReadAll(page); err != nil || !strings.Contains(string(text), "</html>") {
				t.Errorf("the page = %.200s, %v", text, err)
			}
		})
	}
	begun.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	readers.Wait() // a stream that does not end would hang here
}

// unguarded lets every request through: the guard is the port's, and is tested there.
func unguarded(next http.Handler) http.Handler { return next }
