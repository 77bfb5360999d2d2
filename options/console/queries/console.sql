-- name: OldestDeferred :one
-- Returns the age of the oldest of max_read events of blocked aggregates, in seconds; 0 if there is none. Events that
-- are published again have no age.
SELECT greatest(extract(epoch FROM now() - min(dated.occurred_at)), 0)::float8 AS age
FROM (
	SELECT CASE d.repeat WHEN '' THEN d.occurred_at END AS occurred_at FROM video_catalog.outbox_deferred d
	ORDER BY d.aggregate_type, d.aggregate_id, d.seq LIMIT @max_read
) dated;

-- name: ListNewest :many
-- Returns the newest events of the outbox, the newest first.
SELECT
	id,
	aggregate_type,
	aggregate_id,
	event_type,
	version,
	occurred_at
FROM video_catalog.outbox
ORDER BY id DESC
LIMIT @max_rows;

-- name: FindPublished :many
-- Returns the newest published event of some types, or nothing. It reads the newest max_read events before until_id,
-- which must be older than all events in the lanes. Events of blocked aggregates may be deferred, and do not count.
SELECT o.id, o.aggregate_type, o.occurred_at
FROM (
	SELECT n.id, n.aggregate_type, n.aggregate_id, n.occurred_at FROM video_catalog.outbox n
	WHERE n.id < @until_id
	ORDER BY n.id DESC
	LIMIT @max_read
) o
WHERE o.aggregate_type = ANY (@types::text[])
	AND (SELECT count(*) FROM video_catalog.outbox_blocked b
		WHERE b.aggregate_type = o.aggregate_type COLLATE "C" AND b.aggregate_id = o.aggregate_id COLLATE "C") = 0
	AND (SELECT count(*) FROM video_catalog.outbox_skipped s WHERE s.event_id = o.id) = 0
ORDER BY o.id DESC
LIMIT 1;

-- name: CountEvents :one
-- Counts the events whose ids are in a range, up to max_counted. The ids are UUIDv7, so a range of ids is a range of
-- time.
SELECT count(*)::bigint AS n
FROM (
	SELECT 1 FROM video_catalog.outbox WHERE id >= @from_id AND id < @until_id LIMIT @max_counted
) counted;

-- name: SampleInbox :one
-- Measures the newest max_read events that each consumer has applied. applied_at is the time of the last one; the epoch
-- if there is none. applied counts the events of the last five minutes. p50 and p99 are the median and the 99th
-- percentile of their lag, in seconds since the time in their ids. Snapshots are no events: the time in their ids is 0.
WITH newest AS (
	SELECT
		i.received_at,
		i.received_at > now() - interval '5 minutes' AS recent,
		extract(epoch FROM i.received_at)
			- ('x' || translate(left(i.event_id::text, 13), '-', ''))::bit(48)::bigint / 1000.0 AS lag
	FROM unnest(@consumers::text[]) AS c (consumer)
	CROSS JOIN LATERAL (
		SELECT o.event_id, o.received_at FROM video_catalog_read.inbox o
		WHERE o.consumer = c.consumer AND o.event_id >= '00000000-0001-7000-8000-000000000000'
		ORDER BY o.event_id DESC
		LIMIT @max_read
	) i
)
SELECT
	coalesce(max(received_at), 'epoch')::timestamptz AS applied_at,
	(count(*) FILTER (WHERE recent))::bigint AS applied,
	coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY lag) FILTER (WHERE recent), 0)::float8 AS p50,
	coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY lag) FILTER (WHERE recent), 0)::float8 AS p99
FROM newest;

-- name: CountQuarantine :one
-- Counts the messages in quarantine, up to max_counted.
SELECT count(*)::bigint AS n FROM (SELECT 1 FROM video_catalog_read.quarantine LIMIT @max_counted) counted;

-- name: ListEvents :many
-- Returns up to max_rows events of one aggregate, the newest first. The outbox has no index of aggregates, so the query
-- reads only the newest max_read events from from_id on.
SELECT
	id,
	event_type,
	version,
	occurred_at,
	coalesce(traceparent, '')::text AS traceparent,
	coalesce(caller, '')::text AS caller,
	causation_id,
	correlation_id
FROM (
	SELECT
		id,
		aggregate_type,
		aggregate_id,
		event_type,
		version,
		occurred_at,
		traceparent,
		caller,
		causation_id,
		correlation_id
	FROM video_catalog.outbox
	WHERE id >= @from_id
	ORDER BY id DESC LIMIT @max_read
) newest
WHERE aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id
ORDER BY id DESC
LIMIT @max_rows;

-- name: FindEvents :many
-- Returns the given events, if the outbox still has them.
SELECT
	id,
	aggregate_type,
	aggregate_id,
	event_type
FROM video_catalog.outbox
WHERE id = ANY (@ids::uuid[]);

-- name: ListPending :many
-- Returns the ids of the pending events of one aggregate that are among the first max_read of a lane, and of the
-- deferred ones.
SELECT head.id
FROM video_catalog.outbox_lanes l
CROSS JOIN LATERAL (
	SELECT p.id, p.aggregate_type, p.aggregate_id FROM video_catalog.outbox_pending p
	WHERE p.lane = l.lane AND p.seq > l.floor_seq
	ORDER BY p.seq LIMIT @max_read
) head
WHERE head.aggregate_type = @aggregate_type::text AND head.aggregate_id = @aggregate_id::text
UNION ALL
SELECT d.id
FROM video_catalog.outbox_deferred d
WHERE d.aggregate_type = @aggregate_type AND d.aggregate_id = @aggregate_id;

-- name: ListWaiting :many
-- Returns the events that wait longest for the broker, among the first max_rows of each lane and max_read deferred ones.
-- Snapshots, which have the time of an old event, come last.
SELECT
	w.lane,
	w.aggregate_type,
	w.aggregate_id,
	w.event_type,
	w.version,
	w.occurred_at,
	w.repeat,
	w.deferred
FROM (
	SELECT head.*, false AS deferred
	FROM video_catalog.outbox_lanes l
	CROSS JOIN LATERAL (
		SELECT p.lane, p.seq, p.aggregate_type, p.aggregate_id, p.event_type, p.version, p.occurred_at, p.repeat
		FROM video_catalog.outbox_pending p
		WHERE p.lane = l.lane AND p.seq > l.floor_seq
		ORDER BY p.seq LIMIT @max_rows
	) head
	UNION ALL
	SELECT d.*, true AS deferred
	FROM (
		SELECT e.lane, e.seq, e.aggregate_type, e.aggregate_id, e.event_type, e.version, e.occurred_at, e.repeat
		FROM video_catalog.outbox_deferred e
		ORDER BY e.aggregate_type, e.aggregate_id, e.seq LIMIT @max_read
	) d
) w
ORDER BY w.repeat, w.occurred_at, w.seq
LIMIT @max_rows;

-- name: ListSkipped :many
-- Returns which of the given events people have skipped.
SELECT event_id FROM video_catalog.outbox_skipped WHERE event_id = ANY (@event_ids::uuid[]);

-- name: HasTable :one
-- Reports whether a table exists that not every service has.
SELECT (to_regclass(@name::text) IS NOT NULL)::bool AS has;

-- name: ListApplied :many
-- Returns when each of some events was applied, by consumer.
SELECT i.consumer, i.event_id, i.received_at FROM video_catalog_read.inbox i
WHERE i.consumer = ANY (@consumers::text[]) AND i.event_id = ANY (@event_ids::uuid[])
ORDER BY i.received_at;

-- name: HadApplied :one
-- Reports whether a consumer applied an event with a lower id before a time.
SELECT EXISTS (
	SELECT FROM video_catalog_read.inbox i
	WHERE i.consumer = @consumer AND i.event_id BETWEEN '00000000-0001-7000-8000-000000000000' AND @until_id AND i.received_at < @before
) AS had;

-- name: ListColumns :many
-- Returns the columns of a table that the user may read; none if there is no such table.
SELECT a.attname::text AS name
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = to_regclass(@table_name::text) AND a.attnum > 0 AND NOT a.attisdropped
	AND has_column_privilege(a.attrelid, a.attnum, 'SELECT');

-- name: GetCommandPrivileges :one
-- Returns the user of this connection, whether it may act on the command side, and the time.
SELECT
	session_user::text AS name,
	now()::timestamptz AS at,
	coalesce(
		has_table_privilege(to_regclass('video_catalog.outbox_blocked'), 'UPDATE')
			AND current_setting('transaction_read_only') = 'off',
		false
	)::bool AS writes;

-- name: GetQueryPrivileges :one
-- Returns the same for the query side.
SELECT
	session_user::text AS name,
	coalesce(
		has_table_privilege(to_regclass('video_catalog_read.quarantine'), 'DELETE')
			AND current_setting('transaction_read_only') = 'off',
		false
	)::bool AS writes;

-- name: LastSeek :one
-- Returns when an inbox was last emptied, to have events delivered again; the epoch if the audit has no seek.
SELECT coalesce(max(a.create_time), 'epoch')::timestamptz AS sought_at
FROM video_catalog_read.audit a
WHERE a.action = 'inbox.seek';

-- name: ListTables :many
-- Returns the given tables of aggregates that the user may read, with expressions: the title of a row, and whether
-- it is erased. The title is the column title or display_name, or else the first text; empty if there is none.
SELECT DISTINCT ON (c.oid)
	c.relname::text AS name,
	coalesce(quote_ident(a.attname), '''''')::text AS title,
	CASE WHEN p.attname IS NULL THEN 'false' ELSE 'purge_time IS NOT NULL' END AS erased
FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnotnull AND a.atttypid = 'text'::regtype
	AND a.attname <> 'state' AND has_column_privilege(c.oid, a.attnum, 'SELECT')
LEFT JOIN pg_catalog.pg_attribute p ON p.attrelid = c.oid AND p.attname = 'purge_time' AND NOT p.attisdropped
WHERE c.relnamespace = to_regnamespace('video_catalog') AND c.relname = ANY (@tables::text[])
	AND has_column_privilege(c.oid, 'id', 'SELECT')
ORDER BY c.oid, (a.attname IN ('title', 'display_name')) DESC, a.attnum;

-- name: ListCommandAudit :many
-- Returns what operators did to the command side, the newest first.
SELECT
	id,
	action_id,
	create_time,
	actor,
	via,
	database_user,
	action,
	reason,
	items,
	filter,
	before,
	after
FROM video_catalog.audit
ORDER BY id DESC
LIMIT @max_rows;

-- name: ListQueryAudit :many
-- The same for the query side.
SELECT
	id,
	action_id,
	create_time,
	actor,
	via,
	database_user,
	action,
	reason,
	items,
	filter,
	before,
	after
FROM video_catalog_read.audit
ORDER BY id DESC
LIMIT @max_rows;
