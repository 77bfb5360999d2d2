-- name: InsertInbox :many
-- Records events as projected in the present generation of the inbox, and returns those that were not recorded before.
INSERT INTO video_catalog_read.inbox (consumer, event_id)
SELECT @consumer::text || coalesce((SELECT '#' || g.generation FROM video_catalog_read.inbox_generations g WHERE g.consumer = @consumer), ''), event_id
FROM (SELECT unnest(@event_ids::uuid[]) AS event_id) new
ORDER BY event_id
ON CONFLICT DO NOTHING
RETURNING event_id;

-- name: PruneInbox :execrows
-- Deletes at most max_rows ids of events that happened and were received longer ago than older_than, by the clock of the
-- database. The condition on event_id uses the smallest UUIDv7 of that time, so that the query can use the primary key.
-- video_catalog.uuid7_floor computes the same value, but may be in another database.
DELETE FROM video_catalog_read.inbox i
WHERE (i.consumer, i.event_id) IN (
	SELECT o.consumer, o.event_id FROM video_catalog_read.inbox o
	WHERE o.consumer = @consumer::text || coalesce((SELECT '#' || g.generation FROM video_catalog_read.inbox_generations g WHERE g.consumer = @consumer), '')
		AND o.received_at < now() - @older_than::interval
		AND o.event_id < (lpad(to_hex(floor(extract(epoch FROM now() - @older_than::interval) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
	ORDER BY o.event_id
	LIMIT @max_rows
);

-- name: NextInboxGeneration :one
-- Makes the inbox of a consumer empty: from now on every event is new.
INSERT INTO video_catalog_read.inbox_generations AS g (consumer, generation) VALUES (@consumer, 1)
ON CONFLICT (consumer) DO UPDATE SET generation = g.generation + 1
RETURNING generation;

-- name: PruneInboxGenerations :execrows
-- Deletes at most max_rows ids of earlier generations.
DELETE FROM video_catalog_read.inbox i
WHERE (i.consumer, i.event_id) IN (
	SELECT o.consumer, o.event_id
	FROM video_catalog_read.inbox_generations g
	CROSS JOIN LATERAL generate_series(0, g.generation - 1) earlier
	JOIN video_catalog_read.inbox o ON o.consumer = g.consumer || CASE WHEN earlier = 0 THEN '' ELSE '#' || earlier END
	WHERE g.consumer = @consumer
	LIMIT @max_rows
);
