package pubsublocal_test

import (
	"os"
	"testing"

	"example.com/videocatalog/pubsublocal"
	"example.com/videocatalog/pubsublocal/conformance"
)

// The server does what the sentences say.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Target {
		clock := &pubsublocal.Clock{}
		server, err := pubsublocal.Start(pubsublocal.Config{Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		})
		return conformance.Target{
			Project: "conformance", Options: server.Options(), HTTP: "http://" + server.Addr(), Prompt: true, Advance: clock.Advance,
		}
	}, nil)
}

// The same, against the service, where PUBSUB_CONFORMANCE_PROJECT names a
// project. It creates and leaves topics and subscriptions there, and costs money.
func TestConformanceOfService(t *testing.T) {
	project := os.Getenv("PUBSUB_CONFORMANCE_PROJECT")
	if project == "" {
		return // nothing is skipped: this is another server's test
	}
	conformance.Run(t, func(*testing.T) conformance.Target { return conformance.Target{Project: project} }, nil)
}
