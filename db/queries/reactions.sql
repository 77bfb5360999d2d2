-- name: InsertReactions :many
-- Records events as reacted to, and returns those that were not recorded before. It waits for a transaction that is
-- recording one of them.
INSERT INTO video_catalog.inbox (consumer, event_id)
SELECT @consumer, event_id
FROM (SELECT unnest(@event_ids::uuid[]) AS event_id) new
ORDER BY event_id
ON CONFLICT DO NOTHING
RETURNING event_id;

-- name: PruneReactions :execrows
-- Deletes at most max_rows ids of events that happened and were received longer ago than older_than, by the clock of the
-- database. The condition on event_id uses the smallest UUIDv7 of that time, so that the query can use the primary key.
DELETE FROM video_catalog.inbox i
WHERE (i.consumer, i.event_id) IN (
	SELECT o.consumer, o.event_id FROM video_catalog.inbox o
	WHERE o.consumer = @consumer
		AND o.received_at < now() - @older_than::interval
		AND o.event_id < video_catalog.uuid7_floor(now() - @older_than::interval)
	ORDER BY o.event_id
	LIMIT @max_rows
);

-- name: ListReactionNames :many
-- Returns the consumers that have rows. It skips from name to name by the primary key.
WITH RECURSIVE found AS (
	(SELECT i.consumer FROM video_catalog.inbox i ORDER BY i.consumer LIMIT 1)
	UNION ALL
	SELECT next.consumer FROM found f
	CROSS JOIN LATERAL (SELECT i.consumer FROM video_catalog.inbox i WHERE i.consumer > f.consumer ORDER BY i.consumer LIMIT 1) next
)
SELECT consumer FROM found ORDER BY consumer;

-- name: MeasureReactions :one
-- Is MeasureInbox for the inbox of the command side.
WITH page AS (
	SELECT i.event_id, i.received_at FROM video_catalog.inbox i
	WHERE i.consumer = @consumer AND i.event_id > @after_id
	ORDER BY i.event_id LIMIT @max_read
)
SELECT count(*)::bigint AS read, coalesce((SELECT p.event_id FROM page p ORDER BY p.event_id DESC LIMIT 1), @after_id)::uuid AS last_id,
	coalesce(min(p.received_at), 'epoch')::timestamptz AS oldest, coalesce(max(p.received_at), 'epoch')::timestamptz AS newest
FROM page p;

-- name: ListReactions :many
-- Returns which of some events some consumers have reacted to, and when.
SELECT i.event_id, i.consumer, i.received_at FROM video_catalog.inbox i
WHERE i.consumer = ANY (@consumers::text[]) AND i.event_id = ANY (@event_ids::uuid[])
ORDER BY i.consumer, i.event_id;
