package port

import (
	"slices"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A policy may name the methods of every port, too.
func TestMethods(t *testing.T) {
	t.Parallel()
	got := Methods(nil)
	for _, want := range []string{healthpb.Health_Check_FullMethodName, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		if !slices.Contains(got, want[1:]) {
			t.Errorf("Methods() = %q, want %s among them", got, want)
		}
	}
}
