package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"example.com/videocatalog/api"
)

// readyTimeout is how long the readiness of the caller may take.
const readyTimeout = time.Second

// handle is the shared port: gRPC by its content type, and by path what
// operators ask for; the rest is REST.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		s.grpc.ServeHTTP(w, r)
	case r.URL.Path == "/health/live":
		writeHealth(w, http.StatusOK, "live")
	case r.URL.Path == "/health/ready":
		s.handleReady(w, r)
	case r.URL.Path == "/openapi.json":
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(api.OpenAPI) // the client is gone
	default:
		s.gateway.ServeHTTP(w, r)
	}
}

// handleReady answers whether new requests should come here.
func (s *Server) handleReady(w http.ResponseWriter, r *http.Request) {
	if s.draining.Err() != nil {
		writeHealth(w, http.StatusServiceUnavailable, "draining")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := s.ready(ctx); err != nil {
		s.log.WarnContext(ctx, "server: not ready", "err", err)
		writeHealth(w, http.StatusServiceUnavailable, "not ready")
		return
	}
	writeHealth(w, http.StatusOK, "ready")
}

func writeHealth(w http.ResponseWriter, code int, status string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"status":%q}`+"\n", status) // the client is gone
}
