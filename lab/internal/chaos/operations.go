package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
)

// operatorKinds returns what operators do while another fault is in force. Each runs a command of
// the real binary, except the purges: clients send them.
func operatorKinds() []fault {
	return []fault{
		{"subscription sought", groupOperator, NoRecovery, seekSubscription},
		{"videos purged", groupOperator, NoRecovery, purgeVideos},
		{"blocked video requeued", groupOperator, NoRecovery, requeueBlocked},
		{"quarantine replayed", groupOperator, NoRecovery, replayQuarantine},
		{"quarantine skipped", groupOperator, NoRecovery, skipQuarantine},
	}
}

// disturbances returns the faults that occur beside actions of operators.
func (l *lab) disturbances() []fault {
	cut := fault{"broker connections cut", groupBroker, NoRecovery, cutBroker}
	if l.broker.kafka != nil {
		cut = fault{"kafka frozen", groupBroker, NoRecovery, freezeKafka}
	}
	return []fault{
		cut,
		{"kill publisher", groupProcess, NoRecovery, killAt(publishers, "")},
		{"kill api", groupProcess, NoRecovery, killAt(apis, "")},
		{"kill projector", groupProcess, NoRecovery, killAt(projectors, "")},
		{"database restarted", groupDatabase, NoRecovery, endDatabase((*postgres).stop, (*lab).allInHand)},
		{"database killed", groupDatabase, NoRecovery, endDatabase((*postgres).kill, (*lab).forgotten)},
		{"database connections cut", groupDatabase, NoRecovery, cutDatabase},
	}
}

// why is the reason that operators give.
const why = "--why=fault lab"

// seekSubscription has the broker keep acknowledged messages for some seconds, and deliver them
// once more. The time of the seek is before the run, because a seek drops undelivered messages
// from before its time.
func seekSubscription(ctx context.Context, l *lab, r *rand.Rand, _ *FaultRecord) error {
	if err := l.retain(ctx, true); err != nil {
		return err
	}
	sleep(ctx, between(r, time.Second, 3*time.Second))
	id := names.VideoTopic.Subscription("catalog")
	_, err := l.untilDone(ctx, []int{0}, []string{"seek", why, id, time.Now().Add(-l.cfg.Duration - time.Hour).UTC().Format(time.RFC3339)})
	return errors.Join(err, l.retain(context.WithoutCancel(ctx), false))
}

// retain sets whether the subscription of the catalog keeps acknowledged messages.
func (l *lab) retain(ctx context.Context, on bool) error {
	for deadline := time.Now().Add(commandPatience); ; {
		_, err := l.broker.client.SubscriptionAdminClient.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
			Subscription: &pubsubpb.Subscription{Name: subscriptionName, RetainAckedMessages: on},
			UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"retain_acked_messages"}},
		})
		if err == nil || time.Now().After(deadline) || !sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// purgeVideos has clients purge deleted videos for some seconds.
func purgeVideos(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	before := l.load.purge(true)
	sleep(ctx, between(r, 2*time.Second, 4*time.Second))
	n := l.load.purge(false) - before
	record.Target = fmt.Sprintf("%d videos", n)
	if n == 0 {
		record.Missing = "no video was purged"
	}
	return nil
}

// requeueBlocked requeues a video whose events the broker refuses.
func requeueBlocked(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	admit, refused := l.refuse(ctx, r, record, between(r, 500*time.Millisecond, 2*time.Second))
	defer admit()
	if !refused {
		return nil
	}
	const done, nothing = 0, 3 // 3: the video may have been purged
	_, err := l.untilDone(ctx, []int{done, nothing}, []string{"retry", "--type=" + event.AggregateVideo, "--aggregate=" + record.Target, why})
	return err
}

// replayQuarantine replays all that is in quarantine.
func replayQuarantine(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	return l.emptyQuarantine(ctx, r, record, "retry", "--all")
}

// skipQuarantine gives up what is in quarantine. It was consumed before, so nothing is lost.
func skipQuarantine(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	return l.emptyQuarantine(ctx, r, record, "skip", "--cause="+olderBuild)
}

const olderBuild = "an older build"

// emptyQuarantine puts an event that was consumed into quarantine, as a build that could not decode
// it would, and runs a command. Then no message may be left.
func (l *lab) emptyQuarantine(ctx context.Context, r *rand.Rand, record *FaultRecord, args ...string) error {
	var n int
	err := l.ask(ctx, &n, `
		WITH moved AS (
			INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
			SELECT 'catalog', 'chaos ' || $1, e.aggregate_id, jsonb_build_object('event_id', e.id, 'event_type', e.event_type, 'aggregate_type', e.aggregate_type,
				'aggregate_id', e.aggregate_id, 'version', e.version::text, 'schema_version', e.schema_version::text,
				'occurred_at', to_char(e.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), e.payload, $3, now()
			FROM chaos.events e JOIN chaos.consumed c ON c.event_id = e.id JOIN video_catalog.videos v ON v.id = e.aggregate_id::uuid
			WHERE v.purge_time IS NULL
			ORDER BY e.n DESC OFFSET $2 LIMIT 1
			RETURNING id
		)
		SELECT count(*)::int FROM moved`, uuid.NewString(), r.IntN(50), olderBuild)
	if err != nil || n == 0 {
		record.Missing = "no event for the quarantine" // or the answer was lost
		return nil                                     //nolint:nilerr // it is tried again
	}
	ok, err := l.untilDone(ctx, []int{0}, append(args, why))
	if err != nil || !ok {
		return err
	}
	if err := l.ask(ctx, &n, `SELECT count(*)::int FROM video_catalog_read.quarantine`); err != nil {
		return err
	}
	if n > 0 {
		l.problem(MessageQuarantined, "%d messages after server %s", n, args[0])
	}
	return nil
}
