package port

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/rs/cors"
)

// withCORS allows REST calls from pages of the given origins. It also rejects
// requests that other pages can send without a preflight, such as forms.
// Browser credentials such as cookies are not allowed, because tokens are sent
// in Authorization.
func withCORS(origins []string, next http.Handler) http.Handler {
	if slices.Contains(origins, "*") {
		return letIn(origins, next)
	}
	protection := http.NewCrossOriginProtection()
	for _, origin := range origins {
		_ = protection.AddTrustedOrigin(origin) // validated by CheckOrigin
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		st := newStatus(reasonDenied, "a page of this origin may not call")
		writeError(w, st, httpStatus(st))
	}))
	next = protection.Handler(next)
	if len(origins) == 0 {
		return next
	}
	return letIn(origins, next)
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
