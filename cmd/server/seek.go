package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"example.com/videocatalog/internal/store"
)

// seek has Pub/Sub deliver the retained messages of a subscription since a time once more,
// and its projector apply them. It first makes the inbox forget the events that it knows.
// Versions decide as always: an entry that lacks an event gets it, and an entry that is
// damaged at its present version, or ahead, stays as it is. For those there is rebuild.
//
// A crash between the two steps leaves an empty inbox, which is harmless: run it again.
func seek(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	if len(args) != 2 {
		return usageError(fmt.Errorf("seek has %d arguments, want SUBSCRIPTION and TIME: try `server help`", len(args)))
	}
	since, err := time.Parse(time.RFC3339, args[1])
	if err != nil {
		return usageError(fmt.Errorf("TIME %q: want a time such as 2026-01-31T12:00:00Z", args[1]))
	}
	if since.After(time.Now()) {
		return usageError(fmt.Errorf("TIME %q is in the future: Pub/Sub would drop the messages until then", args[1]))
	}
	database, err := openDatabase(ctx, cfg, sides{queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	subscribed := subscriptions(registrations(cfg, database.queries.own))
	i := slices.IndexFunc(subscribed, func(s subscription) bool { return s.id == args[0] })
	if i < 0 {
		var ids []string
		for _, s := range subscribed {
			ids = append(ids, s.id)
		}
		return usageError(fmt.Errorf("SUBSCRIPTION %q: this service has %s", args[0], strings.Join(ids, ", ")))
	}
	client, err := openPubSub(ctx, cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	generation, err := store.NewInbox(database.queries.own).Forget(ctx, subscribed[i].consumer)
	if err != nil {
		return err
	}
	if _, err := client.SubscriptionAdminClient.Seek(ctx, &pubsubpb.SeekRequest{
		Subscription: fmt.Sprintf("projects/%s/subscriptions/%s", cfg.PubSubProject, args[0]),
		Target:       &pubsubpb.SeekRequest_Time{Time: timestamppb.New(since)},
	}); err != nil {
		return fmt.Errorf("seek %s: %w", args[0], err)
	}
	_, err = fmt.Fprintf(stdout, "%s delivers the messages since %s again, generation %d of the inbox\n", args[0], since.Format(time.RFC3339), generation)
	return err
}
