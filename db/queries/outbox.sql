-- name: AppendOutbox :exec
-- Appends one event: its row in the outbox, then its pending row, which draws the seq. The pending row has no caller, so
-- nobody can publish it. Run it last in the transaction, after the row of the aggregate is locked or inserted. Two floors
-- depend on the order of these steps. The floor of a blocked aggregate requires that its events are committed in the order
-- of seq. The floor of a lane requires that a transaction has its id before it draws a seq; the first insert ensures that.
WITH event AS (
	INSERT INTO video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent, caller, causation_id, correlation_id)
	VALUES (@id, @aggregate_type, @aggregate_id, @event_type, @version, @schema_version, @payload, @occurred_at, sqlc.narg('traceparent'),
		sqlc.narg('caller'), sqlc.narg('causation_id'), sqlc.narg('correlation_id'))
	RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent, causation_id, correlation_id
)
INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent,
	causation_id, correlation_id)
SELECT @lane::smallint, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent,
	causation_id, correlation_id
FROM event;

-- name: ClaimOutbox :many
-- Claims a lane: see video_catalog.outbox_claim.
SELECT c.lane::smallint AS lane, c.lease_token::bigint AS lease_token, c.seq::bigint AS seq,
	c.retry::bool AS retry, c.blocked::bool AS blocked, c.attempts::int AS attempts,
	c.id::uuid AS id, c.aggregate_type::text AS aggregate_type, c.aggregate_id::text AS aggregate_id, c.version::bigint AS version,
	c.event_type::text AS event_type, c.schema_version::int AS schema_version, c.payload::bytea AS payload,
	c.occurred_at::timestamptz AS occurred_at, c.traceparent::text AS traceparent, c.repeat::text AS repeat,
	c.causation_id::uuid AS causation_id, c.correlation_id::uuid AS correlation_id
FROM video_catalog.outbox_claim(@max_events::int, @max_bytes::bigint, @lease_for::interval,
	sqlc.narg('only_lane')::smallint,
	@token::bigint, @lost_tokens::bigint[]) AS c;

-- name: UseOutboxIndexes :exec
-- Sets the planner for the rest of the transaction. Statistics of a queue are always wrong, so the plans of the
-- statements below must not depend on them. Each statement leaves the planner one index to use. See video_catalog.outbox_claim.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: SettleOutbox :one
-- Releases a lane, as the first step of a settlement. It returns a row only if the lease is still held. This is the
-- fence: the row of the lane is locked, so no other process claims or settles it before the transaction ends. head_seq
-- and tail_seq are the first and last seq of the claim's rows that are not for a retry, whatever their result; 0 if there
-- were none. Every event that is published or set aside is between them.
UPDATE video_catalog.outbox_lanes n
SET lease_token = 0,
	settlements = settlements + 1,
	era = (settlements + 1) / 50,
	leased_until = clock_timestamp(),
	floor_seq = CASE WHEN mark_ripe AND @head_seq::bigint > 0 THEN greatest(floor_seq, least(mark_seq + 1, @head_seq) - 1) ELSE floor_seq END,
	mark_seq = CASE WHEN mark_ripe AND @head_seq > 0 THEN @tail_seq::bigint ELSE mark_seq END,
	-- Our own id: a transaction that has drawn a seq up to tail_seq had its id before that, hence a lower one.
	mark_xid = CASE WHEN mark_ripe AND @head_seq > 0 THEN pg_current_xact_id() ELSE mark_xid END,
	settled_seq = greatest(settled_seq, @tail_seq)
WHERE n.ctid = (SELECT l.ctid FROM video_catalog.outbox_lanes l WHERE l.lane = @lane ORDER BY l.era DESC LIMIT 1)
	AND n.lease_token = @lease_token
RETURNING true AS held;

-- name: CommitOutboxAsync :exec
-- Losing a settlement in a crash means publishing twice, never losing an event.
SELECT set_config('synchronous_commit', 'off', true);

-- name: DeletePublished :exec
-- Reads the range of the lane, and compares with a hash of the array: IS TRUE forbids a join. It does not delete the
-- whole range, because events that were committed late and never sent may be in between.
DELETE FROM video_catalog.outbox_pending p
WHERE p.lane = @lane AND p.seq BETWEEN @head_seq AND @tail_seq
	AND (p.seq IN (SELECT unnest(@seqs::bigint[]))) IS TRUE;

-- name: DeleteRetried :exec
DELETE FROM video_catalog.outbox_pending WHERE lane = -1 AND seq = @seq;

-- name: BlockAggregate :exec
-- Blocks an aggregate until retry_in from now, or with park until a person acts. Its first event behind floor_seq was
-- refused.
INSERT INTO video_catalog.outbox_blocked AS b (aggregate_type, aggregate_id, lane, attempts, next_retry_at, last_error, parked_at, floor_seq)
VALUES (@aggregate_type, @aggregate_id, @lane, @attempts,
	CASE WHEN @park::bool THEN NULL ELSE clock_timestamp() + @retry_in::interval END, @last_error,
	CASE WHEN @park THEN clock_timestamp() END, @floor_seq)
ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE
SET attempts = excluded.attempts, next_retry_at = excluded.next_retry_at, last_error = excluded.last_error, parked_at = excluded.parked_at
-- Otherwise a person has requeued or skipped the event meanwhile.
WHERE b.attempts = excluded.attempts - 1 AND b.floor_seq <= excluded.floor_seq;

-- name: SetAside :exec
UPDATE video_catalog.outbox_pending p SET lane = -1
WHERE p.lane = @lane AND p.seq BETWEEN @head_seq AND @tail_seq
	AND (p.seq IN (SELECT unnest(@seqs::bigint[]))) IS TRUE;

-- name: UnblockAggregate :exec
-- Ends the block of an aggregate that has nothing set aside. Otherwise the aggregate becomes due immediately, behind
-- those that are already due, with no attempts.
WITH next AS (
	SELECT a.seq
	FROM video_catalog.outbox_blocked b
	CROSS JOIN LATERAL (
		SELECT a.seq FROM video_catalog.outbox_aside a
		WHERE a.lane + 0 = -1 AND (a.aggregate_type, a.aggregate_id, a.seq) > (b.aggregate_type, b.aggregate_id, b.floor_seq)
			AND (a.aggregate_type, a.aggregate_id) <= (b.aggregate_type, b.aggregate_id)
		ORDER BY a.aggregate_type, a.aggregate_id, a.seq LIMIT 1
	) a
	WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id
), ended AS (
	DELETE FROM video_catalog.outbox_blocked b
	WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id AND NOT EXISTS (SELECT FROM next)
)
UPDATE video_catalog.outbox_blocked b
SET attempts = 0, next_retry_at = clock_timestamp(), last_error = '', parked_at = NULL, floor_seq = next.seq - 1
FROM next
WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id;

-- name: MaintainOutbox :one
-- Creates and drops partitions: see video_catalog.outbox_maintain.
SELECT m.created::int AS created, m.dropped::int AS dropped
FROM video_catalog.outbox_maintain(@days_ahead::int, @keep::interval) AS m;

-- name: MeasureOutbox :one
-- Measures the backlog without reading all of it. It returns when the oldest event in a lane and the oldest event set
-- aside happened; the epoch means none. Events that are published again do not count for that: they happened long ago, and
-- are not late. It counts pending events, blocked aggregates and parked aggregates, each up to
-- max_counted.
WITH lanes AS (
	SELECT l.lane, l.floor_seq FROM generate_series(0, 7) AS n (lane)
	CROSS JOIN LATERAL (
		SELECT l.lane, l.floor_seq FROM video_catalog.outbox_lanes l
		WHERE l.lane = n.lane ORDER BY l.era DESC LIMIT 1
	) l
	UNION ALL
	SELECT -1::smallint, 0
), heads AS (
	SELECT l.lane, head.occurred_at
	FROM lanes l
	CROSS JOIN LATERAL (
		SELECT p.occurred_at FROM video_catalog.outbox_pending p
		WHERE p.lane = l.lane AND p.seq > l.floor_seq AND p.repeat = ''
		ORDER BY p.seq LIMIT 1
	) head
)
SELECT
	coalesce((SELECT min(h.occurred_at) FROM heads h WHERE h.lane >= 0), 'epoch')::timestamptz AS oldest,
	coalesce((SELECT h.occurred_at FROM heads h WHERE h.lane = -1), 'epoch')::timestamptz AS oldest_blocked,
	(SELECT count(*) FROM (
		SELECT 1 FROM lanes l
		CROSS JOIN LATERAL (
			SELECT 1 FROM video_catalog.outbox_pending p
			WHERE p.lane = l.lane AND p.seq > l.floor_seq
			ORDER BY p.seq LIMIT @max_counted
		) p
		LIMIT @max_counted
	) counted)::bigint AS pending,
	(SELECT count(*) FROM (
		SELECT 1 FROM lanes l
		CROSS JOIN LATERAL (SELECT 1 FROM video_catalog.outbox_blocked b WHERE b.lane = l.lane ORDER BY b.lane, b.next_retry_at LIMIT @max_counted) b
		LIMIT @max_counted
	) counted)::bigint AS blocked,
	(SELECT count(*) FROM (
		SELECT 1 FROM lanes l
		CROSS JOIN LATERAL (SELECT 1 FROM video_catalog.outbox_blocked b WHERE b.lane = l.lane AND b.next_retry_at IS NULL LIMIT @max_counted) b
		LIMIT @max_counted
	) counted)::bigint AS parked;

-- name: MeasurePartitions :one
-- Returns how many future days have their partition.
SELECT coalesce(max(to_date(substr(c.relname, 9), 'YYYYMMDD')) - (now() AT TIME ZONE 'UTC')::date, 0)::int AS days_ahead
FROM pg_catalog.pg_class c
WHERE c.relnamespace = 'video_catalog'::regnamespace AND c.relispartition AND c.relkind = 'r' AND c.relname ~ '^outbox_p[0-9]{8}$';
