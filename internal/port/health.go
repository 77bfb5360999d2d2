package port

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// handleLive reports whether this process still works, or should be restarted.
func (s *Server) handleLive(w http.ResponseWriter, r *http.Request) {
	if err := s.deps.Live(); err != nil {
		s.deps.Log.ErrorContext(r.Context(), "server: stuck", "err", err)
		writeHealth(w, http.StatusServiceUnavailable, map[string]string{"status": "stuck"})
		return
	}
	writeHealth(w, http.StatusOK, map[string]string{"status": "live"})
}

// handleReady reports whether new requests should come here, and the state of
// each side.
func (s *Server) handleReady(w http.ResponseWriter, r *http.Request) {
	if s.draining.Err() != nil {
		writeHealth(w, http.StatusServiceUnavailable, map[string]string{"status": "draining"})
		return
	}
	sides, ready := s.checkSides(context.WithoutCancel(r.Context())) // a client that disconnects must not make a side look unavailable
	code, body := http.StatusOK, map[string]string{"status": "ready"}
	if !ready {
		code, body["status"] = http.StatusServiceUnavailable, "not ready"
	}
	for side, err := range sides {
		body[side] = "ready"
		if err != nil {
			body[side] = "unavailable"
			s.deps.Log.WarnContext(r.Context(), "server: not ready", "side", side, "err", err)
		}
	}
	writeHealth(w, code, body)
}

func writeHealth(w http.ResponseWriter, code int, body map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the only error is that the client has left
}

// checkSides returns the error of each side, and whether new requests should come here:
// at least one side works, or there is none. It updates grpc.health.v1.
func (s *Server) checkSides(ctx context.Context) (sides map[string]error, ready bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.checking.Lock() // otherwise an older result could replace a newer one
	defer s.checking.Unlock()
	sides, ready = make(map[string]error), len(s.deps.Sides) == 0
	var mu sync.Mutex
	var checks sync.WaitGroup
	for side, check := range s.deps.Sides {
		checks.Go(func() {
			err := check(ctx)
			mu.Lock()
			defer mu.Unlock()
			sides[side], ready = err, ready || err == nil
		})
	}
	checks.Wait()
	s.setServing("", ready)
	for _, service := range s.deps.Services {
		if service.Handler != nil {
			s.setServing(service.Desc.ServiceName, sides[service.Side] == nil)
		}
	}
	return sides, ready
}

// setServing sets the status of a service in grpc.health.v1, until the server stops.
func (s *Server) setServing(service string, yes bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if yes {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, status)
}

// watchSides checks the sides every few seconds until the server stops, for clients that
// watch grpc.health.v1.
func (s *Server) watchSides() {
	for s.draining.Err() == nil {
		s.checkSides(s.draining)
		select {
		case <-s.draining.Done():
		case <-time.After(5 * time.Second):
		}
	}
}
