-- What operators publish again: events of the outbox, and snapshots of aggregates. The pages are small, so that no statement
-- comes near statement_timeout. Each insert and its audit row are one statement.

-- name: CountPending :one
-- Counts the events in lanes, up to max_counted. Those that are set aside do not count: they delay no other aggregate.
SELECT count(*)::bigint
FROM (
	SELECT 1 FROM generate_series(0, 7) AS n (lane)
	CROSS JOIN LATERAL (
		SELECT l.lane, l.floor_seq FROM video_catalog.outbox_lanes l
		WHERE l.lane = n.lane ORDER BY l.era DESC LIMIT 1
	) l
	CROSS JOIN LATERAL (
		SELECT 1 FROM video_catalog.outbox_pending p
		WHERE p.lane = l.lane AND p.seq > l.floor_seq
		ORDER BY p.seq LIMIT @max_counted
	) p
	LIMIT @max_counted
) counted;

-- name: CountRepeats :one
-- Reads at most max_read events behind after_id up to until_id, in the order of ids. It returns how many it has read, the last
-- of them, and how many match. An empty id matches all.
WITH page AS (
	SELECT o.id, o.aggregate_type, o.aggregate_id FROM video_catalog.outbox o
	WHERE o.id > @after_id AND o.id <= @until_id
	ORDER BY o.id LIMIT @max_read
)
SELECT count(*)::bigint AS read,
	coalesce((SELECT p.id FROM page p ORDER BY p.id DESC LIMIT 1), @after_id)::uuid AS last_id,
	(count(*) FILTER (WHERE p.aggregate_type = ANY (@types::text[]) AND (@aggregate_id::text = '' OR p.aggregate_id = @aggregate_id)))::bigint AS matched
FROM page p;

-- name: ScanOutbox :one
-- Reads a page as CountRepeats does. It returns the first events of it that match: at most max_rows, ending with the one with
-- which their payloads reach max_bytes. Element n of ids, aggregate_types and aggregate_ids belong together.
WITH page AS (
	SELECT o.id, o.aggregate_type, o.aggregate_id, octet_length(o.payload) AS bytes FROM video_catalog.outbox o
	WHERE o.id > @after_id AND o.id <= @until_id
	ORDER BY o.id LIMIT @max_read
), found AS (
	SELECT p.id, p.aggregate_type, p.aggregate_id, sum(p.bytes) OVER (ORDER BY p.id) - p.bytes AS bytes_before FROM page p
	WHERE p.aggregate_type = ANY (@types::text[]) AND (@aggregate_id::text = '' OR p.aggregate_id = @aggregate_id)
	ORDER BY p.id LIMIT @max_rows
), taken AS (
	SELECT f.id, f.aggregate_type, f.aggregate_id FROM found f WHERE f.bytes_before < @max_bytes::bigint
)
SELECT (SELECT count(*) FROM page)::bigint AS read,
	coalesce((SELECT p.id FROM page p ORDER BY p.id DESC LIMIT 1), @after_id)::uuid AS last_id,
	ARRAY(SELECT t.id FROM taken t ORDER BY t.id)::uuid[] AS ids,
	ARRAY(SELECT t.aggregate_type FROM taken t ORDER BY t.id)::text[] AS aggregate_types,
	ARRAY(SELECT t.aggregate_id FROM taken t ORDER BY t.id)::text[] AS aggregate_ids;

-- name: BeginRepeat :exec
-- Gives the transaction its id before it draws a seq: see AppendOutbox.
SELECT pg_current_xact_id();

-- name: RepeatOutbox :one
-- Makes events of the outbox pending again, and returns how many. They get the next seqs, in the order of their versions. The
-- caller has locked their aggregates, as for AppendOutbox. Those of purged aggregates are about to be erased, and stay as they
-- are.
WITH repeated AS (
	INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent, repeat,
		causation_id, correlation_id)
	SELECT video_catalog.outbox_lane(o.aggregate_type, o.aggregate_id), o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.version,
		o.schema_version, o.payload, o.occurred_at, o.traceparent, 'event',
		o.causation_id, o.correlation_id
	FROM video_catalog.outbox o
	WHERE o.id = ANY (@ids::uuid[]) AND NOT EXISTS (
		SELECT FROM video_catalog.erasures e WHERE e.aggregate_type = o.aggregate_type AND e.aggregate_id = o.aggregate_id
	)
	ORDER BY o.version, o.id
	RETURNING id
), audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, count(*), @before FROM repeated HAVING count(*) > 0
)
SELECT count(*)::bigint FROM repeated;

-- name: AppendSnapshots :one
-- Makes snapshots of aggregates of one type pending, and returns how many. Each array has one value per snapshot. The caller
-- has locked the aggregates, as for AppendOutbox.
WITH new AS (
	SELECT unnest(@ids::uuid[]) AS id,
		unnest(@aggregate_ids::text[]) AS aggregate_id,
		unnest(@versions::bigint[]) AS version,
		unnest(@payloads::bytea[]) AS payload,
		unnest(@times::timestamptz[]) AS occurred_at
), repeated AS (
	INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, repeat)
	SELECT video_catalog.outbox_lane(@aggregate_type, n.aggregate_id), n.id, @aggregate_type, n.aggregate_id, @event_type, n.version,
		@schema_version, n.payload, n.occurred_at, 'snapshot'
	FROM new n
	RETURNING id
), audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, count(*), @before FROM repeated HAVING count(*) > 0
)
SELECT count(*)::bigint FROM repeated;
