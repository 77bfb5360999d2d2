// Package relayhttp publishes events on request, and to an HTTP endpoint.
//
// The command relay-http serves a port, where each POST publishes what is pending. Between two calls
// nothing of it runs, and nothing is open but the port: the process may be frozen or ended. If it is
// killed in a call, the next call waits until the lease of the lanes ends, and goes on.
// The port authenticates no caller; the platform in front of it must. The body of a call is ignored.
//
// BROKER=http makes any process publish to one endpoint. It keeps the promises of [outbox.Broker]. An
// event whose response is lost is sent again, by the next pass of the publisher.
package relayhttp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/outbox"
)

type settings struct {
	URL    string `env:"HTTP_SINK_URL" help:"endpoint that gets the events, with https unless it is on localhost; required by BROKER=http"`
	Secret string `env:"HTTP_SINK_SECRET" help:"key of the signatures: whsec_ and at least 24 bytes in base64; required by BROKER=http"`
}

// command is the name of the option, and its subcommand.
const command = "relay-http"

// Option returns the option.
func Option() app.Option {
	s := new(settings)
	return app.Option{
		Name: command, Settings: s, Check: s.check, NewBroker: s.newBroker, Subcommands: map[string]app.Subcommand{command: serve},
		Help: `  server relay-http                    serve a port, where each POST / does what drain does
         --addr ADDRESS                default: :9000
         --limit DURATION              how long the caller waits; default: 50s
`,
	}
}

// check returns the mistakes in the settings, if the command publishes. No error shows a value.
func (s *settings) check(run app.Selection) (errs []error) {
	if run.Broker != "http" || !slices.Contains([]string{"serve", "drain", command}, run.Subcommand) {
		return nil
	}
	u, err := url.Parse(s.URL)
	local := err == nil && u.Scheme == "http" && slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, u.Hostname())
	if err != nil || u.Host == "" || u.Scheme != "https" && !local {
		errs = append(errs, errors.New("HTTP_SINK_URL must be a URL that begins with https://, or with http:// if its host is localhost"))
	}
	if key, err := s.key(); err != nil || len(key) < 24 || !strings.HasPrefix(s.Secret, "whsec_") {
		errs = append(errs, errors.New("HTTP_SINK_SECRET must be whsec_ and at least 24 bytes in base64, such as whsec_$(openssl rand -base64 32)"))
	}
	return errs
}

func (s *settings) key() ([]byte, error) {
	return base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Secret, "whsec_"))
}

func (s *settings) newBroker(context.Context, *app.Process) (app.Broker, error) {
	key, err := s.key()
	to := newSink(s.URL, key)
	return app.Broker{System: "http", Topic: func(string) outbox.Broker { return to }, Stop: to.stop}, err
}

const (
	maxBody  = 64 << 10         // of a call
	bodyTime = 10 * time.Second // in which a call must have come
	endTime  = 2 * time.Second  // for what follows a drain: closing, the flush of telemetry, the response
)

// serve serves calls until ctx ends. A call in progress then ends early, with its response.
func serve(ctx context.Context, process *app.Process, args []string, _ io.Writer) error {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says enough
	addr := flags.String("addr", ":9000", "")
	limit := flags.Duration("limit", 50*time.Second, "")
	least := process.Limits.Outbox.Lease + endTime
	err := flags.Parse(args)
	if err == nil && (flags.NArg() > 0 || *limit < least) {
		err = fmt.Errorf("want --addr and --limit of at least %s, which is a lease and a bit, and nothing else", least)
	}
	if err != nil {
		return app.UsageError(fmt.Errorf("%s: %w", command, err))
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *addr)
	if err != nil {
		return fmt.Errorf("%s: --addr: %w", command, err)
	}
	calls := relay{process: process, limit: *limit - endTime}
	server := &http.Server{
		Handler: calls.routes(), ReadHeaderTimeout: bodyTime, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: slog.NewLogLogger(process.Log.Handler(), slog.LevelWarn),
	}
	stopped := make(chan error)
	context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*endTime)
		defer cancel()
		stopped <- server.Shutdown(last)
	})
	process.Log.InfoContext(ctx, "relay: started", "addr", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s: %w", command, err)
	}
	return <-stopped
}

// relay drains in each call.
type relay struct {
	process *app.Process
	limit   time.Duration // of a drain
	running sync.Mutex
}

// routes returns the handlers for schedulers and function runtimes (https://www.alibabacloud.com/help/en/fc/user-guide/specification-details).
func (r *relay) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", r.invoke)
	mux.HandleFunc("POST /invoke", r.invoke)
	for _, route := range []string{"GET /{$}", "POST /initialize", "GET /pre-freeze", "GET /pre-stop", "POST /pre-freeze", "POST /pre-stop"} {
		mux.HandleFunc(route, func(http.ResponseWriter, *http.Request) {})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // fails only without a network
		mux.ServeHTTP(w, request)
	})
}

// outcome is the response to a call. Blocked and Parked count aggregates, Left counts events; none exceeds 10,000.
type outcome struct {
	Published int   `json:"published"`
	Blocked   int64 `json:"blocked"`
	Parked    int64 `json:"parked"`
	Left      int64 `json:"left"`
}

// invoke drains. It ends early if its caller is gone, and responds when all is closed.
func (r *relay) invoke(w http.ResponseWriter, request *http.Request) {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, request.Body, maxBody)); err != nil {
		http.Error(w, "a call has at most 64 KiB, in 10s: "+err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if !r.running.TryLock() {
		http.Error(w, "another call is in progress", http.StatusTooManyRequests)
		return
	}
	defer r.running.Unlock() // also after a panic. The response leaves after it, because it fits into the buffer of the connection
	ctx, cancel := context.WithTimeout(request.Context(), r.limit)
	defer cancel()
	var done outcome
	err := r.process.Once(ctx, func(once *app.Process) error {
		published, left, err := once.Drain(ctx)
		done = outcome{published, left.Blocked, left.Parked, left.Pending}
		return err
	})
	if err != nil {
		w.Header().Set("X-Fc-Status", "404") // a failure, for Function Compute
		r.process.Log.ErrorContext(ctx, "relay: call failed", "published", done.Published, "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(done) // the caller may be gone
}
