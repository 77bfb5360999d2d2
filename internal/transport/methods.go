package transport

import (
	"maps"
	"slices"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Methods returns the names of all methods of a Server that has these services,
// as package.Service/Method.
func Methods(services []Service) []string {
	s := newGRPC(healthpb.UnimplementedHealthServer{})
	for _, service := range services {
		s.RegisterService(service.Desc, nil)
	}
	return slices.Sorted(maps.Keys(streaming(s)))
}
