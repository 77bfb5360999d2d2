-- name: InsertInbox :many
-- Records events as projected, and returns those that were not recorded before.
INSERT INTO video_catalog_read.inbox (consumer, event_id)
SELECT @consumer::text, event_id
FROM unnest(@event_ids::uuid[]) AS new (event_id)
ORDER BY event_id
ON CONFLICT DO NOTHING
RETURNING event_id;

-- name: LastInbox :one
-- Returns when a consumer has applied the newest of its events; the epoch if it has none.
SELECT coalesce((
	SELECT i.received_at FROM video_catalog_read.inbox i
	WHERE i.consumer = @consumer
	ORDER BY i.event_id DESC LIMIT 1
), 'epoch')::timestamptz AS applied_at;

-- name: PruneInbox :execrows
-- Deletes at most max_rows ids of events that happened and were received longer ago than older_than, by the clock of
-- the database. The condition on event_id uses the smallest UUIDv7 of that time, so that the query can use the primary
-- key. video_catalog.uuid7_floor computes the same value, but may be in another database.
DELETE FROM video_catalog_read.inbox i
WHERE (i.consumer, i.event_id) IN (
	SELECT o.consumer, o.event_id FROM video_catalog_read.inbox o
	WHERE o.consumer = @consumer::text
		AND o.received_at < now() - @older_than::interval
		AND o.event_id < (
			lpad(to_hex(floor(extract(epoch FROM now() - @older_than::interval) * 1000)::bigint), 12, '0') || repeat('0', 20)
		)::uuid
	ORDER BY o.event_id LIMIT @max_rows
);

-- name: GetOldestTransaction :one
-- Returns the id of the oldest open transaction that has one in the database server, also of a transaction in another
-- database and of a prepared one; empty if there is none. It needs no privilege, unlike pg_stat_activity.
SELECT (CASE WHEN pg_snapshot_xmin(s) < pg_snapshot_xmax(s) THEN pg_snapshot_xmin(s)::text ELSE '' END)::text AS id
FROM pg_current_snapshot() AS s;
