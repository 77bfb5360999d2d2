package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/store"
)

// seek has Pub/Sub deliver the retained messages of a subscription since a time once more,
// and its projector apply them. It first makes the inbox forget the events that it knows.
// Versions decide as always: an entry that lacks an event gets it, and an entry that is
// damaged at its present version, or ahead, stays as it is. For those there is rebuild.
//
// A crash between the two steps leaves an empty inbox, which is harmless: run it again.
func seek(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	o, since, err := parseSeek(args)
	if err != nil {
		return err
	}
	selected := seekSelection{Subscription: o.args[0], From: since}
	entry, err := o.entry(admin.ActionSeek, selected)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	consumerName, err := consumerOf(selected.Subscription, subscriptions(registrations(cfg, database.queries.own)))
	if err != nil {
		return err
	}
	inbox := store.NewInbox(database.queries.own)
	if o.DryRun {
		return listInbox(ctx, inbox, consumerName, o, stdout)
	}
	client, err := openPubSub(ctx, cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	generation, err := inbox.Forget(ctx, consumerName, entry)
	if err != nil {
		return err
	}
	if _, err := client.SubscriptionAdminClient.Seek(ctx, &pubsubpb.SeekRequest{
		Subscription: fmt.Sprintf("projects/%s/subscriptions/%s", cfg.PubSubProject, selected.Subscription),
		Target:       &pubsubpb.SeekRequest_Time{Time: timestamppb.New(since)},
	}); err != nil {
		return fmt.Errorf("seek %s: the inbox is empty, and no message comes again: run it again: %w", selected.Subscription, err)
	}
	p := newPrinter(stdout, o.json)
	p.line("%s delivers the messages since %s again, generation %d of the inbox; action %s", selected.Subscription, since.Format(time.RFC3339), generation, entry.ActionID)
	p.row(seekResult{ActionID: entry.ActionID, seekSelection: selected, Generation: generation})
	return p.end()
}

// seekSelection is the filter of a seek in the audit.
type seekSelection struct {
	Subscription string    `json:"subscription"`
	From         time.Time `json:"from"`
}

// seekResult is what a seek has done.
type seekResult struct {
	ActionID uuid.UUID `json:"action_id"`
	seekSelection
	Generation int64 `json:"generation"` // of the inbox
}

// parseSeek reads the flags, and SUBSCRIPTION and TIME.
func parseSeek(args []string) (o operation, since time.Time, err error) {
	if o, err = parseAction("seek", args); err != nil {
		return o, since, err
	}
	if len(o.args) != 2 {
		return o, since, usageError(fmt.Errorf("seek has %d arguments, want SUBSCRIPTION and TIME: try `server help`", len(o.args)))
	}
	if since, err = time.Parse(time.RFC3339, o.args[1]); err != nil {
		return o, since, usageError(fmt.Errorf("TIME %q: want a time such as 2026-01-31T12:00:00Z", o.args[1]))
	}
	if since.After(time.Now()) {
		return o, since, usageError(fmt.Errorf("TIME %q is in the future: Pub/Sub would drop the messages until then", o.args[1]))
	}
	return o, since, nil
}

// consumerOf returns the name of a subscription in the inbox.
func consumerOf(id string, subscribed []subscription) (string, error) {
	var ids []string
	for _, s := range subscribed {
		if s.id == id {
			return s.consumer, nil
		}
		ids = append(ids, s.id)
	}
	return "", usageError(fmt.Errorf("SUBSCRIPTION %q: this service has %s", id, strings.Join(ids, ", ")))
}
