package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
)

// operatorKinds returns what operators do. Each is a command of the real binary, while another
// fault is in force.
func operatorKinds() []fault {
	return []fault{
		{"repair killed and run again", groupOperator, NoRecovery, repairCatalog},
		{"projection compared and repaired", groupOperator, NoRecovery, repairProjection},
		{"subscription sought", groupOperator, NoRecovery, seekSubscription},
		{"videos purged", groupOperator, NoRecovery, purgeVideos},
		{"blocked video requeued", groupOperator, NoRecovery, requeueBlocked},
		{"quarantine replayed", groupOperator, NoRecovery, replayQuarantine},
	}
}

// disturbances returns the faults that occur beside commands of operators.
func disturbances() []fault {
	return []fault{
		{"kill publisher", groupProcess, NoRecovery, killOne(publishers)},
		{"kill api", groupProcess, NoRecovery, killOne(apis)},
		{"kill projector", groupProcess, NoRecovery, killOne(projectors)},
		{"broker connections cut", groupBroker, NoRecovery, cutBroker},
		{"database restarted", groupDatabase, NoRecovery, restartDatabase},
		{"database killed", groupDatabase, NoRecovery, killDatabase},
		{"database connections cut", groupDatabase, NoRecovery, cutDatabase},
	}
}

// why is the reason that operators give.
const why = "--why=fault lab"

// repairCatalog kills a repair of all entries, and runs it again until it is done. It lowers no
// entry, because the owner has lost nothing.
func repairCatalog(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	defer l.copied(ctx, record)
	args := []string{"projection", "repair", "--all", why}
	l.operator.proxy.slow(between(r, 5*time.Millisecond, 30*time.Millisecond)) // so that it lasts
	o, err := l.command(ctx, func(ctx context.Context) bool { return sleep(ctx, between(r, 100*time.Millisecond, 2*time.Second)) }, args...)
	l.operator.proxy.slow(0)
	if err != nil {
		return err
	}
	if o.code != killed {
		record.Missing = "it ended before it was killed"
	}
	const done, partly = 0, 4
	o, ok, err := l.untilDone(ctx, []int{done, partly}, args)
	if err == nil && ok && !strings.Contains(o.stdout, "ahead 0,") {
		l.problem(ComparisonWrong, "the owner has lost nothing: %s", o.stdout)
	}
	return err
}

// repairProjection damages entries that nobody sees, compares, and repairs them or all.
func repairProjection(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	defer l.copied(ctx, record)
	var ids, damaged []string
	err := l.ask(ctx, &ids, `
		WITH damaged AS (
			UPDATE video_catalog_read.video_projection SET title = 'damaged'
			WHERE video_id IN (SELECT video_id FROM video_catalog_read.video_projection WHERE NOT visible AND NOT deleted ORDER BY video_id OFFSET $1 LIMIT 10)
			RETURNING video_id
		)
		SELECT coalesce(array_agg(video_id::text), '{}') FROM damaged`, r.IntN(20))
	if err != nil {
		return err
	}
	record.Target = fmt.Sprintf("%d entries", len(ids))
	if len(ids) == 0 {
		record.Missing = "no entry to damage"
		return nil
	}
	const done, nothing, partly, differs = 0, 3, 4, 5
	o, ok, err := l.untilDone(ctx, []int{done, differs}, []string{"projection", "compare", "--json"})
	if err != nil || !ok {
		return err
	}
	found, _, err := parseDifferences(o.stdout)
	if err != nil {
		return err
	}
	if err := l.ask(ctx, &damaged, stillDamaged, ids); err != nil {
		return err
	}
	for _, problem := range misjudged(found, ids, damaged) {
		l.problem(ComparisonWrong, "%s", problem)
	}
	args := append([]string{"projection", "repair", why, event.AggregateVideo}, ids...)
	if r.IntN(2) == 0 {
		args = []string{"projection", "repair", why, "--all"}
	}
	if _, ok, err = l.untilDone(ctx, []int{done, nothing, partly}, args); err != nil || !ok {
		return err
	}
	if err := l.ask(ctx, &damaged, stillDamaged, ids); err != nil {
		return err
	}
	if len(damaged) > 0 {
		l.problem(ComparisonWrong, "not repaired: %s", strings.Join(damaged, ", "))
	}
	return nil
}

// stillDamaged asks which entries are damaged, and have no event on its way that repairs them.
const stillDamaged = `
	SELECT coalesce(array_agg(p.video_id::text), '{}') FROM video_catalog_read.video_projection p
	WHERE p.video_id::text = ANY ($1) AND p.title = 'damaged'
		AND NOT EXISTS (SELECT FROM video_catalog.outbox_pending o WHERE o.aggregate_id = p.video_id::text)
		AND NOT EXISTS (SELECT FROM video_catalog.outbox_deferred o WHERE o.aggregate_id = p.video_id::text)`

// misjudged returns what is wrong about the differences that a comparison found: ids are the
// entries that were damaged before it, and damaged those that still are.
func misjudged(found []difference, ids, damaged []string) (problems []string) {
	for _, d := range found {
		if d.cannotBe() && !slices.Contains(ids, d.ID.String()) {
			problems = append(problems, fmt.Sprintf("%s is %s, which cannot be", d.ID, d.Kind))
		}
	}
	for _, id := range damaged {
		if !slices.ContainsFunc(found, func(d difference) bool { return d.ID.String() == id }) {
			problems = append(problems, id+" is damaged, and was not found")
		}
	}
	return problems
}

// seekSubscription has the broker keep messages for some seconds, and deliver them once more.
// The time of the seek is before the run: messages of before that time that are on their way
// would be lost.
func seekSubscription(ctx context.Context, l *lab, r *rand.Rand, _ *FaultRecord) error {
	if err := l.retain(ctx, true); err != nil {
		return err
	}
	sleep(ctx, between(r, time.Second, 3*time.Second))
	id := names.VideoTopic.Subscription("catalog")
	_, _, err := l.untilDone(ctx, []int{0}, []string{"seek", why, id, l.timeline.start.Add(-time.Minute).UTC().Format(time.RFC3339)})
	return errors.Join(err, l.retain(context.WithoutCancel(ctx), false))
}

// retain sets whether the subscription of the catalog keeps messages that are acknowledged.
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
	id, ok := l.load.anyVideo(r)
	if !ok {
		record.Missing = "no video to refuse"
		return nil
	}
	record.Target = id
	admit, refused := l.refuse(ctx, id, between(r, 500*time.Millisecond, 2*time.Second))
	defer admit()
	if !refused {
		record.Missing = "no event of that video was refused"
		return nil
	}
	const done, nothing = 0, 3 // it may have been purged
	_, _, err := l.untilDone(ctx, []int{done, nothing}, []string{"retry", event.AggregateVideo + "/" + id, why})
	return err
}

// replayQuarantine puts events that were consumed into quarantine, as a build that could not
// decode them would, and replays them.
func replayQuarantine(ctx context.Context, l *lab, r *rand.Rand, record *FaultRecord) error {
	var n int
	err := l.ask(ctx, &n, `
		WITH moved AS (
			INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
			SELECT 'catalog', 'chaos ' || $1, e.aggregate_id, jsonb_build_object('event_id', e.id, 'event_type', e.event_type, 'aggregate_type', e.aggregate_type,
				'aggregate_id', e.aggregate_id, 'version', e.version::text, 'schema_version', e.schema_version::text,
				'occurred_at', to_char(e.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), e.payload, 'an older build', now()
			FROM chaos.events e JOIN chaos.consumed c ON c.event_id = e.id JOIN video_catalog.videos v ON v.id = e.aggregate_id::uuid
			WHERE v.purge_time IS NULL
			ORDER BY e.n DESC OFFSET $2 LIMIT 1
			RETURNING id
		)
		SELECT count(*)::int FROM moved`, uuid.NewString(), r.IntN(50))
	if err != nil || n == 0 {
		record.Missing = "no event for the quarantine" // or the answer was lost
		return nil                                     //nolint:nilerr // it is tried again
	}
	_, ok, err := l.untilDone(ctx, []int{0}, []string{"retry", "--all", why})
	if err != nil || !ok {
		return err
	}
	if err := l.ask(ctx, &n, `SELECT count(*)::int FROM video_catalog_read.quarantine`); err != nil {
		return err
	}
	if n > 0 {
		l.problem(MessageQuarantined, "%d messages after all were replayed", n)
	}
	return nil
}
