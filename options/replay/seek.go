package replay

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/options/replay/internal/sqlcgen"
)

// actionSeek is the action, as the table audit names it.
const actionSeek = "inbox.seek"

// seek makes Pub/Sub deliver the retained messages of a subscription since a time again. Its
// consumer applies them. Versions decide as always: an entry that lacks an event gets it, and an
// entry that is damaged at its present version, or ahead, stays as it is.
//
// The inbox is emptied first: an event that comes again while its id is there counts as a
// duplicate. A crash before Pub/Sub seeks leaves an inbox with fewer ids. That is harmless,
// because versions keep out duplicates: run the command again. An event that is applied between
// the two steps is recorded again, and its next delivery is rightly skipped.
func seek(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	o, since, err := parseSeek(args)
	if err != nil {
		return app.UsageError(err)
	}
	if process.Broker != "pubsub" {
		return app.UsageError(fmt.Errorf("seek is for Pub/Sub: BROKER=%[1]s has `server %[1]s seek`", process.Broker))
	}
	if err := process.OpenQuerySide(ctx); err != nil {
		return err
	}
	subscription, err := subscriptionOf(process.Registered, o.Args[0])
	if err != nil {
		return err
	}
	entry, err := o.Entry(actionSeek, sought{Subscription: subscription.ID, From: since})
	if err != nil {
		return err
	}
	inbox := inbox{pool: process.QueryPool, consumer: subscription.Consumer}
	result := seekResult{ActionID: entry.ActionID}
	if result.Matched, err = inbox.count(ctx); err != nil {
		return err
	}
	p := operate.NewPrinter(stdout, o.JSON)
	if o.DryRun {
		p.Line("the inbox has %d events; nothing was changed", result.Matched)
		p.Row(result)
		return p.End()
	}
	client, err := process.PubSub(ctx) // an error here leaves the inbox as it is
	if err != nil {
		return err
	}
	if result.Done, err = inbox.forget(ctx, entry, result.Matched); err != nil {
		return err
	}
	if _, err := client.SubscriptionAdminClient.Seek(ctx, &pubsubpb.SeekRequest{
		Subscription: fmt.Sprintf("projects/%s/subscriptions/%s", client.Project(), subscription.ID),
		Target:       &pubsubpb.SeekRequest_Time{Time: timestamppb.New(since)},
	}); err != nil {
		return &problem.Error{Kind: problem.Unavailable, Message: "the inbox is empty, and no message comes again: remove the cause, and seek again", Err: err}
	}
	p.Line("%s delivers the messages since %s again, and the inbox has forgotten %d events; action %s", subscription.ID, since.Format(time.RFC3339), result.Done, result.ActionID)
	p.Row(result)
	return p.End()
}

// sought is the filter of an entry in the audit.
type sought struct {
	Subscription string    `json:"subscription"`
	From         time.Time `json:"from"`
}

// seekResult is what a seek did.
type seekResult struct {
	ActionID uuid.UUID `json:"action_id,omitzero"` // zero after a dry run
	Matched  int64     `json:"matched"`            // events that the inbox had
	Done     int64     `json:"done"`               // events that it has forgotten
}

// parseSeek reads the flags, and checks SUBSCRIPTION and TIME.
func parseSeek(args []string) (o operate.Operation, since time.Time, err error) {
	if o, err = operate.ParseOperation(args, nil); err != nil {
		return o, since, fmt.Errorf("seek: %w", err)
	}
	if len(o.Args) != 2 {
		return o, since, fmt.Errorf("seek has %d arguments, want SUBSCRIPTION and TIME: try `server seek --help`", len(o.Args))
	}
	since, err = time.Parse(time.RFC3339, o.Args[1])
	switch {
	case err != nil:
		return o, since, fmt.Errorf("TIME %q: want a time such as 2026-01-31T12:00:00Z", o.Args[1])
	case since.After(time.Now()):
		return o, since, fmt.Errorf("TIME %q must not be in the future: Pub/Sub would drop the messages until then", o.Args[1])
	}
	return o, since, nil
}

// subscriptionOf returns the subscription of the query side with an id.
func subscriptionOf(registered []app.Registration, id string) (app.Subscription, error) {
	var ids []string
	for _, r := range registered {
		for _, s := range r.Subscriptions {
			if s.ID == id {
				return s, nil
			}
			ids = append(ids, s.ID)
		}
	}
	slices.Sort(ids)
	return app.Subscription{}, app.UsageError(fmt.Errorf("SUBSCRIPTION %q must be one of the query side: %s", id, strings.Join(ids, ", ")))
}

// inboxRows is how many ids one statement reads or deletes.
const inboxRows = 10_000

// inbox is the inbox of a consumer on the query side.
type inbox struct {
	pool     *pgxpool.Pool
	consumer string
}

// count counts the events that the inbox has. It reads all of them: some seconds for ten million.
func (i inbox) count(ctx context.Context) (n int64, err error) {
	for after, more := uuid.Nil, true; more; {
		page, err := sqlcgen.New(i.pool).CountInbox(ctx, after, i.consumer, inboxRows)
		if err != nil {
			return n, pg.Wrap(err, "count the inbox of %s", i.consumer)
		}
		n += page.Read
		after, more = page.LastID, page.Read == inboxRows
	}
	return n, nil
}

// forget makes every event new to the consumer: it appends the entry to the audit, and then empties
// the inbox, in short transactions. It returns how many events were deleted.
func (i inbox) forget(ctx context.Context, e pg.Entry, items int64) (n int64, err error) {
	q := sqlcgen.New(i.pool)
	if err := q.InsertSeekAudit(ctx, sqlcgen.InsertSeekAuditParams{
		ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason, Items: items,
	}); err != nil {
		return 0, pg.Wrap(err, "append audit")
	}
	for after, more := uuid.Nil, true; more; {
		page, err := q.ClearInbox(ctx, after, i.consumer, inboxRows)
		if err != nil {
			return n, pg.Wrap(err, "clear the inbox of %s", i.consumer)
		}
		n += page.Read
		after, more = page.LastID, page.Read == inboxRows
	}
	return n, nil
}
