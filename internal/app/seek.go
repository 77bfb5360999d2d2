package app

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// seek has events applied again: see admin.Seek.
func seek(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	o, since, err := parseSeek(args)
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	request := admin.SeekRequest{Request: o.Request, From: since}
	request.Filter.ID = o.args[0]
	act := seeker(cfg, cfg.program.Registrations(database.queries.own), store.NewInbox(database.queries.own))
	result, err := act(ctx, request)
	if err != nil {
		return err
	}
	p := NewPrinter(stdout, o.json)
	if o.DryRun {
		p.Line("the inbox has %d events; nothing was changed", result.Matched)
	} else {
		p.Line("%s delivers the messages since %s again, and the inbox has forgotten %d events; action %s", o.args[0], since.Format(time.RFC3339), result.Done, result.ActionID)
	}
	p.Row(result)
	return p.End()
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
	return o, since, nil
}

// seeker returns what seeks the subscriptions of the query side.
func seeker(cfg config, registered []Registration, inbox *store.Inbox) admin.Seeker {
	subscribed := subscriptions(registered)
	return func(ctx context.Context, r admin.SeekRequest) (result admin.Result, err error) {
		i := slices.IndexFunc(subscribed, func(s Subscription) bool { return s.ID == r.Filter.ID })
		if i < 0 {
			return result, problem.InvalidField("subscription", "must be one of the query side: %s", strings.Join(subscriptionIDs(subscribed), ", "))
		}
		if cfg.PubSubProject == "" {
			return result, problem.Errorf(problem.Precondition, "this process has no PUBSUB_PROJECT, so it cannot seek")
		}
		sought := &soughtSubscription{Inbox: inbox, cfg: cfg, subscription: subscribed[i]}
		if !r.DryRun { // before the inbox forgets
			if sought.client, err = openPubSub(ctx, cfg); err != nil {
				return result, err
			}
			defer sought.client.Close()
		}
		return admin.Seek(ctx, sought, r)
	}
}

func subscriptionIDs(subscribed []Subscription) (ids []string) {
	for _, s := range subscribed {
		ids = append(ids, s.ID)
	}
	return ids
}

// soughtSubscription is the admin.Seekable of a subscription.
type soughtSubscription struct {
	*store.Inbox
	cfg          config
	client       *pubsub.Client
	subscription Subscription
}

func (s *soughtSubscription) CountApplied(ctx context.Context, _ admin.Filter) (int64, error) {
	return s.Count(ctx, s.subscription.Consumer)
}

func (s *soughtSubscription) Forget(ctx context.Context, e admin.Entry) (int64, error) {
	return s.Inbox.Forget(ctx, s.subscription.Consumer, e)
}

func (s *soughtSubscription) DeliverSince(ctx context.Context, since time.Time) error {
	_, err := s.client.SubscriptionAdminClient.Seek(ctx, &pubsubpb.SeekRequest{
		Subscription: fmt.Sprintf("projects/%s/subscriptions/%s", s.cfg.PubSubProject, s.subscription.ID),
		Target:       &pubsubpb.SeekRequest_Time{Time: timestamppb.New(since)},
	})
	return err
}
