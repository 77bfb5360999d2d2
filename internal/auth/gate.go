package auth

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Where a token is. Cloud Run's own check reads headerCloudRun if there is one,
// else headerOwn, and takes the signature out of the one it has read before it
// hands the call on; the other one it leaves alone
// (https://cloud.google.com/run/docs/authenticating/service-to-service,
// https://cloud.google.com/run/docs/troubleshooting#signature-removed).
const (
	headerOwn      = "authorization"
	headerCloudRun = "x-serverless-authorization"
)

// logEvery is how often a refused call is worth a line in the log, after the
// first few. Whoever calls without credentials must not fill it.
const logEvery = time.Second

// GateConfig is what a Gate asks.
type GateConfig struct {
	// Verifier tells who calls, Policy what they may; both, or neither. Neither:
	// Cloud Run's IAM has looked at the caller before, and only calls are counted.
	Verifier *Verifier
	Policy   *Policy
	// CallerRate is how many calls a second each caller may make; 0: any number.
	CallerRate int
	// CallerBurst is how many of them may come at once; default 2 × CallerRate.
	CallerBurst int
	// Callers is how many callers are remembered; default 10,000. Beyond that, the
	// one silent for longest is forgotten.
	Callers int
	// Proxies is how many proxies between a caller and this process add the
	// address they were called from to X-Forwarded-For: 1 on Cloud Run, 2 with a
	// load balancer in front of it.
	Proxies int
	// Log gets why a call was refused; nil: slog.Default().
	Log *slog.Logger
}

// Gate decides whether calls may go on. It is good for any number of calls at a
// time.
type Gate struct {
	cfg     GateConfig
	limiter *limiter // nil: callers have no limit

	mu         sync.Mutex
	logging    rate.Sometimes // guarded by mu
	suppressed int            // guarded by mu; refused calls since the last line of the log
}

// NewGate makes a Gate.
func NewGate(cfg GateConfig) (*Gate, error) {
	if (cfg.Verifier == nil) != (cfg.Policy == nil) {
		return nil, errors.New("a gate must have a verifier and a policy, or neither")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	g := &Gate{cfg: cfg, logging: rate.Sometimes{First: 10, Interval: logEvery}}
	if cfg.CallerRate > 0 {
		g.limiter = newLimiter(cfg.CallerRate, cmp.Or(cfg.CallerBurst, 2*cfg.CallerRate), cmp.Or(cfg.Callers, 10_000))
	}
	return g, nil
}

// Admit returns nil when a call of fullMethod, /package.Service/Method, may go
// on, else the status that its caller gets: Unauthenticated, PermissionDenied,
// ResourceExhausted with google.rpc.RetryInfo, or Unavailable when the issuer
// has not told its keys yet. The metadata of the call is in ctx. It also returns
// who calls, for a log, if the Verifier knows, whether or not the call may go on.
func (g *Gate) Admit(ctx context.Context, fullMethod string) (verified string, err error) {
	method := strings.TrimPrefix(fullMethod, "/")
	name := "address " + g.Address(ctx)
	switch {
	case strings.HasPrefix(method, open):
	case g.cfg.Verifier == nil:
		if subject := vouched(ctx); subject != "" {
			name = "sub " + subject
		}
	default:
		caller, err := g.identify(ctx)
		if errors.Is(err, errNoKeys) {
			return "", g.refuse(ctx, errUnavailable, method, name, err.Error())
		}
		if err != nil {
			return "", g.refuse(ctx, errUnauthenticated, method, name, err.Error())
		}
		name, verified = "sub "+caller.Subject, caller.String()
		if !g.cfg.Policy.Allows(caller, method) {
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

// identify returns who calls. A token in headerOwn is ours; one in
// headerCloudRun will do if there is none, and if its signature is still there.
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
	return g.cfg.Verifier.Verify(ctx, token)
}

// bearer returns the token in a header, or nothing if there is no such header.
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
	return token, nil
}

// vouched returns the subject of the token that Cloud Run's IAM has looked at,
// or nothing. Nobody checks here: it names a caller for the limit, and grants
// nothing.
func vouched(ctx context.Context) string {
	token, err := bearer(ctx, headerCloudRun)
	if err == nil && token == "" {
		token, err = bearer(ctx, headerOwn)
	}
	if err != nil || token == "" || len(token) > maxToken {
		return ""
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	var c jwt.Claims
	if err != nil || parsed.UnsafeClaimsWithoutVerification(&c) != nil || len(c.Subject) > 255 {
		return ""
	}
	return c.Subject
}

// Address returns where a call comes from, as far as those can tell who are
// trusted. Callers with IPv6 have a whole /64 to choose from, so that is one.
func (g *Gate) Address(ctx context.Context) string {
	var hops []string
	for _, value := range metadata.ValueFromIncomingContext(ctx, "x-forwarded-for") {
		for hop := range strings.SplitSeq(value, ",") {
			hops = append(hops, strings.TrimSpace(hop))
		}
	}
	// A call that came over REST has its address last in the list already: the gateway put it there.
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

// refuse logs why, unless there was a line just now, and returns what the
// caller gets to see.
func (g *Gate) refuse(ctx context.Context, answer error, method, caller, reason string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.suppressed++
	g.logging.Do(func() {
		g.cfg.Log.WarnContext(ctx, "auth: call refused", "method", method, "caller", caller, "reason", reason, "not_logged", g.suppressed-1)
		g.suppressed = 0
	})
	return answer
}
