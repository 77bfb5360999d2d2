-- name: SampleLanes :many
-- Returns the lanes with their leases and their pending events, by the clock of the database. Lane -1 has the events
-- that are set aside. Events are counted up to max_counted per lane. oldest_age is in seconds; 0 if nothing is pending.
-- Run UseOutboxIndexes first.
WITH lanes AS (
	SELECT l.lane, l.era, l.lease_token, l.settlements, l.floor_seq, l.leased_until FROM generate_series(0, 7) AS n (lane)
	CROSS JOIN LATERAL (
		SELECT * FROM video_catalog.outbox_lanes l WHERE l.lane = n.lane ORDER BY l.era DESC LIMIT 1
	) l
	UNION ALL
	SELECT -1::smallint, 0, 0, 0, 0, '-infinity'
)
SELECT l.lane::smallint AS lane, l.era::bigint AS era, l.lease_token::bigint AS lease_token, l.settlements::bigint AS settlements,
	(CASE WHEN l.leased_until > now() THEN extract(epoch FROM l.leased_until - now()) ELSE 0 END)::float8 AS lease_left,
	greatest(coalesce(extract(epoch FROM now() - head.occurred_at), 0), 0)::float8 AS oldest_age,
	(SELECT count(*) FROM (
		SELECT 1 FROM video_catalog.outbox_pending p WHERE p.lane = l.lane AND p.seq > l.floor_seq ORDER BY p.seq LIMIT @max_counted
	) counted)::bigint AS pending,
	now()::timestamptz AS at
FROM lanes l
LEFT JOIN LATERAL (
	SELECT p.occurred_at FROM video_catalog.outbox_pending p WHERE p.lane = l.lane AND p.seq > l.floor_seq ORDER BY p.seq LIMIT 1
) head ON true
ORDER BY l.lane;

-- name: SampleBlocked :one
-- Counts blocked and parked aggregates, each up to max_counted.
SELECT
	(SELECT count(*) FROM (SELECT 1 FROM video_catalog.outbox_blocked LIMIT @max_counted) counted)::bigint AS blocked,
	(SELECT count(*) FROM (SELECT 1 FROM video_catalog.outbox_blocked WHERE next_retry_at IS NULL LIMIT @max_counted) counted)::bigint AS parked;

-- name: ListNewestOutbox :many
-- Returns the newest events of the outbox, the newest first.
SELECT id, aggregate_type, aggregate_id, event_type, version, occurred_at, coalesce(traceparent, '')::text AS traceparent
FROM video_catalog.outbox
ORDER BY id DESC
LIMIT @max_rows;

-- name: CountOutbox :one
-- Counts the events whose ids are in a range, up to max_counted. Their ids are UUIDv7, so a range of ids is one of time.
SELECT count(*)::bigint AS n FROM (
	SELECT 1 FROM video_catalog.outbox WHERE id >= @from_id AND id < @until_id LIMIT @max_counted
) counted;

-- name: ListAggregateEvents :many
-- Returns the newest events of one aggregate, the newest first. No index has the aggregates of the outbox, so it reads
-- only the newest max_read events from from_id to until_id, and of them returns up to max_rows.
SELECT id, event_type, version, schema_version, occurred_at, coalesce(traceparent, '')::text AS traceparent,
	coalesce(caller, '')::text AS caller, causation_id, correlation_id
FROM (
	SELECT id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent, caller, causation_id, correlation_id
	FROM video_catalog.outbox
	WHERE id >= @from_id AND id < @until_id
	ORDER BY id DESC LIMIT @max_read
) newest
WHERE aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id
ORDER BY id DESC
LIMIT @max_rows;

-- name: FindEvents :many
-- Returns those of some events that the outbox has. Run UseOutboxIndexes first.
SELECT id, aggregate_type, aggregate_id, event_type FROM video_catalog.outbox WHERE id = ANY (@ids::uuid[]);

-- name: ListAggregatePending :many
-- Returns the ids of the pending events of one aggregate that are among the first max_read of a lane, and the lane, which
-- is -1 for events set aside. Run UseOutboxIndexes first.
SELECT p.id, p.lane
FROM generate_series(0, 7) AS n (lane)
CROSS JOIN LATERAL (
	SELECT l.floor_seq FROM video_catalog.outbox_lanes l WHERE l.lane = n.lane ORDER BY l.era DESC LIMIT 1
) l
CROSS JOIN LATERAL (
	SELECT p.id, p.lane, p.aggregate_type, p.aggregate_id FROM video_catalog.outbox_pending p
	WHERE p.lane = n.lane AND p.seq > l.floor_seq
	ORDER BY p.seq LIMIT @max_read
) p
WHERE p.aggregate_type = @aggregate_type AND p.aggregate_id = @aggregate_id
UNION ALL
SELECT a.id, a.lane
FROM video_catalog.outbox_aside a
WHERE a.lane + 0 = -1 AND a.aggregate_type = @aggregate_type AND a.aggregate_id = @aggregate_id;

-- name: FindRequests :many
-- Returns the request that made an aggregate from from_time to until_time, if it is still known. No index has the aggregates
-- of the requests, so it reads those of this time.
SELECT request_id FROM video_catalog.requests
WHERE create_time >= @from_time AND create_time < @until_time AND aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id
LIMIT 1;

-- name: GetBlocked :one
SELECT attempts, next_retry_at, last_error, parked_at FROM video_catalog.outbox_blocked
WHERE aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id;

-- name: ListInboxTimes :many
-- Returns when each of some events was applied, by consumer.
SELECT i.consumer, i.event_id, i.received_at FROM video_catalog_read.inbox i
WHERE i.consumer = ANY (@consumers::text[]) AND i.event_id = ANY (@event_ids::uuid[])
ORDER BY i.received_at;

-- name: GetQuarantined :one
-- Returns a message without its payload.
SELECT id, consumer, message_id, ordering_key, attributes, coalesce(payload_size, 0)::bigint AS payload_size,
	coalesce(payload_sha256, '')::text AS payload_sha256, reason, publish_time, received_at
FROM video_catalog_read.quarantine WHERE id = @id;

-- name: GetCommandPrivileges :one
-- Returns what the user of this connection may do on the command side.
SELECT session_user::text AS name,
	coalesce(has_table_privilege(to_regclass('video_catalog.outbox_blocked'), 'UPDATE') AND current_setting('transaction_read_only') = 'off', false)::bool AS writes,
	coalesce(has_column_privilege(to_regclass('video_catalog.outbox'), 'payload', 'SELECT'), false)::bool AS reads_payloads;

-- name: GetQueryPrivileges :one
-- Returns the same for the query side.
SELECT session_user::text AS name,
	coalesce(has_table_privilege(to_regclass('video_catalog_read.quarantine'), 'DELETE') AND current_setting('transaction_read_only') = 'off', false)::bool AS writes,
	coalesce(has_column_privilege(to_regclass('video_catalog_read.quarantine'), 'payload', 'SELECT'), false)::bool AS reads_payloads;

-- name: GetServerVersion :one
SELECT current_setting('server_version')::text AS version;

-- name: ListReactions :many
-- Returns which of some events some consumers have reacted to, and when.
SELECT i.event_id, i.consumer, i.received_at FROM video_catalog.inbox i
WHERE i.consumer = ANY (@consumers::text[]) AND i.event_id = ANY (@event_ids::uuid[])
ORDER BY i.consumer, i.event_id;
