package transport

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// checkSides returns the error of each side, and whether new requests should come here:
// at least one side works, or there is none. Calls at the same time share the check of a side.
func (s *Server) checkSides(ctx context.Context) (sides map[string]error, ready bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // also for a client that disconnects
	defer cancel()
	pending := make(map[string]<-chan singleflight.Result)
	for side, check := range s.deps.Sides {
		pending[side] = s.checks.DoChan(side, func() (any, error) { return nil, check(ctx) })
	}
	sides, ready = make(map[string]error), len(s.deps.Sides) == 0
	for side, result := range pending {
		sides[side] = (<-result).Err
		ready = ready || sides[side] == nil
	}
	return sides, ready && s.draining.Err() == nil
}

// handleReady reports whether new requests should come here, and the state of
// each side.
func (s *Server) handleReady(w http.ResponseWriter, r *http.Request) {
	sides, ready := s.checkSides(r.Context())
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
	writeJSON(w, code, body)
}

// handleLive reports whether this process still works, or should be restarted.
func (s *Server) handleLive(w http.ResponseWriter, r *http.Request) {
	code, body := http.StatusOK, map[string]string{"status": "live"}
	if err := s.deps.Live(); err != nil {
		s.deps.Log.ErrorContext(r.Context(), "server: stuck", "err", err)
		code, body["status"] = http.StatusServiceUnavailable, "stuck"
	}
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the only error is that the client has left
}

// healthService is grpc.health.v1 without Watch, which clients do not need.
type healthService struct {
	healthpb.UnimplementedHealthServer
	server *Server
}

// Check reports whether the process, or one service of it, can serve.
func (h healthService) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	side, known := h.server.sideOf[request.GetService()]
	if !known {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	sides, ready := h.server.checkSides(ctx)
	response := &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}
	if ready && sides[side] == nil {
		response.Status = healthpb.HealthCheckResponse_SERVING
	}
	return response, nil
}
