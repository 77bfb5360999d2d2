package port

import (
	"context"
	"net/http"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	// readyTimeout is the longest time of one check.
	readyTimeout = time.Second
	// readyInterval is the time between two checks for clients that watch
	// grpc.health.v1.
	readyInterval = 5 * time.Second
)

// checkSides returns the error of each side, and updates grpc.health.v1.
func (s *Server) checkSides(ctx context.Context) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	s.checking.Lock() // otherwise an older result could replace a newer one
	defer s.checking.Unlock()
	var mu sync.Mutex
	errs := make(map[string]error)
	var checks sync.WaitGroup
	for side, check := range s.sides {
		checks.Go(func() {
			err := check(ctx)
			for _, service := range s.services {
				if service.Side == side {
					s.setServing(service.Desc.ServiceName, err == nil)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			errs[side] = err
		})
	}
	checks.Wait()
	s.setServing("", canServe(errs))
	return errs
}

// canServe reports whether new requests should come here: at least one side
// works, or the process has no side. Calls of a side that fails would be
// UNAVAILABLE on every instance.
func canServe(sides map[string]error) bool {
	for _, err := range sides {
		if err == nil {
			return true
		}
	}
	return len(sides) == 0
}

// setServing sets the status of a service in grpc.health.v1, if this server has
// that service. It has no effect once the server stops.
func (s *Server) setServing(service string, yes bool) {
	if _, ok := s.grpc.GetServiceInfo()[service]; !ok && service != "" {
		return
	}
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if yes {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, status)
}

// watchSides checks the sides every readyInterval until the server stops.
func (s *Server) watchSides() {
	every := time.NewTicker(readyInterval)
	defer every.Stop()
	for {
		s.checkSides(s.draining)
		select {
		case <-s.draining.Done():
			return
		case <-every.C:
		}
	}
}

// handleReady responds whether new requests should come here, and the state of
// each side.
func (s *Server) handleReady(w http.ResponseWriter, r *http.Request) {
	if s.draining.Err() != nil {
		writeHealth(w, http.StatusServiceUnavailable, "draining")
		return
	}
	sides := s.checkSides(context.WithoutCancel(r.Context())) // a client that disconnects must not make a side look unavailable
	code, body := http.StatusOK, map[string]string{"status": "ready"}
	if !canServe(sides) {
		code, body = http.StatusServiceUnavailable, map[string]string{"status": "not ready"}
	}
	for side, err := range sides {
		body[side] = "ready"
		if err != nil {
			body[side] = "unavailable"
			s.log.WarnContext(r.Context(), "server: not ready", "side", side, "err", err)
		}
	}
	writeHealthOf(w, code, body)
}
