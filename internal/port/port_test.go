package port

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The methods that a policy may name are those that a server has.
func TestMethodsAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	server, err := New(Config{}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.stop(t.Context())
	var want []string
	for service, info := range server.grpc.GetServiceInfo() {
		for _, method := range info.Methods {
			want = append(want, service+"/"+method.Name)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, Methods()); diff != "" || len(want) == 0 {
		t.Errorf("methods (-want +got):\n%s", diff)
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
