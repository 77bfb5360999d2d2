-- name: AppendOutbox :exec
-- Appends one event: its row in the outbox, then its pending row, which draws the seq. The pending row leaves out the
-- caller. Run it after the row of the aggregate is locked or inserted: the events of an aggregate are then committed in
-- the order of seq. RaiseFloors requires that a transaction has its xid before it draws a seq; the first insert ensures
-- that.
WITH event AS (
	INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at,
		traceparent, caller, causation_id, correlation_id)
	VALUES (@id, @aggregate_type, @aggregate_id, @event_type, @version, @schema_version, @payload, @occurred_at,
		sqlc.narg('traceparent'), sqlc.narg('caller'), sqlc.narg('causation_id'), sqlc.narg('correlation_id'))
	RETURNING outbox.id
)
INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at,
	traceparent, causation_id, correlation_id)
SELECT @lane::smallint, event.id, @aggregate_type, @aggregate_id, @event_type, @version, @schema_version, @payload, @occurred_at,
	sqlc.narg('traceparent'), sqlc.narg('causation_id'), sqlc.narg('correlation_id')
FROM event;

-- name: LeaseLanes :many
-- Takes the lease of free lanes with work, those served longest ago. A lane is free if it is released, its lease has ended, or
-- its lease ends in more than two leases: then the clock of the database was set back. Lanes with a time in the future
-- come first. settled_seq is a hint: most work is above it (fresh). Below it may be late events, which committed late, or were
-- not settled. Otherwise a lane has work if an aggregate is due.
WITH ready AS (
	SELECT l.lane, due.found IS TRUE AS due
	FROM video_catalog.outbox_lanes l
	LEFT JOIN LATERAL (
		SELECT true AS found FROM video_catalog.outbox_pending p
		WHERE p.lane = l.lane AND p.seq > l.settled_seq
		ORDER BY p.seq LIMIT 1
	) fresh ON true
	LEFT JOIN LATERAL (
		SELECT true AS found FROM video_catalog.outbox_blocked b
		WHERE b.lane = l.lane AND b.next_retry_at <= now()
		ORDER BY b.next_retry_at LIMIT 1
	) due ON true
	LEFT JOIN LATERAL (
		SELECT true AS found FROM video_catalog.outbox_pending p
		WHERE p.lane = l.lane
			AND p.seq > l.floor_seq
			AND p.seq <= l.settled_seq
			AND fresh.found IS NULL -- reads what was deleted, so it is the last resort
			AND due.found IS NULL
		ORDER BY p.seq LIMIT 1
	) late ON true
	WHERE (l.token = 0 OR l.leased_until NOT BETWEEN now() AND now() + 2 * @lease_for::interval)
		AND (fresh.found OR due.found OR late.found)
	ORDER BY CASE WHEN l.leased_until <= now() THEN l.leased_until END NULLS FIRST
	LIMIT @max_lanes
	FOR UPDATE OF l SKIP LOCKED
)
UPDATE video_catalog.outbox_lanes l
SET token = @token, leased_until = clock_timestamp() + @lease_for::interval
FROM ready
WHERE l.lane = ready.lane
RETURNING l.lane, l.floor_seq, ready.due::bool AS due;

-- name: EndBlocks :exec
-- Ends the block of aggregates that are due and have nothing deferred. Such a row is left by a skip of the last deferred
-- event. The caller has the lease of the lanes.
DELETE FROM video_catalog.outbox_blocked b
WHERE b.lane = ANY (@lanes::smallint[])
	AND b.next_retry_at <= now()
	AND (
		SELECT true FROM video_catalog.outbox_deferred d
		WHERE d.aggregate_type = b.aggregate_type AND d.aggregate_id = b.aggregate_id AND d.seq >= b.head_seq
		ORDER BY d.seq LIMIT 1
	) IS NULL;

-- name: ReadDeferred :batchmany
-- Returns at most max_events deferred events of at most max_aggregates of a lane that are due. The aggregate that has been due
-- longest comes first. If the first event of an aggregate was refused before, only that event is returned, because the broker refuses
-- a whole request that has one bad message. The last event is the one with which the payloads reach max_bytes.
SELECT
	chosen.lane,
	chosen.seq,
	chosen.id,
	chosen.aggregate_type,
	chosen.aggregate_id,
	chosen.event_type,
	chosen.version,
	chosen.schema_version,
	chosen.payload,
	chosen.occurred_at,
	chosen.traceparent,
	chosen.repeat,
	chosen.causation_id,
	chosen.correlation_id,
	chosen.attempts,
	false AS blocked
FROM (
	SELECT
		oldest.*,
		sum(octet_length(oldest.payload)) OVER (
			ORDER BY oldest.next_retry_at, oldest.aggregate_type, oldest.aggregate_id, oldest.seq ROWS UNBOUNDED PRECEDING
		) - octet_length(oldest.payload) AS bytes_before
	FROM (
		SELECT d.*, due.attempts, due.next_retry_at
		FROM (
			SELECT * FROM video_catalog.outbox_blocked b
			WHERE b.lane = @lane AND b.next_retry_at <= now()
			ORDER BY b.next_retry_at LIMIT @max_aggregates::int
		) due
		CROSS JOIN LATERAL (
			SELECT * FROM video_catalog.outbox_deferred o
			WHERE o.aggregate_type = due.aggregate_type AND o.aggregate_id = due.aggregate_id AND o.seq >= due.head_seq
			ORDER BY o.seq LIMIT CASE due.attempts WHEN 0 THEN @max_events::int ELSE 1 END
		) d
		LIMIT @max_events -- read no more rows than that
	) oldest
) chosen
WHERE chosen.bytes_before < @max_bytes::bigint;

-- name: ReadPending :batchmany
-- Returns the oldest pending events of a lane above the floor, at most max_events, in order. The last one is the event with
-- which the payloads reach max_bytes; span has the lengths only, because a window function copies its rows. blocked says that
-- the aggregate is blocked. Run it after LeaseLanes, as a statement of its own: its snapshot must be newer than that lock.
WITH span AS MATERIALIZED (
	SELECT
		min(sums.seq) AS head,
		coalesce(min(sums.seq) FILTER (WHERE sums.bytes >= @max_bytes::bigint), max(sums.seq)) AS tail
	FROM (
		SELECT sizes.seq, sum(sizes.bytes) OVER (ORDER BY sizes.seq ROWS UNBOUNDED PRECEDING) AS bytes
		FROM (
			SELECT oldest.seq, octet_length(oldest.payload) AS bytes FROM video_catalog.outbox_pending oldest
			WHERE oldest.lane = @lane AND oldest.seq > @floor_seq
			ORDER BY oldest.seq LIMIT @max_events::int
		) sizes
	) sums
)
SELECT
	p.*,
	0 AS attempts,
	(( -- no lookup per event while nothing of the lane is blocked
		SELECT true FROM video_catalog.outbox_blocked any_blocked
		WHERE any_blocked.lane = @lane
		ORDER BY any_blocked.next_retry_at LIMIT 1
	) IS NOT NULL AND (
		SELECT true FROM video_catalog.outbox_blocked b
		WHERE b.aggregate_type = p.aggregate_type AND b.aggregate_id = p.aggregate_id
	) IS NOT NULL)::bool AS blocked
FROM video_catalog.outbox_pending p
WHERE p.lane = @lane
	AND p.seq >= (SELECT span.head FROM span)
	AND p.seq <= (SELECT span.tail FROM span)
ORDER BY p.seq;

-- name: ReleaseLanes :many
-- Releases lanes, as the first step of a settlement, and returns those that nobody has claimed since: the token is the fence.
-- Their rows stay locked, so no other process claims or settles them before the transaction ends.
UPDATE video_catalog.outbox_lanes l
SET token = 0, leased_until = clock_timestamp(), settled_seq = greatest(l.settled_seq, span.tail)
FROM (SELECT unnest(@lanes::smallint[]) AS lane, unnest(@tails::bigint[]) AS tail) span
WHERE l.lane = span.lane AND l.token = @token
RETURNING l.lane;

-- name: DeletePublished :exec
-- Reads a range of a lane, and compares with a hash of the array: IS TRUE keeps the planner from a join. It does not delete the
-- whole range, because events that were committed late and never sent may be in between.
DELETE FROM video_catalog.outbox_pending p
WHERE p.lane = @lane
	AND p.seq BETWEEN @head AND @tail
	AND (p.seq IN (SELECT unnest(@seqs::bigint[]))) IS TRUE;

-- name: DeferEvents :exec
-- Moves events of blocked aggregates to outbox_deferred, which has the same columns.
WITH gone AS (
	DELETE FROM video_catalog.outbox_pending p
	WHERE p.lane = @lane
		AND p.seq BETWEEN @head AND @tail
		AND (p.seq IN (SELECT unnest(@seqs::bigint[]))) IS TRUE
	RETURNING p.*
)
INSERT INTO video_catalog.outbox_deferred
SELECT gone.* FROM gone;

-- name: BlockAggregate :exec
-- Blocks an aggregate until retry_in from now, or with park until a person acts. Its deferred event at seq was refused. If that
-- event is no longer there, or the attempts have changed, a person was faster, and nothing changes. The head does not rise: an event
-- may be deferred below it later.
INSERT INTO video_catalog.outbox_blocked AS b (aggregate_type, aggregate_id, lane, head_seq, attempts, next_retry_at, parked_at, last_error)
SELECT d.aggregate_type, d.aggregate_id, d.lane, d.seq, @attempts::int,
	CASE WHEN @park::bool THEN NULL ELSE clock_timestamp() + @retry_in::interval END,
	CASE WHEN @park THEN clock_timestamp() END, @last_error::text
FROM video_catalog.outbox_deferred d
WHERE d.aggregate_type = @aggregate_type AND d.aggregate_id = @aggregate_id AND d.seq = @seq
ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE
SET head_seq = least(b.head_seq, excluded.head_seq), attempts = excluded.attempts, next_retry_at = excluded.next_retry_at, parked_at = excluded.parked_at,
	last_error = excluded.last_error
WHERE b.attempts = excluded.attempts - 1;

-- name: ResumeAggregate :exec
-- Deletes the deferred events of an aggregate up to published_seq. The next one becomes due, behind the aggregates that are
-- due, with no attempts. Without one, the block ends.
WITH published AS (
	DELETE FROM video_catalog.outbox_deferred d
	WHERE d.aggregate_type = @aggregate_type AND d.aggregate_id = @aggregate_id AND d.seq <= @published_seq::bigint AND d.seq >= (
		SELECT b.head_seq FROM video_catalog.outbox_blocked b WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id
	)
), next AS (
	SELECT d.seq FROM video_catalog.outbox_deferred d
	WHERE d.aggregate_type = @aggregate_type AND d.aggregate_id = @aggregate_id AND d.seq > @published_seq
	ORDER BY d.seq LIMIT 1
), ended AS (
	DELETE FROM video_catalog.outbox_blocked b
	WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id AND NOT EXISTS (SELECT FROM next)
)
UPDATE video_catalog.outbox_blocked b
SET head_seq = next.seq, attempts = 0, next_retry_at = clock_timestamp(), last_error = ''
FROM next
WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id;

-- name: RaiseFloors :exec
-- Raises the floor of each lane, from which claims read, to below its lowest pending seq, but not above mark_seq: a transaction
-- that has drawn a lower seq may commit later. That transaction had its xid before, so when all transactions before mark_xid have ended, no more
-- events appear at or below mark_seq. The next mark_seq is from our snapshot (seen), and not from the locked row: a newer settled_seq
-- could be above a seq of a transaction that mark_xid does not wait for.
WITH seen AS MATERIALIZED (
	SELECT l.lane, l.settled_seq FROM video_catalog.outbox_lanes l ORDER BY l.lane
), free AS (
	SELECT l.lane FROM video_catalog.outbox_lanes l
	WHERE l.floor_seq < l.settled_seq AND l.mark_xid <= pg_snapshot_xmin(pg_current_snapshot())
	ORDER BY l.lane FOR UPDATE SKIP LOCKED
)
UPDATE video_catalog.outbox_lanes l
SET mark_seq = seen.settled_seq,
	mark_xid = pg_current_xact_id(),
	floor_seq = greatest(l.floor_seq, least(l.mark_seq, (
		SELECT p.seq - 1 FROM video_catalog.outbox_pending p WHERE p.lane = l.lane AND p.seq > l.floor_seq ORDER BY p.seq LIMIT 1
	)))
FROM seen JOIN free USING (lane)
WHERE l.lane = seen.lane;

-- name: UseOutboxSettings :exec
-- Sets the planner for the rest of the transaction. Statistics of a queue are always wrong, so no plan may depend on them:
-- each statement on the outbox has one index to use, and scalar subqueries in place of joins and EXISTS, which may read a whole queue.
-- Without sequential scans a plan costs so much that JIT would compile it. With async, a crash may lose the transaction. For a
-- claim or a settlement that means publishing twice, never losing an event.
SELECT set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true),
	set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true),
	set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true),
	CASE WHEN @async::bool THEN set_config('synchronous_commit', 'off', true) END;

-- name: NewestEventAge :one
-- Returns how long ago the newest event happened, by the time in its id; 0 if there is none.
SELECT greatest(interval '0', now() - max(to_timestamp(('x' || translate(left(newest.id::text, 13), '-', ''))::bit(48)::bigint / 1000.0)))::interval AS age
FROM (SELECT o.id FROM video_catalog.outbox o ORDER BY o.id DESC LIMIT 1) newest;

-- name: MaintainOutbox :exec
-- Creates and drops partitions.
SELECT video_catalog.outbox_maintain(@days_ahead::int, @keep::interval);

-- name: MeasureOutbox :one
-- Measures the backlog without reading all of it. It returns when the oldest event in a lane happened; the epoch means
-- none. Events that are published again do not count for that: they happened long ago, and are not late. It counts
-- events that are pending or deferred, and blocked aggregates, each up to max_counted, how many of these aggregates are
-- parked, and the future days that have their partition.
SELECT
	now()::timestamptz AS at,
	coalesce((
		SELECT min(head.occurred_at) FROM video_catalog.outbox_lanes l CROSS JOIN LATERAL (
			SELECT p.occurred_at FROM video_catalog.outbox_pending p
			WHERE p.lane = l.lane AND p.seq > l.floor_seq AND p.repeat = '' ORDER BY p.seq LIMIT 1
		) head
	), 'epoch')::timestamptz AS oldest,
	(SELECT count(*) FROM (
		(SELECT 1 FROM video_catalog.outbox_lanes l CROSS JOIN LATERAL (
			SELECT 1 FROM video_catalog.outbox_pending p
			WHERE p.lane = l.lane AND p.seq > l.floor_seq ORDER BY p.seq LIMIT @max_counted
		) counted_lane)
		UNION ALL
		(SELECT 1 FROM video_catalog.outbox_deferred d ORDER BY d.aggregate_type, d.aggregate_id, d.seq LIMIT @max_counted)
		LIMIT @max_counted
	) counted)::bigint AS pending,
	stuck.blocked,
	stuck.parked,
	coalesce((
		SELECT max(substr(c.relname, 9))::date - (now() AT TIME ZONE 'UTC')::date FROM pg_catalog.pg_class c
		WHERE c.relnamespace = 'video_catalog'::regnamespace
			AND c.relispartition AND c.relkind = 'r' AND c.relname ~ '^outbox_p[0-9]{8}$'
	), 0)::bigint AS days_ahead
FROM (
	SELECT count(*) AS blocked, count(limited.parked_at) AS parked
	FROM (
		SELECT b.parked_at FROM video_catalog.outbox_blocked b
		ORDER BY b.lane, b.next_retry_at LIMIT @max_counted
	) limited
) stuck;
