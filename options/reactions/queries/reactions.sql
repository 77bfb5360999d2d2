-- name: InsertReactions :many
-- Records events in the inbox, and returns the ones that were not recorded before. It waits for a transaction that is
-- recording one of them.
INSERT INTO video_catalog.inbox (consumer, event_id)
SELECT @consumer, event_id
FROM (SELECT unnest(@event_ids::uuid[]) AS event_id) new
ORDER BY event_id
ON CONFLICT DO NOTHING
RETURNING event_id;

-- name: PruneReactions :execrows
-- Deletes at most max_rows ids of events that happened and were received longer ago than older_than, by the clock of
-- the database. The condition on event_id uses the smallest UUIDv7 of that time, so that the query can use the primary
-- key.
DELETE FROM video_catalog.inbox i
WHERE (i.consumer, i.event_id) IN (
	SELECT o.consumer, o.event_id FROM video_catalog.inbox o
	WHERE o.consumer = @consumer
		AND o.received_at < now() - @older_than::interval
		AND o.event_id < video_catalog.uuid7_floor(now() - @older_than::interval)
	ORDER BY o.event_id
	LIMIT @max_rows
);
