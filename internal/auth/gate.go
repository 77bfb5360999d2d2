package auth

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Headers with a token. Cloud Run's own check reads headerCloudRun if present,
// else headerOwn. It removes the signature from the token that it read, and
// leaves the other one unchanged
// (https://cloud.google.com/run/docs/authenticating/service-to-service,
// https://cloud.google.com/run/docs/troubleshooting#signature-removed).
const (
	headerOwn      = "authorization"
	headerCloudRun = "x-serverless-authorization"
)

const (
	maxToken   = 8 << 10 // bytes of a token; tokens of Google have about 1 KB
	maxCallers = 10_000  // in memory; beyond that the rates of all begin again
)

var errExhausted = status.Error(codes.ResourceExhausted, "too many calls: call again later")

// Gate decides whether calls may continue. It is safe for concurrent use.
type Gate struct {
	Checker Checker // nil: Cloud Run's IAM has already checked the callers // only oidc
	Scope   Scope   // nil: the context of a call stays as it is // only tenancy
	// CallerRate is how many calls per second each caller may make, and twice as many at
	// once. 0: no limit.
	CallerRate int
	// Proxies is how many proxies in front of this process append their
	// client's address to X-Forwarded-For. On Cloud Run it is 1, and 2 with a
	// load balancer in front of it.
	Proxies int
	Log     *slog.Logger // receives the reasons of rejected calls

	mu      sync.Mutex
	callers map[string]*rate.Limiter // guarded by mu
}

// Admit returns the context of a call of fullMethod, /package.Service/Method,
// with the name of its caller if somebody identified the caller: see
// [CallerOf]. ctx has the metadata of the call. The error is the status for a
// caller whose call may not continue.
func (g *Gate) Admit(ctx context.Context, fullMethod string) (context.Context, error) {
	method, name := strings.TrimPrefix(fullMethod, "/"), "address "+Address(ctx, g.Proxies)
	if !IsOpen(method) {
		caller := vouched(ctx)
		// only oidc: begin
		if g.Checker != nil {
			var err error
			if ctx, caller, err = g.check(ctx, method, name); err != nil {
				return ctx, err
			}
		}
		// only oidc: end
		if caller != (Caller{}) {
			name, ctx = "sub "+caller.Subject, WithCaller(ctx, caller.String())
		}
	}
	if !g.withinRate(name) {
		return ctx, g.refuse(ctx, errExhausted, method, name, "calls too often")
	}
	return ctx, nil
}

// bearer returns the bearer token in the first of the headers that the call has, of at most
// maxToken bytes, or "" without any.
func bearer(ctx context.Context, headers ...string) (string, error) {
	for _, header := range headers {
		values := metadata.ValueFromIncomingContext(ctx, header)
		if len(values) == 0 {
			continue
		}
		scheme, token, _ := strings.Cut(values[0], " ")
		switch {
		case len(values) > 1:
			return "", errors.New("the call has several headers " + header)
		case !strings.EqualFold(scheme, "bearer") || token == "":
			return "", errors.New(header + " has no bearer token")
		case len(token) > maxToken:
			return "", fmt.Errorf("the token has %d bytes, at most %d are read", len(token), maxToken)
		}
		return token, nil
	}
	return "", nil
}

// vouched returns the caller of the token that Cloud Run's IAM has checked, or the
// zero Caller. The token is not verified here: without Cloud Run in front, a caller
// can write any name into it. So it is for counting and for records, never for a
// decision.
func vouched(ctx context.Context) Caller {
	token, err := bearer(ctx, headerCloudRun, headerOwn)
	parts := strings.Split(token, ".") // header, claims, signature: RFC 7519
	if err != nil || len(parts) != 3 {
		return Caller{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims Claims
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Subject == "" || len(claims.Subject) > 255 || len(claims.Email) > 255 {
		return Caller{}
	}
	return claims.Caller()
}

// withinRate counts a call, and reports whether its caller may make it. A rejected call is not
// counted.
func (g *Gate) withinRate(caller string) bool {
	if g.CallerRate == 0 {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.callers == nil || len(g.callers) > maxCallers {
		g.callers = make(map[string]*rate.Limiter)
	}
	if g.callers[caller] == nil {
		g.callers[caller] = rate.NewLimiter(rate.Limit(g.CallerRate), 2*g.CallerRate)
	}
	return g.callers[caller].Allow()
}

// Address returns the address of the caller, as reported by the trusted proxies. If they
// report none, it is the address of the connection, or "unknown" without one. An IPv6
// address is reduced to its /64, because one caller can use all of it.
func Address(ctx context.Context, proxies int) string {
	forwarded := strings.Join(metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"), ",")
	hops := strings.FieldsFunc(forwarded, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	// The gateway has already appended the address of a REST call.
	if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() != "bufconn" {
		hops = append(hops, p.Addr.String())
	}
	var ip netip.Addr
	if last := len(hops) - 1; last >= 0 {
		ip = cmp.Or(parseAddress(hops[max(0, last-proxies)]), parseAddress(hops[last]))
	}
	switch {
	case ip.Is6():
		return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
	case ip.IsValid():
		return ip.String()
	}
	return "unknown"
}

// parseAddress returns an address, which may have a port: some proxies report it. The zero Addr
// is for any other text.
func parseAddress(text string) netip.Addr {
	if with, err := netip.ParseAddrPort(text); err == nil {
		return with.Addr().Unmap()
	}
	ip, _ := netip.ParseAddr(strings.Trim(text, "[]"))
	return ip.Unmap()
}

// refuse logs the reason, and returns the status for the caller.
func (g *Gate) refuse(ctx context.Context, refusal error, method, caller, reason string) error {
	g.Log.WarnContext(ctx, "auth: call refused", "method", method, "caller", caller, "reason", reason)
	return refusal
}
