// Package cors serves browsers: pages of the origins in SERVER_CORS_ORIGINS may call over REST
// (https://fetch.spec.whatwg.org/#http-cors-protocol), and a watch is Server-Sent Events for
// EventSource.
package cors

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/rs/cors"

	"example.com/videocatalog/internal/app"
)

type settings struct {
	Origins []string `env:"SERVER_CORS_ORIGINS" help:"origins, separated by commas, whose pages may call over REST from a browser, such as https://app.example.com; *: all; default: none"`
}

// Option returns the option.
func Option() app.Option {
	s := new(settings)
	return app.Option{Name: "cors", Settings: s, Check: s.check, Start: s.start}
}

// check returns the mistakes in the settings.
func (s *settings) check(run app.Selection) []error {
	if run.Subcommand != "serve" {
		return nil
	}
	var errs []error
	for _, origin := range s.Origins {
		if err := checkOrigin(origin); err != nil {
			errs = append(errs, fmt.Errorf("SERVER_CORS_ORIGINS: %w", err))
		}
	}
	return errs
}

func (s *settings) start(_ context.Context, process *app.Process) error {
	process.Wrap(withEvents)
	if len(s.Origins) > 0 {
		process.Wrap(func(next http.Handler) http.Handler { return letIn(s.Origins, next) })
	}
	return nil
}

// letIn adds the CORS headers that allow REST calls from pages of the given origins. Browser
// credentials such as cookies are not allowed, because tokens are sent in Authorization.
func letIn(origins []string, next http.Handler) http.Handler {
	c := cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete},
		AllowedHeaders: []string{"Authorization", "Content-Type", "Last-Event-ID", "X-Request-Id", "traceparent", "tracestate"},
		ExposedHeaders: []string{"Retry-After"},
		MaxAge:         int((2 * time.Hour).Seconds()), // the maximum in Chromium
	})
	return c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.OriginAllowed(r) {
			// The port refuses requests of foreign pages, which it recognizes by these
			// headers.
			r.Header.Del("Origin")
			r.Header.Del("Sec-Fetch-Site")
		}
		next.ServeHTTP(w, r)
	}))
}

// isOrigin matches what a browser sends in Origin. isLonger matches a port that it leaves out.
var (
	isOrigin = regexp.MustCompile(`^https?://([\w.-]+|\[[\da-fA-F:]+\])(:\d+)?$`)
	isLonger = regexp.MustCompile(`^http:.*:80$|^https:.*:443$`)
)

// checkOrigin returns an error if origin is not valid for SERVER_CORS_ORIGINS.
func checkOrigin(origin string) error {
	if origin != "*" && (!isOrigin.MatchString(origin) || isLonger.MatchString(origin)) {
		return fmt.Errorf("%q is no origin: it must be scheme://host or scheme://host:port, such as https://app.example.com, without a path or the usual port, or * for all", origin)
	}
	return nil
}
