package port

import (
	"slices"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A policy may name the methods of every port, too.
func TestMethods(t *testing.T) {
	t.Parallel()
	got := Methods()
	for _, want := range []string{healthpb.Health_Check_FullMethodName, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		if !slices.Contains(got, want[1:]) {
			t.Errorf("Methods() = %q, want %s among them", got, want)
		}
	}
}

// A negative field is an error that names it.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	if err := (Config{MaxReceive: -1, MaxCalls: -1}).Validate(); err == nil || !strings.Contains(err.Error(), "MaxReceive") || !strings.Contains(err.Error(), "MaxCalls") {
		t.Errorf("Validate() = %v, want an error about MaxReceive and MaxCalls", err)
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("Validate() of the zero value = %v", err)
	}
}
