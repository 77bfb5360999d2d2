package relayhttp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg/pgtest"
)

// ours is the type of an aggregate of the service.
var ours = names.Topics()[slices.IndexFunc(names.Topics(), func(t names.Topic) bool { return !t.Foreign })].AggregateTypes[0]

func message(id string, version int64) envelope.Message {
	return envelope.Message{
		ID: uuid.Must(uuid.NewV7()), AggregateType: ours, AggregateID: id, Type: "LetterWritten", Version: version, SchemaVersion: 1,
		Payload: []byte("text"), OccurredAt: time.Now().UTC(),
	}
}

// endpoint records the events that it has acknowledged. A fault responds in its place, and is nil or an http.HandlerFunc.
type endpoint struct {
	*httptest.Server

	fault       atomic.Value
	mu          sync.Mutex
	got         map[string][]string // versions, by aggregate; guarded by mu
	busy        map[string]bool     // keys with a request; guarded by mu
	most, calls int                 // requests at a time, and all of them; guarded by mu
}

func newEndpoint(t testing.TB) *endpoint {
	e := &endpoint{got: map[string][]string{}, busy: map[string]bool{}}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	t.Cleanup(e.CloseClientConnections)
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that a client is gone
	id := keyOf(r)
	e.mu.Lock()
	if e.busy[id] {
		e.got["at the same time"] = append(e.got["at the same time"], id)
	}
	e.busy[id] = true
	e.calls++
	e.most = max(e.most, len(e.busy))
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.busy, id)
	}()
	if fault, _ := e.fault.Load().(http.HandlerFunc); fault != nil {
		fault(w, r)
		return
	}
	e.accept(w, r)
}

func keyOf(r *http.Request) string {
	id, _ := url.PathUnescape(r.Header.Get("Ce-Partitionkey"))
	return id
}

func (e *endpoint) accept(_ http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id, version := keyOf(r), r.Header.Get("Ce-Version")
	if r.URL.Path != "/" {
		id += " elsewhere"
	}
	e.got[id] = append(e.got[id], version)
}

// first returns the versions of an aggregate without repeats.
func (e *endpoint) first(id string) (versions []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, version := range e.got[id] {
		if !slices.Contains(versions, version) {
			versions = append(versions, version)
		}
	}
	return versions
}

// sent returns how often events of an aggregate were acknowledged.
func (e *endpoint) sent(id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.got[id])
}

func (e *endpoint) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls
}

// series returns the versions 1 to n.
func series(n int) (versions []string) {
	for i := range n {
		versions = append(versions, fmt.Sprint(i+1))
	}
	return versions
}

// pass hands over messages and waits for them, as a pass does.
func pass(ctx context.Context, s *sink, all ...envelope.Message) (errs []error) {
	var receipts []outbox.Receipt
	for _, m := range all {
		receipts = append(receipts, s.Publish(m))
	}
	for _, r := range receipts {
		errs = append(errs, r.Wait(ctx))
	}
	return errs
}

func isRefusal(err error) bool {
	_, ok := errors.AsType[*outbox.RefusedError](err)
	return ok
}

var secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // of the specification of Standard Webhooks; gitleaks:allow

// An event is a CloudEvent in binary mode, and the signature is the one in the specification of Standard Webhooks.
func TestEventOnTheWire(t *testing.T) {
	t.Parallel()
	m := message("ключ / 1", 7)
	m.Causation = envelope.Causation{CausationID: m.ID, CorrelationID: m.ID}
	m.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	header := http.Header{}
	setEvent(header, m)
	got, id := map[string]string{}, "%D0%BA%D0%BB%D1%8E%D1%87%20/%201"
	for name := range header {
		got[strings.ToLower(name)] = header.Get(name)
	}
	if diff := cmp.Diff(map[string]string{
		"content-type": "application/protobuf", "ce-specversion": "1.0", "ce-source": "/" + names.Service + "/" + ours, "ce-subject": id, "ce-partitionkey": id,
		"ce-id": m.ID.String(), "ce-type": "LetterWritten", "ce-time": m.OccurredAt.Format(time.RFC3339Nano), "ce-aggregatetype": ours, "ce-aggregateid": id,
		"ce-version": "7", "ce-schemaversion": "1", "ce-traceparent": m.Traceparent, "ce-causationid": m.ID.String(), "ce-correlationid": m.ID.String(),
	}, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	key, _ := (&settings{Secret: secret}).key()
	sign(header, key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)) // gitleaks:allow
	if got := header.Get("Webhook-Signature"); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || header.Get("Webhook-Timestamp") != "1614265330" {
		t.Errorf("signature %s", got)
	}
}

// After each fault the result is unknown: nothing is refused, and nothing behind it is sent. Then all arrive, in order.
func TestSinkFaults(t *testing.T) {
	t.Parallel()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	raw := func(text string, pause time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			conn, buffer, _ := w.(http.Hijacker).Hijack()
			_, _ = buffer.WriteString(text)
			_ = buffer.Flush()
			time.Sleep(pause) // is the fault
			_ = conn.Close()
		}
	}
	e := newEndpoint(t)
	for name, fault := range map[string]http.HandlerFunc{
		"500": status(500), "503": status(503), "408": status(408), "425": status(425), "429": status(429),
		"reset": raw("", 0), "half a head": raw("HTTP/1.1 20", 0), "half a body": raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", 0), "no HTTP": raw("220 smtp\r\n", 0),
		"slow body": raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", 4*time.Second),
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"accepted, but reset": func(w http.ResponseWriter, r *http.Request) {
			e.accept(w, r)
			raw("", 0)(w, r)
		},
	} {
		s := newSink(e.URL+"/", make([]byte, 24))
		s.timeout = 3 * time.Second
		all, before := []envelope.Message{message(name, 1), message(name, 2), message(name, 3)}, e.count()
		e.fault.Store(fault)
		for _, err := range pass(t.Context(), s, all...) {
			if err == nil || isRefusal(err) || strings.Contains(err.Error(), e.URL) {
				t.Errorf("%s: Wait() = %v, want an error that is no refusal, and does not show the URL", name, err)
			}
		}
		if sent := e.count() - before; sent != 1 {
			t.Errorf("%s: %d requests, want 1", name, sent)
		}
		e.fault.Store(http.HandlerFunc(nil))
		pgtest.Eventually(t, 20*time.Second, name+" is over", func() bool { return errors.Join(pass(t.Context(), s, all...)...) == nil })
		if diff := cmp.Diff(series(3), e.first(name)); diff != "" || len(e.first(name+" elsewhere")) > 0 {
			t.Errorf("%s: (-want +got):\n%s, and %q elsewhere", name, diff, e.first(name+" elsewhere"))
		}
		s.stop()
	}
}

// An endpoint whose certificate is another one gets nothing, until it has the right one again.
func TestSinkChecksTheCertificate(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	server := httptest.NewTLSServer(e)
	defer server.Close()
	s := newSink(server.URL, make([]byte, 24))
	defer s.stop()
	known := x509.NewCertPool()
	known.AddCert(server.Certificate())
	for i, roots := range []*x509.CertPool{x509.NewCertPool(), known, x509.NewCertPool()} { // the certificate is unknown, known, and unknown again
		transport := s.client.Transport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
		s.client.Transport = transport
		before, errs := e.count(), pass(t.Context(), s, message(fmt.Sprint(i), 1), message(fmt.Sprint(i), 2))
		if roots == known && (errors.Join(errs...) != nil || e.count() != before+2) || roots != known && (errs[0] == nil || isRefusal(errs[0]) || e.count() > before) {
			t.Errorf("certificate %d: Wait() = %v after %d requests, want two if it is known, else an error and none", i, errs, e.count()-before)
		}
	}
}

// Many keys have one request each, and at most 64 together. The messages of a key come in order.
func TestSinkSendsInOrder(t *testing.T) {
	t.Parallel()
	e, all64 := newEndpoint(t), make(chan struct{})
	e.fault.Store(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		if e.calls == inFlight {
			close(all64)
		}
		e.mu.Unlock()
		<-all64
		e.accept(w, r)
	}))
	s := newSink(e.URL+"/", make([]byte, 24))
	defer s.stop()
	var all []envelope.Message
	for version := range 10 {
		for key := range 200 {
			all = append(all, message(fmt.Sprint("key ", key), int64(version+1)))
		}
	}
	must(t, errors.Join(pass(t.Context(), s, all...)...))
	for key := range 200 {
		if diff := cmp.Diff(series(10), e.got[fmt.Sprint("key ", key)]); diff != "" {
			t.Errorf("key %d (-want +got):\n%s", key, diff)
		}
	}
	if e.most != inFlight || len(e.got["at the same time"]) > 0 || len(s.keys) > 0 {
		t.Errorf("at most %d requests at a time, of one key %q, %d keys left", e.most, e.got["at the same time"], len(s.keys))
	}
}

// When Wait gives up, what is not sent is taken back. The key stays closed until the response comes.
func TestSinkGivesUp(t *testing.T) {
	t.Parallel()
	e, release := newEndpoint(t), make(chan struct{})
	e.fault.Store(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		e.accept(w, r)
	}))
	s := newSink(e.URL+"/", make([]byte, 24))
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		for _, err := range pass(ctx, s, message("a", 1), message("a", 2)) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait() = %v, want the error of the context", err)
			}
		}
		cancel()
	}
	late := s.Publish(message("a", 1)) // in the pass in whose middle the response comes
	close(release)
	if err := late.Wait(t.Context()); !errors.Is(err, errNotSent) || e.count() != 1 {
		t.Errorf("Wait() = %v after %d requests, want %v and 1", err, e.count(), errNotSent)
	}
	pgtest.Eventually(t, 10*time.Second, "the key opens", func() bool { return errors.Join(pass(t.Context(), s, message("a", 2))...) == nil })
	done, cancel := context.WithCancel(t.Context())
	r := s.Publish(message("b", 1))
	<-r.(*receipt).done
	if cancel(); r.Wait(done) != nil {
		t.Error("a response that has come does not count")
	}
	s.Publish(message("c", 1)) // nobody waits
	s.stop()
	if diff := cmp.Diff(map[string][]string{"a": {"1", "2"}, "b": {"1"}, "c": {"1"}}, e.got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Stop ends requests that have no response, and leaves no connection, also of HTTP/2.
func TestSinkStops(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.fault.Store(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	server, open := httptest.NewUnstartedServer(e), atomic.Int64{}
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		open.Add(map[http.ConnState]int64{http.StateNew: 1, http.StateClosed: -1}[state])
	}
	server.StartTLS()
	defer server.Close()
	s := newSink(server.URL+"/", make([]byte, 24))
	s.client.Transport.(*http.Transport).TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
	r, start := s.Publish(message("a", 1)), time.Now()
	s.stop()
	if err := r.Wait(t.Context()); !errors.Is(err, context.Canceled) || time.Since(start) > 5*time.Second {
		t.Errorf("Wait() = %v after %s, want the end of the request", err, time.Since(start))
	}
	pgtest.Eventually(t, 10*time.Second, "no connection is open", func() bool { return open.Load() == 0 })
}

// The commands that publish refuse settings that are wrong, without their values.
func TestSettingsAreRefused(t *testing.T) {
	t.Parallel()
	short := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23))
	for _, tt := range []struct{ url, secret, want string }{
		{"https://example.com/in", secret, ""}, {"http://localhost:8080", secret, ""}, {"http://[::1]/", secret, ""}, {"http://127.0.0.1/", secret, ""},
		{"http://example.com/s3cret", secret, "HTTP_SINK_URL"}, {"", secret, "HTTP_SINK_URL"}, {"ftp://localhost/s3cret", secret, "HTTP_SINK_URL"},
		{"https:///s3cret", secret, "HTTP_SINK_URL"}, {"http://localhost.example.com/", secret, "HTTP_SINK_URL"}, {"https://a b/s3cret", secret, "HTTP_SINK_URL"},
		{"https://example.com", "", "HTTP_SINK_SECRET"}, {"https://example.com", short, "HTTP_SINK_SECRET"},
		{"https://example.com", "whsec_s3cret!", "HTTP_SINK_SECRET"}, {"https://example.com", strings.TrimPrefix(secret, "whsec_"), "HTTP_SINK_SECRET"},
	} {
		for _, command := range []string{"serve", "drain", "relay-http", "migrate"} {
			p := app.Program{Options: []app.Option{Option()}}
			err := p.Validate(command, []string{"DATABASE_URL=postgres://x", "AUTH=off", "BROKER=http", "HTTP_SINK_URL=" + tt.url, "HTTP_SINK_SECRET=" + tt.secret})
			if wrong := tt.want != "" && command != "migrate"; wrong != (err != nil) || wrong && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret")) {
				t.Errorf("%s with %q and %q = %v, want %q", command, tt.url, tt.secret, err, tt.want)
			}
		}
	}
}
