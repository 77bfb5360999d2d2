package port

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/cors"
	"google.golang.org/grpc/status"
)

// withCORS allows REST calls from pages of the given origins, and rejects requests of
// other pages. Browser credentials such as cookies are not allowed, because tokens are
// sent in Authorization.
func withCORS(hosts, origins []string, next http.Handler) http.Handler {
	next = RefusePages(hosts, origins, next)
	if len(origins) == 0 {
		return next
	}
	return letIn(origins, next)
}

// RefusePages rejects requests that pages of other origins can send without a
// preflight, such as forms. Pages of the given origins may send them; "*": of all.
//
// With hosts it protects a port that authenticates nobody. There other pages cannot
// send any request, except to open a document, and the Host of a request must be
// allowed; see Config.Hosts.
func RefusePages(hosts, origins []string, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	for _, origin := range origins {
		_ = protection.AddTrustedOrigin(origin) // validated by CheckOrigin
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case len(hosts) > 0 && !allowed(hosts, r.Host):
			refuse(w, r, newStatus(reasonDenied, "nobody is authenticated here, so the host %q may not be used: call localhost or an IP address, or add the host to ALLOWED_HOSTS", r.Host))
		case !slices.Contains(origins, "*") && protection.Check(asWrite(r, len(hosts) > 0)) != nil:
			refuse(w, r, newStatus(reasonDenied, "a page of this origin may not call"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// allowed reports whether a Host header is an IP address, a name of this machine or one
// of hosts. An IP address cannot be a name that a foreign page has.
func allowed(hosts []string, header string) bool {
	host := strings.ToLower(strings.TrimSuffix((&url.URL{Host: header}).Hostname(), "."))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(hosts, func(name string) bool { return name == "*" || strings.EqualFold(name, host) })
}

// asWrite returns r for http.CrossOriginProtection, which lets every GET pass. If reads
// are refused, too, it returns a request that writes, unless the browser opens a
// document: no page can read that.
func asWrite(r *http.Request, reads bool) *http.Request {
	if !reads || r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return r
	}
	probe := r.WithContext(r.Context())
	probe.Method = http.MethodPost
	return probe
}

// refuse rejects a request before it becomes a call.
func refuse(w http.ResponseWriter, r *http.Request, st *status.Status) {
	if isGRPC(r) {
		refuseGRPC(w, st)
		return
	}
	writeError(w, st, httpStatus(st))
}

// letIn adds the CORS headers that allow pages of the given origins.
func letIn(origins []string, next http.Handler) http.Handler {
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete},
		AllowedHeaders: []string{"Authorization", "Content-Type", "If-Match", "If-None-Match", "Last-Event-ID", "X-Request-Id", "traceparent", "tracestate"},
		ExposedHeaders: []string{"ETag", "Retry-After"},
		MaxAge:         int((2 * time.Hour).Seconds()), // the maximum in Chromium
	}).Handler(next)
}

// CheckOrigin returns an error if origin is not valid for Config.CORSOrigins.
func CheckOrigin(origin string) error {
	if origin == "*" {
		return nil
	}
	u, err := url.Parse(origin)
	if err != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) || u.Host == "" || origin != u.Scheme+"://"+u.Host {
		return fmt.Errorf("%q is no origin: it must be scheme://host or scheme://host:port, such as https://app.example.com, without a path, or * for all", origin)
	}
	return nil
}

// CheckHost returns an error if host is not valid for Config.Hosts.
func CheckHost(host string) error {
	u, err := url.Parse("//" + host)
	_, notIP := netip.ParseAddr(host)
	if host == "*" || notIP == nil || err == nil && host != "" && u.Hostname() == host && !strings.Contains(host, "*") && !strings.HasSuffix(host, ".") {
		return nil
	}
	return fmt.Errorf("%q is no host: it must be a name such as api.internal, without a scheme and a port, or * for any", host)
}
