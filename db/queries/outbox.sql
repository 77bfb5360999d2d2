-- name: AppendOutbox :exec
SELECT video.outbox_append(@id::uuid, @aggregate_type::text, @aggregate_id::text, @event_type::text, @version::bigint, @schema_version::int, @payload::bytea, @occurred_at::timestamptz, sqlc.narg('traceparent')::text);

-- name: ClaimOutbox :many
-- Claims a lane: see video.outbox_claim. The service reads the rows itself (store.readClaim), in the order of these columns.
SELECT c.lane::smallint AS lane, c.lease_token::bigint AS lease_token, c.seq::bigint AS seq,
	c.retry::bool AS retry, c.blocked::bool AS blocked, c.attempts::int AS attempts,
	c.id::uuid AS id, c.aggregate_type::text AS aggregate_type, c.aggregate_id::text AS aggregate_id, c.version::bigint AS version,
	c.event_type::text AS event_type, c.schema_version::int AS schema_version, c.payload::bytea AS payload,
	c.occurred_at::timestamptz AS occurred_at, c.traceparent::text AS traceparent
FROM video.outbox_claim(@max_events::int, @max_bytes::bigint, @lease_for::interval,
	video.outbox_lane(sqlc.narg('of_type')::text, sqlc.narg('of_id')::text),
	@token::bigint, @lost_tokens::bigint[]) AS c;

-- name: SettleOutbox :one
-- Settles a claim: see video.outbox_settle.
SELECT video.outbox_settle(@lane::smallint, @lease_token::bigint, @done_seqs::bigint[], @retried_seqs::bigint[],
	@failed_types::text[], @failed_ids::text[], @failed_seqs::bigint[], @failed_attempts::int[], @failed_errors::text[], @failed_retry_in::interval[], @failed_park::bool[],
	@aside_seqs::bigint[], @recovered_types::text[], @recovered_ids::text[],
	sqlc.narg('head_seq')::bigint, sqlc.narg('tail_seq')::bigint)::bool AS held;

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
-- The backlog: see video.outbox_measure. The epoch is the word for none.
SELECT coalesce(m.oldest, 'epoch')::timestamptz AS oldest, coalesce(m.oldest_blocked, 'epoch')::timestamptz AS oldest_blocked,
	m.pending::bigint AS pending, m.blocked::bigint AS blocked, m.parked::bigint AS parked, m.leased::bigint AS leased
FROM video.outbox_measure(@max_counted::int) AS m;

-- name: MeasureOutboxTables :one
-- How many days have their partition before they come, and the bytes on disk of the outbox and of what is pending.
SELECT
	coalesce(max(to_date(substr(c.relname, 9), 'YYYYMMDD')) - (now() AT TIME ZONE 'UTC')::date, 0)::int AS days_ahead,
	coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint AS outbox_bytes,
	(SELECT sum(pg_total_relation_size(p.relid)) FROM pg_partition_tree('video.outbox_pending') AS p)::bigint AS pending_bytes
FROM pg_catalog.pg_class c
WHERE c.relnamespace = 'video'::regnamespace AND c.relispartition AND c.relkind = 'r' AND c.relname ~ '^outbox_p[0-9]{8}$';
