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

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
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

// maxToken is the largest size in bytes of a token. Tokens of Google have about
// 1 KB.
const maxToken = 8 << 10

// GateConfig has the settings of a Gate.
type GateConfig struct {
	// Checker checks callers. Nil: the gate only limits rates, because Cloud Run's
	// IAM has already checked the caller.
	Checker Checker
	// CallerRate is how many calls per second each caller may make. 0: no
	// limit.
	CallerRate int
	// CallerBurst is how many calls a caller may make at once. Default: 2 ×
	// CallerRate.
	CallerBurst int
	// Callers is how many callers are kept in memory. Beyond that the one whose
	// last call is the oldest is dropped. Default: 10,000.
	Callers int
	// Proxies is how many proxies in front of this process append their
	// client's address to X-Forwarded-For. On Cloud Run it is 1, and 2 with a
	// load balancer in front of it.
	Proxies int
	// Log receives the reasons of rejected calls. Nil: slog.Default().
	Log *slog.Logger
}

// Gate decides whether calls may continue. It is safe for concurrent use.
type Gate struct {
	cfg     GateConfig
	limiter *limiter // nil: no rate limit
}

// NewGate returns a Gate.
func NewGate(cfg GateConfig) *Gate {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	g := &Gate{cfg: cfg}
	if cfg.CallerRate > 0 {
		g.limiter = newLimiter(cfg.CallerRate, cmp.Or(cfg.CallerBurst, 2*cfg.CallerRate), cmp.Or(cfg.Callers, 10_000))
	}
	return g
}

// Admit returns nil if a call of fullMethod, /package.Service/Method, may
// continue; ctx has its metadata. Otherwise it returns the status for the
// caller: Unauthenticated, PermissionDenied, ResourceExhausted with
// google.rpc.RetryInfo, or Unavailable if the Checker is. The string is
// the caller's name for the log, or "" if no Checker identified the
// caller. It is also returned for a rejected call.
func (g *Gate) Admit(ctx context.Context, fullMethod string) (verified string, err error) {
	method := strings.TrimPrefix(fullMethod, "/")
	name := "address " + g.Address(ctx)
	switch {
	case IsOpen(method):
	case g.cfg.Checker == nil:
		if caller := Vouched(ctx); caller.Subject != "" {
			name = "sub " + caller.Subject
		}
	default:
		caller, err := g.identify(ctx)
		if errors.Is(err, ErrUnavailable) {
			return "", g.refuse(ctx, errUnavailable, method, name, err.Error())
		}
		if err != nil {
			return "", g.refuse(ctx, errUnauthenticated, method, name, err.Error())
		}
		name, verified = "sub "+caller.Subject, caller.String()
		if !g.cfg.Checker.Allows(caller, method) {
			return verified, g.refuse(ctx, errDenied, method, name, "no rule of the policy allows it; email "+caller.Email)
		}
	}
	if g.limiter == nil {
		return verified, nil
	}
	if after := g.limiter.take(name); after > 0 {
		return verified, g.refuse(ctx, errExhausted(after), method, name, "calls too often")
	}
	return verified, nil
}

// identify returns the caller of a call. It uses the token in headerOwn, or, if
// there is none, the one in headerCloudRun if that still has its signature.
func (g *Gate) identify(ctx context.Context) (Caller, error) {
	token, err := bearer(ctx, headerOwn)
	if err == nil && token == "" {
		token, err = bearer(ctx, headerCloudRun)
	}
	if err != nil {
		return Caller{}, err
	}
	if token == "" {
		return Caller{}, errors.New("the call has no token")
	}
	if strings.HasSuffix(token, ".SIGNATURE_REMOVED_BY_GOOGLE") {
		return Caller{}, errors.New("the token has no signature any more, because Cloud Run has read it: " +
			"send the token for Cloud Run as X-Serverless-Authorization, and the one for the service as Authorization")
	}
	return g.cfg.Checker.Verify(ctx, token)
}

// bearer returns the bearer token in a header, of at most maxToken bytes, or "" without
// that header.
func bearer(ctx context.Context, header string) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, header)
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", errors.New("the call has several headers " + header)
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "bearer") || token == "" {
		return "", errors.New(header + " has no bearer token")
	}
	if len(token) > maxToken {
		return "", fmt.Errorf("the token has %d bytes, at most %d are read", len(token), maxToken)
	}
	return token, nil
}

// Vouched returns the caller of the token that Cloud Run's IAM has checked, or the
// zero Caller. The token is not verified here: without Cloud Run in front, a caller
// can write any name into it. So it is for counting and for records, never for a
// decision.
func Vouched(ctx context.Context) Caller {
	token, err := bearer(ctx, headerCloudRun)
	if err == nil && token == "" {
		token, err = bearer(ctx, headerOwn)
	}
	parts := strings.Split(token, ".") // header, claims, signature: RFC 7519
	if err != nil || len(parts) != 3 {
		return Caller{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims Claims
	if err != nil || json.Unmarshal(text, &claims) != nil || len(claims.Subject) > 255 {
		return Caller{}
	}
	if len(claims.Email) > 255 { // the subject names the caller, too
		claims.Email = ""
	}
	return claims.Caller()
}

// Address returns the address of the caller, as reported by the trusted
// proxies, or "unknown". An IPv6 address is reduced to its /64, because one
// caller can use all of it.
func (g *Gate) Address(ctx context.Context) string {
	var hops []string
	for _, value := range metadata.ValueFromIncomingContext(ctx, "x-forwarded-for") {
		for hop := range strings.SplitSeq(value, ",") {
			hops = append(hops, strings.TrimSpace(hop))
		}
	}
	// The gateway has already appended the address of a REST call.
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil && p.Addr.Network() != "bufconn" {
		host := p.Addr.String()
		if port, err := netip.ParseAddrPort(host); err == nil {
			host = port.Addr().String()
		}
		hops = append(hops, host)
	}
	if len(hops) == 0 {
		return "unknown"
	}
	ip, err := netip.ParseAddr(hops[max(0, len(hops)-1-g.cfg.Proxies)])
	if err != nil {
		return "unknown"
	}
	if ip = ip.Unmap(); ip.Is6() {
		return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
	}
	return ip.String()
}

// refuse logs the reason, and returns the status for the caller.
func (g *Gate) refuse(ctx context.Context, refusal error, method, caller, reason string) error {
	g.cfg.Log.WarnContext(ctx, "auth: call refused", "method", method, "caller", caller, "reason", reason)
	return refusal
}
