package port

import (
	"encoding/base64"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// RefusePages rejects requests that pages of other origins can send without a
// preflight, such as forms. With hosts it also rejects a request whose Host is
// not allowed; see Config.Hosts.
func RefusePages(hosts []string, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case len(hosts) > 0 && !allowed(hosts, r.Host):
			refuse(w, r, status.Errorf(codes.PermissionDenied, "nobody is authenticated here, so the host %q may not be used: call localhost or an IP address, or add the host to ALLOWED_HOSTS", r.Host))
		case protection.Check(r) != nil:
			refuse(w, r, status.Error(codes.PermissionDenied, "a page of this origin may not call"))
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

// refuse rejects a request before any interceptor runs. Over gRPC the response has only
// trailers (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if !isGRPC(r) {
		writeError(w, err)
		return
	}
	st := status.Convert(toStatus(err))
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	w.Header().Set("Grpc-Message", st.Message())
	details, _ := proto.Marshal(st.Proto()) // cannot fail for what toStatus makes
	w.Header().Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	w.WriteHeader(http.StatusOK)
}
