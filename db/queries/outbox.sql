-- name: AppendOutbox :exec
-- Appends one event: its row in the outbox, and then a pending one, which draws its seq. Run it last in the transaction of
-- the business row, after that row is locked or inserted: the floor of a blocked aggregate rests on it that its events are
-- committed in the order of seq. The floor of a lane rests on it that a transaction has its id before it draws a seq, which
-- the first insert makes sure of.
WITH event AS (
	INSERT INTO video.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent)
	VALUES (@id, @aggregate_type, @aggregate_id, @event_type, @version, @schema_version, @payload, @occurred_at, sqlc.narg('traceparent'))
	RETURNING id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent
)
INSERT INTO video.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent)
SELECT video.outbox_lane(aggregate_type, aggregate_id), id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent
FROM event;

-- name: ClaimOutbox :many
-- Claims a lane: see video.outbox_claim.
SELECT c.lane::smallint AS lane, c.lease_token::bigint AS lease_token, c.seq::bigint AS seq,
	c.retry::bool AS retry, c.blocked::bool AS blocked, c.attempts::int AS attempts,
	c.id::uuid AS id, c.aggregate_type::text AS aggregate_type, c.aggregate_id::text AS aggregate_id, c.version::bigint AS version,
	c.event_type::text AS event_type, c.schema_version::int AS schema_version, c.payload::bytea AS payload,
	c.occurred_at::timestamptz AS occurred_at, c.traceparent::text AS traceparent
FROM video.outbox_claim(@max_events::int, @max_bytes::bigint, @lease_for::interval,
	video.outbox_lane(sqlc.narg('of_type')::text, sqlc.narg('of_id')::text),
	@token::bigint, @lost_tokens::bigint[]) AS c;

-- name: UseOutboxIndexes :exec
-- For the rest of the transaction: the plans of the statements below must not depend on statistics, which are always wrong
-- for a queue, and each leaves the planner one index to use. See video.outbox_claim.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: SettleOutbox :one
-- Releases a lane, the first step of a settlement, and returns a row only if the lease is still held. This is the fence: it
-- locks the lane, so nobody else claims or settles it before the transaction ends.
-- head_seq and tail_seq: first and last seq of the claim's rows but those for a retry, whatever became of them; 0 when
-- there were none. What is published or goes aside is between them.
UPDATE video.outbox_lanes n
SET lease_token = 0,
	settlements = settlements + 1,
	era = (settlements + 1) / 50,
	leased_until = clock_timestamp(),
	floor_seq = CASE WHEN mark_ripe AND @head_seq::bigint > 0 THEN greatest(floor_seq, least(mark_seq + 1, @head_seq) - 1) ELSE floor_seq END,
	mark_seq = CASE WHEN mark_ripe AND @head_seq > 0 THEN @tail_seq::bigint ELSE mark_seq END,
	-- Our own id: whoever has drawn a seq up to tail_seq had an id before that, hence a lower one.
	mark_xid = CASE WHEN mark_ripe AND @head_seq > 0 THEN pg_current_xact_id() ELSE mark_xid END,
	settled_seq = greatest(settled_seq, @tail_seq)
WHERE n.ctid = (SELECT l.ctid FROM video.outbox_lanes l WHERE l.lane = @lane ORDER BY l.era DESC LIMIT 1)
	AND n.lease_token = @lease_token
RETURNING true AS held;

-- name: CommitOutboxAsync :exec
-- Losing a settlement in a crash means publishing twice, never losing.
SELECT set_config('synchronous_commit', 'off', true);

-- name: DeletePublished :exec
-- The range is read, by a hash of the array: IS TRUE forbids a join. Not all of it is deleted: in between is what committed
-- late and was never sent.
DELETE FROM video.outbox_pending p
WHERE p.lane = @lane AND p.seq BETWEEN @head_seq AND @tail_seq
	AND (p.seq IN (SELECT unnest(@seqs::bigint[]))) IS TRUE;

-- name: DeleteRetried :exec
DELETE FROM video.outbox_pending WHERE lane = -1 AND seq = @seq;

-- name: BlockAggregate :exec
-- Blocks an aggregate, whose first event behind floor_seq was refused, until retry_in from now; park: until a person comes.
INSERT INTO video.outbox_blocked AS b (aggregate_type, aggregate_id, lane, attempts, next_retry_at, last_error, parked_at, floor_seq)
VALUES (@aggregate_type, @aggregate_id, @lane, @attempts,
	CASE WHEN @park::bool THEN NULL ELSE clock_timestamp() + @retry_in::interval END, @last_error,
	CASE WHEN @park THEN clock_timestamp() END, @floor_seq)
ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE
SET attempts = excluded.attempts, next_retry_at = excluded.next_retry_at, last_error = excluded.last_error, parked_at = excluded.parked_at
-- Else a person has requeued the event meanwhile, or skipped it.
WHERE b.attempts = excluded.attempts - 1 AND b.floor_seq <= excluded.floor_seq;

-- name: SetAside :exec
UPDATE video.outbox_pending p SET lane = -1
WHERE p.lane = @lane AND p.seq BETWEEN @head_seq AND @tail_seq
	AND (p.seq IN (SELECT unnest(@seqs::bigint[]))) IS TRUE;

-- name: UnblockAggregate :exec
-- Ends the block of an aggregate of which nothing is set aside. Else it is due at once, behind those that are due already,
-- with no attempts.
WITH next AS (
	SELECT a.seq
	FROM video.outbox_blocked b
	CROSS JOIN LATERAL (
		SELECT a.seq FROM video.outbox_aside a
		WHERE a.lane + 0 = -1 AND (a.aggregate_type, a.aggregate_id, a.seq) > (b.aggregate_type, b.aggregate_id, b.floor_seq)
			AND (a.aggregate_type, a.aggregate_id) <= (b.aggregate_type, b.aggregate_id)
		ORDER BY a.aggregate_type, a.aggregate_id, a.seq LIMIT 1
	) a
	WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id
), ended AS (
	DELETE FROM video.outbox_blocked b
	WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id AND NOT EXISTS (SELECT FROM next)
)
UPDATE video.outbox_blocked b
SET attempts = 0, next_retry_at = clock_timestamp(), last_error = '', parked_at = NULL, floor_seq = next.seq - 1
FROM next
WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id;

-- name: MaintainOutbox :one
-- Makes and drops partitions: see video.outbox_maintain.
SELECT m.created::int AS created, m.dropped::int AS dropped
FROM video.outbox_maintain(@days_ahead::int, @keep::interval) AS m;

-- name: ListOutboxBlocked :many
-- The blocked aggregates, parked ones first, with the first event of each.
SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.next_retry_at, b.last_error, b.parked_at,
	coalesce(h.id, '00000000-0000-0000-0000-000000000000')::uuid AS event_id, coalesce(h.version, 0)::bigint AS version
FROM video.outbox_blocked b
LEFT JOIN LATERAL (
	SELECT p.id, p.version FROM video.outbox_aside p
	WHERE p.lane + 0 = -1 AND p.aggregate_type = b.aggregate_type AND p.aggregate_id = b.aggregate_id
	ORDER BY p.seq LIMIT 1
) h ON true
ORDER BY b.parked_at NULLS LAST, b.aggregate_type, b.aggregate_id
LIMIT @max_rows;

-- name: RequeueOutbox :execrows
-- Makes a blocked aggregate due at once. The row stays: only a settle under the fence may delete it,
-- or the settlement of a claim that saw it could set events aside that nobody fetches again. By the attempts, the
-- settlement of the last one, if that is under way, knows that it must not park the event again.
UPDATE video.outbox_blocked
SET parked_at = NULL, attempts = 0, next_retry_at = now()
WHERE aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id;

-- name: SkipOutbox :execrows
-- Gives up the first event of a blocked aggregate, which must be the one named, and makes the next one due. By the floor,
-- the settlement of an attempt that is under way knows that its failure is not of that one.
WITH gone AS (
	DELETE FROM video.outbox_pending head
	WHERE head.lane = -1 AND head.id = @event_id AND head.seq = (
		SELECT min(p.seq) FROM video.outbox_aside p
		WHERE p.lane + 0 = -1 AND p.aggregate_type = @aggregate_type AND p.aggregate_id = @aggregate_id
	)
	RETURNING head.seq
)
UPDATE video.outbox_blocked b
SET parked_at = NULL, last_error = '', attempts = 0, next_retry_at = now(), floor_seq = gone.seq
FROM gone
WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id;

-- name: MeasureOutbox :one
-- The backlog, without reading all of it: when the oldest event happened that waits, and the oldest that is set aside (the
-- epoch: none), how many events are pending, and how many aggregates blocked and parked, each counted up to max_counted, and
-- how many lanes somebody publishes.
WITH lanes AS (
	SELECT l.lane, l.floor_seq, l.leased_until FROM generate_series(0, 7) AS n (lane)
	CROSS JOIN LATERAL (
		SELECT l.lane, l.floor_seq, l.leased_until FROM video.outbox_lanes l
		WHERE l.lane = n.lane ORDER BY l.era DESC LIMIT 1
	) l
	UNION ALL
	SELECT -1::smallint, 0, '-infinity'
), heads AS (
	SELECT l.lane, head.occurred_at
	FROM lanes l
	CROSS JOIN LATERAL (
		SELECT p.occurred_at FROM video.outbox_pending p
		WHERE p.lane = l.lane AND p.seq > l.floor_seq
		ORDER BY p.seq LIMIT 1
	) head
)
SELECT
	coalesce((SELECT min(h.occurred_at) FROM heads h WHERE h.lane >= 0), 'epoch')::timestamptz AS oldest,
	coalesce((SELECT h.occurred_at FROM heads h WHERE h.lane = -1), 'epoch')::timestamptz AS oldest_blocked,
	(SELECT count(*) FROM (
		SELECT 1 FROM lanes l
		CROSS JOIN LATERAL (
			SELECT 1 FROM video.outbox_pending p
			WHERE p.lane = l.lane AND p.seq > l.floor_seq
			ORDER BY p.seq LIMIT @max_counted
		) p
		LIMIT @max_counted
	) counted)::bigint AS pending,
	(SELECT count(*) FROM (
		SELECT 1 FROM lanes l
		CROSS JOIN LATERAL (SELECT 1 FROM video.outbox_blocked b WHERE b.lane = l.lane ORDER BY b.lane, b.next_retry_at LIMIT @max_counted) b
		LIMIT @max_counted
	) counted)::bigint AS blocked,
	(SELECT count(*) FROM (
		SELECT 1 FROM lanes l
		CROSS JOIN LATERAL (SELECT 1 FROM video.outbox_blocked b WHERE b.lane = l.lane AND b.next_retry_at IS NULL LIMIT @max_counted) b
		LIMIT @max_counted
	) counted)::bigint AS parked,
	(SELECT count(*) FROM lanes l WHERE l.leased_until > now())::bigint AS leased;

-- name: MeasureOutboxTables :one
-- How many days have their partition before they come, and the bytes on disk of the outbox and of what is pending.
SELECT
	coalesce(max(to_date(substr(c.relname, 9), 'YYYYMMDD')) - (now() AT TIME ZONE 'UTC')::date, 0)::int AS days_ahead,
	coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint AS outbox_bytes,
	(SELECT sum(pg_total_relation_size(p.relid)) FROM pg_partition_tree('video.outbox_pending') AS p)::bigint AS pending_bytes
FROM pg_catalog.pg_class c
WHERE c.relnamespace = 'video'::regnamespace AND c.relispartition AND c.relkind = 'r' AND c.relname ~ '^outbox_p[0-9]{8}$';
