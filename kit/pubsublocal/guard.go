package pubsublocal

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// guard refuses requests that a page of another site makes in a browser. Nobody is authenticated, so such a page could
// use the server of its visitor.
type guard struct {
	hosts       []string // Config.AllowedHosts
	crossOrigin *http.CrossOriginProtection
}

func newGuard(allowedHosts []string) (*guard, error) {
	for _, host := range allowedHosts {
		if host == "" || strings.ContainsAny(host, ":/") {
			return nil, fmt.Errorf("allowed hosts: %q must be a host name without a port, or *", host)
		}
	}
	return &guard{hosts: allowedHosts, crossOrigin: http.NewCrossOriginProtection()}, nil
}

// checkHost refuses a host name that the server does not know. A foreign site can give its own name an address of
// this machine (DNS rebinding). It cannot do that to an IP address. HTTP/1.0 needs no host.
func (g *guard) checkHost(host string) error {
	host = strings.TrimSuffix(hostname(host), ".")
	_, err := netip.ParseAddr(host)
	if err == nil || host == "" || isLoopback(host) || slices.ContainsFunc(g.hosts, func(allowed string) bool {
		return allowed == "*" || strings.EqualFold(allowed, host)
	}) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied,
		"The host %q is not accepted. Connect to localhost or to an IP address, or name it in --allowed-hosts of cmd/dev.", host)
}

// tap checks the :authority of a call over HTTP/2. It is a tap.ServerInHandle.
func (g *guard) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	return ctx, g.checkHost(strings.Join(info.Header.Get(":authority"), ""))
}

// protect checks the host and the origin of a request. Pages on the loopback interface may use the server (CORS).
func (g *guard) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.checkHost(r.Host); err != nil {
			writeError(w, codes.PermissionDenied, status.Convert(err).Message(), nil)
			return
		}
		origin := r.Header.Get("Origin")
		page, err := url.Parse(origin)
		switch {
		case err == nil && (page.Scheme == "http" || page.Scheme == "https") && isLoopback(page.Hostname()):
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Vary", "Origin")
			if wanted := r.Header.Get("Access-Control-Request-Method"); r.Method == http.MethodOptions && wanted != "" { // preflight
				w.Header().Set("Access-Control-Allow-Methods", wanted)
				w.Header().Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
				w.WriteHeader(http.StatusNoContent)
				return
			}
		case err != nil || origin != "" && page.Host != r.Host || g.crossOrigin.Check(r) != nil:
			writeError(w, codes.PermissionDenied, fmt.Sprintf(
				"The request comes from a page of another site (Origin: %q). Only pages on localhost may use this server.", origin), nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostname removes the port and the brackets of an IPv6 address.
func hostname(hostPort string) string { return (&url.URL{Host: hostPort}).Hostname() }

// isLoopback reports whether a host always is this machine: RFC 6761, section 6.3.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	host = strings.ToLower(host)
	return err == nil && addr.IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
