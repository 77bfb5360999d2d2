package pubsublocal_test

import (
	"os"
	"testing"

	"example.com/servicekit/pubsublocal"
	"example.com/servicekit/pubsublocal/conformance"
)

// The server passes all cases.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Target {
		clock := &pubsublocal.Clock{}
		server, err := pubsublocal.Start(pubsublocal.Config{Clock: clock})
		must(t, err)
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		})
		return conformance.Target{
			Project: "conformance", Options: server.Options(), Prompt: true, Advance: clock.Advance,
		}
	})
}

// The service passes all cases, in the project of PUBSUB_CONFORMANCE_PROJECT.
// The test creates topics and subscriptions there and does not delete them. It
// costs money.
func TestConformanceOfService(t *testing.T) {
	project := os.Getenv("PUBSUB_CONFORMANCE_PROJECT")
	if project == "" {
		return // not skipped: this server has its own test
	}
	conformance.Run(t, func(*testing.T) conformance.Target { return conformance.Target{Project: project} })
}
