package auth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	getBook     = "/library.v1.BookService/GetBook"
	createBook  = "/library.v1.BookService/CreateBook"
	checkHealth = "/grpc.health.v1.Health/Check"
)

// gated is a gate with its log.
type gated struct {
	*Gate
	mu  sync.Mutex
	log bytes.Buffer
}

func (g *gated) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.log.Write(p)
}

func (g *gated) logged() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.log.String()
}

func newGate(t *testing.T, gate *Gate) *gated {
	t.Helper()
	g := &gated{Gate: gate}
	g.Log = slog.New(slog.NewTextHandler(g, nil))
	return g
}

// checker accepts the tokens that it was given, and allows some methods to every caller.
type checker struct {
	callers map[string]Caller // by token
	methods []string          // nil: all
	err     error             // of every token; nil: only of unknown ones
}

func (c checker) Verify(_ context.Context, token string) (Caller, error) {
	caller, ok := c.callers[token]
	switch {
	case c.err != nil:
		return Caller{}, c.err
	case !ok:
		return Caller{}, errors.New("the token is expired")
	}
	return caller, nil
}

func (c checker) Allows(_ Caller, method string) bool {
	return c.methods == nil || slices.Contains(c.methods, method)
}

// token returns a token with claims and without a signature.
func token(t *testing.T, subject string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"sub": subject, "email": "web@shop.example.com", "email_verified": true})
	if err != nil {
		t.Fatal(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(text) + ".SIGNATURE_REMOVED_BY_GOOGLE"
}

// call returns the context of a call with headers, from an address.
func call(ctx context.Context, from string, header ...string) context.Context {
	host, port, _ := net.SplitHostPort(from)
	var n int
	_, _ = fmt.Sscan(port, &n)
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(host), Port: n}})
	return metadata.NewIncomingContext(ctx, metadata.Pairs(header...))
}

const somewhere = "192.0.2.1:40000"

// A caller with a valid token may call the methods that the policy allows. The error of
// any other call has no reason. The log has the reason, without the token.
func TestGateAdmitsByTokenAndPolicy(t *testing.T) {
	t.Parallel()
	const good, expired = "eyJnb29kIjp0cnVlfQ.eyJhdWQiOiJodHRwczovL2Jvb2tzIn0.c2lnbmF0dXJl", "expired"
	stripped := token(t, "123")
	g := newGate(t, &Gate{Checker: checker{
		callers: map[string]Caller{good: {Subject: "123", Email: "web@shop.example.com"}}, methods: []string{"library.v1.BookService/GetBook"},
	}})
	for name, tt := range map[string]struct {
		method string
		header []string
		code   codes.Code
		reason string // in the log
	}{
		"good":                     {getBook, []string{"authorization", "Bearer " + good}, codes.OK, ""},
		"scheme in lower case":     {getBook, []string{"authorization", "bearer " + good}, codes.OK, ""},
		"another method":           {createBook, []string{"authorization", "Bearer " + good}, codes.PermissionDenied, "no rule"},
		"a method that is not":     {"/library.v1.BookService/Nothing", []string{"authorization", "Bearer " + good}, codes.PermissionDenied, "no rule"},
		"no token":                 {getBook, nil, codes.Unauthenticated, "no token"},
		"huge":                     {getBook, []string{"authorization", "Bearer " + strings.Repeat("x", maxToken+1)}, codes.Unauthenticated, "8193 bytes"},
		"expired":                  {getBook, []string{"authorization", "Bearer " + expired}, codes.Unauthenticated, "expired"},
		"password":                 {getBook, []string{"authorization", "Basic eDp5"}, codes.Unauthenticated, "no bearer"},
		"empty":                    {getBook, []string{"authorization", "Bearer "}, codes.Unauthenticated, "no bearer"},
		"two":                      {getBook, []string{"authorization", "Bearer " + expired, "authorization", "Bearer " + good}, codes.Unauthenticated, "several"},
		"health":                   {checkHealth, nil, codes.OK, ""},
		"health with a bad token":  {checkHealth, []string{"authorization", "Bearer x"}, codes.OK, ""},
		"for Cloud Run":            {getBook, []string{"x-serverless-authorization", "Bearer " + good}, codes.OK, ""},
		"for both":                 {getBook, []string{"authorization", "Bearer " + good, "x-serverless-authorization", "Bearer " + stripped}, codes.OK, ""},
		"ours counts":              {getBook, []string{"authorization", "Bearer " + expired, "x-serverless-authorization", "Bearer " + good}, codes.Unauthenticated, "expired"},
		"read by Cloud Run":        {getBook, []string{"x-serverless-authorization", "Bearer " + stripped}, codes.Unauthenticated, "X-Serverless-Authorization"},
		"ours read by Cloud Run":   {getBook, []string{"authorization", "Bearer " + stripped}, codes.Unauthenticated, "X-Serverless-Authorization"},
		"forwarded by who it says": {getBook, []string{"x-forwarded-for", "127.0.0.1"}, codes.Unauthenticated, "no token"},
	} {
		before := len(g.logged())
		ctx, err := g.Admit(call(t.Context(), somewhere, tt.header...), tt.method)
		if status.Code(err) != tt.code {
			t.Errorf("%s: Admit() = %v, want %v", name, err, tt.code)
		}
		wantWho := "" // a call with a missing or a bad token has no known caller
		if tt.method != checkHealth && (tt.code == codes.OK || tt.code == codes.PermissionDenied) {
			wantWho = "web@shop.example.com"
		}
		if who := CallerOf(ctx); who != wantWho {
			t.Errorf("%s: Admit() names %q, want %q", name, who, wantWho)
		}
		log := g.logged()[before:]
		if !strings.Contains(log, tt.reason) || (tt.code == codes.OK) != (log == "") {
			t.Errorf("%s: log = %q, want it to contain %q, and nothing about success", name, log, tt.reason)
		}
		if tt.reason != "" && strings.Contains(err.Error(), tt.reason) || strings.Contains(log, good[:40]) {
			t.Errorf("%s: error %q or log %q tell what they must not", name, err, log)
		}
		if st := status.Convert(err); len(st.Details()) != 0 {
			t.Errorf("%s: details %v, want none", name, st.Details())
		}
	}
}

// While the checker cannot identify any caller, the code is Unavailable, so that clients try
// again. It does not say that the credentials are bad.
func TestGateTellsWhenItCannotKnow(t *testing.T) {
	t.Parallel()
	g := newGate(t, &Gate{Checker: checker{err: fmt.Errorf("%w: no keys", ErrUnavailable)}})
	if _, err := g.Admit(call(t.Context(), somewhere, "authorization", "Bearer x"), getBook); status.Code(err) != codes.Unavailable {
		t.Errorf("Admit() = %v, want Unavailable", err)
	}
}

// Behind Cloud Run's IAM the token that IAM has checked names the caller. Without a
// token the caller is its address, as the trusted proxies report it.
func TestGateNamesCallersBehindIAM(t *testing.T) {
	t.Parallel()
	a, b := "Bearer "+token(t, "a"), "Bearer "+token(t, "b")
	for name, tt := range map[string]struct {
		proxies int
		from    string
		header  []string
		want    string
	}{
		"token":                     {1, somewhere, []string{"authorization", a}, "sub a"},
		"the one IAM has looked at": {1, somewhere, []string{"authorization", b, "x-serverless-authorization", a}, "sub a"},
		"a token of another form":   {0, somewhere, []string{"authorization", "Bearer x.e30"}, "address 192.0.2.1"},
		"no subject":                {0, somewhere, []string{"authorization", "Bearer e30.e30.e30"}, "address 192.0.2.1"},
		"a subject that is none":    {0, somewhere, []string{"authorization", "Bearer e30.eyJzdWIiOjd9.e30"}, "address 192.0.2.1"},
		"a long subject":            {0, somewhere, []string{"authorization", "Bearer " + token(t, strings.Repeat("x", 256))}, "address 192.0.2.1"},
		"no token":                  {0, somewhere, []string{"authorization", "Bearer " + base64.RawURLEncoding.EncodeToString([]byte("x"))}, "address 192.0.2.1"},
		"nobody is trusted":         {0, somewhere, []string{"x-forwarded-for", "198.51.100.7"}, "address 192.0.2.1"},
		"one proxy":                 {1, somewhere, []string{"x-forwarded-for", "203.0.113.1, 198.51.100.7"}, "address 198.51.100.7"},
		"two proxies":               {2, somewhere, []string{"x-forwarded-for", "203.0.113.1,198.51.100.7", "x-forwarded-for", "192.0.2.77"}, "address 198.51.100.7"},
		"fewer than there should":   {2, somewhere, nil, "address 192.0.2.1"},
		"nonsense":                  {1, somewhere, []string{"x-forwarded-for", "x"}, "address 192.0.2.1"},
		"a port":                    {1, somewhere, []string{"x-forwarded-for", "203.0.113.1, 198.51.100.7:5123"}, "address 198.51.100.7"},
		"a port of IPv6":            {1, somewhere, []string{"x-forwarded-for", "[2001:db8:1:2:3:4:5:6]:5123"}, "address 2001:db8:1:2::/64"},
		"IPv6 in brackets":          {1, somewhere, []string{"x-forwarded-for", "[2001:db8:1:2:3:4:5:6]"}, "address 2001:db8:1:2::/64"},
		"a tab":                     {1, somewhere, []string{"x-forwarded-for", "203.0.113.1,\t198.51.100.7"}, "address 198.51.100.7"},
		"IPv6":                      {0, "[2001:db8:1:2:3:4:5:6]:1", nil, "address 2001:db8:1:2::/64"},
		"IPv4 in IPv6":              {0, "[::ffff:192.0.2.1]:1", nil, "address 192.0.2.1"},
	} {
		g, wantWho := newGate(t, &Gate{CallerRate: 1, Proxies: tt.proxies}), ""
		if strings.HasPrefix(tt.want, "sub ") {
			wantWho = "web@shop.example.com"
		}
		if ctx, err := g.Admit(call(t.Context(), tt.from, tt.header...), getBook); err != nil || CallerOf(ctx) != wantWho {
			t.Errorf("%s: Admit() = %q, %v, want %q, whom Cloud Run has checked", name, CallerOf(ctx), err, wantWho)
		}
		var got []string
		for caller := range g.callers {
			got = append(got, caller)
		}
		if len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s: callers = %q, want %q", name, got, tt.want)
		}
	}
}

// A caller may call in a burst and then at the rate. A refused call does not count, and no
// caller uses up the rate of another. The number of callers in memory is bounded.
func TestGateBoundsEachCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, &Gate{CallerRate: 10})
		calls := func(from string, n int) (admitted int) {
			var wait sync.WaitGroup
			var count atomic.Int64
			for range n {
				wait.Go(func() {
					_, err := g.Admit(call(t.Context(), from), getBook)
					if err == nil {
						count.Add(1)
					} else if st := status.Convert(err); st.Code() != codes.ResourceExhausted {
						t.Errorf("Admit() = %v, want ResourceExhausted", err)
					}
				})
			}
			wait.Wait()
			return int(count.Load())
		}
		for _, step := range []struct {
			from  string
			pause time.Duration
			want  int
		}{{somewhere, 0, 20}, {"192.0.2.2:40000", 0, 20}, {somewhere, 100 * time.Millisecond, 1}, {somewhere, time.Hour, 20}} {
			time.Sleep(step.pause)
			if got := calls(step.from, 50); got != step.want {
				t.Errorf("%d calls of %s after %s, want %d", got, step.from, step.pause, step.want)
			}
		}
		for n := range 3 * maxCallers {
			g.withinRate(fmt.Sprint(n))
		}
		if len(g.callers) > maxCallers+1 {
			t.Errorf("%d callers in memory, want at most %d", len(g.callers), maxCallers+1)
		}
	})
}
