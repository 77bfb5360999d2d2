-- Backfill: snapshots of aggregates, which operators publish. The pages are small, so that no statement comes near
-- statement_timeout. The insert and its audit row are one statement.

-- name: CountPending :one
-- Counts the events in lanes, up to max_counted. Deferred events do not count: they delay no other aggregate.
SELECT count(*)::bigint
FROM (
	SELECT 1 FROM video_catalog.outbox_lanes l
	CROSS JOIN LATERAL (
		SELECT 1 FROM video_catalog.outbox_pending p
		WHERE p.lane = l.lane AND p.seq > l.floor_seq
		ORDER BY p.seq LIMIT @max_counted
	) pending
	LIMIT @max_counted
) counted;

-- name: AppendSnapshots :exec
-- Makes snapshots of aggregates of one type pending. Each array has one value per snapshot. The caller has locked the
-- aggregates, as for AppendOutbox, and the lock has given the transaction its id.
WITH new AS (
	SELECT
		unnest(@lanes::smallint[]) AS lane,
		unnest(@ids::uuid[]) AS id,
		unnest(@aggregate_ids::text[]) AS aggregate_id,
		unnest(@versions::bigint[]) AS version,
		unnest(@payloads::bytea[]) AS payload,
		unnest(@times::timestamptz[]) AS occurred_at
), appended AS (
	INSERT INTO video_catalog.outbox_pending (
		lane,
		id,
		aggregate_type,
		aggregate_id,
		event_type,
		version,
		schema_version,
		payload,
		occurred_at,
		repeat
	)
	SELECT
		n.lane,
		n.id,
		@aggregate_type,
		n.aggregate_id,
		@event_type,
		n.version,
		@schema_version,
		n.payload,
		n.occurred_at,
		'snapshot'
	FROM new n
	RETURNING id
)
INSERT INTO video_catalog.audit (
	action_id,
	actor,
	via,
	action,
	filter,
	reason,
	items,
	before
)
SELECT
	@action_id,
	@actor,
	@via,
	@action,
	@filter,
	@reason,
	count(*),
	@before
FROM appended;
