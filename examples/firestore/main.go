// Command firestore is an outbox in Firestore: a unit of work that writes a letter and its event in one transaction, and
// a relay that publishes the events with the publisher of this repository. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/pubsub/v2"

	"example.com/servicekit/tool"
	"example.com/videocatalog/internal/outbox"
)

func main() {
	project := flag.String("project", "", "Google Cloud project of Firestore and Pub/Sub")
	topic := flag.String("topic", "letter.events", "topic")
	write := flag.Int("write", 0, "write so many letters first")
	flag.Parse()
	tool.Main("firestore", "", func(ctx context.Context, _ []string, _ io.Writer) error {
		return run(ctx, *project, *topic, *write, relayConfig)
	})
}

// run writes some letters, and relays events until ctx ends. The libraries read FIRESTORE_EMULATOR_HOST and
// PUBSUB_EMULATOR_HOST.
func run(ctx context.Context, project, topic string, write int, cfg outbox.Config) error {
	client, err := firestore.NewClient(ctx, project)
	if err != nil {
		return err
	}
	defer client.Close()
	broker, err := pubsub.NewClient(ctx, project)
	if err != nil {
		return err
	}
	defer broker.Close()
	letters := NewLetters(client, func() {})
	for i := range write {
		if err := letters.Write(ctx, fmt.Sprint("letter", i), "Dear reader,"); err != nil {
			return err
		}
	}
	inFlight := 2 * cfg.WithDefaults().Workers * cfg.WithDefaults().Batch // ordering keys of all passes
	to := outbox.NewTopic(broker.Publisher(topic), cfg.RequestTimeout(), inFlight)
	defer to.Stop()
	return relay(ctx, client, to, cfg, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
}
