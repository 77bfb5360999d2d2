package port

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/status"
)

// RefusePages rejects requests that pages of other origins can send without a
// preflight, such as forms.
//
// With hosts it protects a port that authenticates nobody. There other pages cannot
// send any request, except to open a document, and the Host of a request must be
// allowed; see Config.Hosts.
func RefusePages(hosts []string, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case len(hosts) > 0 && !allowed(hosts, r.Host):
			refuse(w, r, newStatus(reasonDenied, "nobody is authenticated here, so the host %q may not be used: call localhost or an IP address, or add the host to ALLOWED_HOSTS", r.Host))
		case protection.Check(asWrite(r, len(hosts) > 0)) != nil:
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

// CheckHost returns an error if host is not valid for Config.Hosts.
func CheckHost(host string) error {
	u, err := url.Parse("//" + host)
	_, notIP := netip.ParseAddr(host)
	if host == "*" || notIP == nil || err == nil && host != "" && u.Hostname() == host && !strings.Contains(host, "*") && !strings.HasSuffix(host, ".") {
		return nil
	}
	return fmt.Errorf("%q is no host: it must be a name such as api.internal, without a scheme and a port, or * for any", host)
}
