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
-- Makes the inbox of a consumer empty, and appends the audit row: from now on every event is new.
WITH next AS (
	INSERT INTO video_catalog_read.inbox_generations AS g (consumer, generation) VALUES (@consumer, 1)
	ON CONFLICT (consumer) DO UPDATE SET generation = g.generation + 1
	RETURNING g.consumer, g.generation
), audited AS (
	INSERT INTO video_catalog_read.audit (action_id, actor, via, action, filter, reason, items, before, after)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, 1,
		jsonb_build_array(jsonb_build_object('consumer', n.consumer, 'generation', n.generation - 1)),
		jsonb_build_array(jsonb_build_object('consumer', n.consumer, 'generation', n.generation))
	FROM next n
)
SELECT n.generation FROM next n;

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

-- name: ListInboxNames :many
-- Returns the names under which the inbox has rows, and that of the present generation of every consumer. It skips from name to
-- name by the primary key.
WITH RECURSIVE found AS (
	(SELECT i.consumer AS name FROM video_catalog_read.inbox i ORDER BY i.consumer LIMIT 1)
	UNION ALL
	SELECT next.name FROM found f
	CROSS JOIN LATERAL (SELECT i.consumer AS name FROM video_catalog_read.inbox i WHERE i.consumer > f.name ORDER BY i.consumer LIMIT 1) next
), known AS (
	SELECT g.consumer, n.generation, n.generation = g.generation AS present,
		g.consumer || CASE WHEN n.generation = 0 THEN '' ELSE '#' || n.generation END AS name
	FROM video_catalog_read.inbox_generations g
	CROSS JOIN LATERAL generate_series(0, g.generation) AS n (generation)
)
SELECT coalesce(f.name, k.name)::text AS name, coalesce(k.consumer, f.name)::text AS consumer,
	coalesce(k.generation, 0)::bigint AS generation, coalesce(k.present, true)::bool AS present
FROM found f FULL JOIN known k ON k.name = f.name
WHERE f.name IS NOT NULL OR k.present
ORDER BY 2, 3;

-- name: MeasureInbox :one
-- Reads at most max_read rows of a name behind after_id, in the order of the ids. It returns how many it has read, the last id,
-- and the earliest and the latest time at which one was received.
WITH page AS (
	SELECT i.event_id, i.received_at FROM video_catalog_read.inbox i
	WHERE i.consumer = @name AND i.event_id > @after_id
	ORDER BY i.event_id LIMIT @max_read
)
SELECT count(*)::bigint AS read, coalesce((SELECT p.event_id FROM page p ORDER BY p.event_id DESC LIMIT 1), @after_id)::uuid AS last_id,
	coalesce(min(p.received_at), 'epoch')::timestamptz AS oldest, coalesce(max(p.received_at), 'epoch')::timestamptz AS newest
FROM page p;

-- name: ListInboxEvents :many
-- Returns which of some events the inbox has under a name, and when they were received.
SELECT i.event_id, i.received_at FROM video_catalog_read.inbox i
WHERE i.consumer = @name AND i.event_id = ANY (@event_ids::uuid[])
ORDER BY i.event_id;
