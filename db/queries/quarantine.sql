-- name: InsertQuarantine :exec
-- Stores a whole message, unless the quarantine would then have more than max_bytes: then it stores the message
-- shortened. Messages that are stored at the same time may together exceed the limit.
INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, payload_size, payload_sha256, reason, publish_time)
SELECT @consumer, @message_id, @ordering_key,
	CASE WHEN room.enough THEN @attributes::jsonb ELSE @short_attributes::jsonb END,
	CASE WHEN room.enough THEN @payload::bytea END,
	CASE WHEN NOT room.enough THEN octet_length(@payload) END,
	CASE WHEN NOT room.enough THEN encode(sha256(@payload), 'hex') END,
	CASE WHEN room.enough THEN @reason::text ELSE @short_reason::text END,
	@publish_time
FROM (SELECT coalesce(sum(s.bytes), 0) + @message_bytes::bigint <= @max_bytes::bigint AS enough FROM video_catalog_read.quarantine_size s) room
ON CONFLICT (consumer, message_id) DO NOTHING;

-- name: ListQuarantine :many
SELECT * FROM video_catalog_read.quarantine WHERE consumer = @consumer AND id > @after_id ORDER BY id LIMIT @max_rows;

-- name: DeleteQuarantine :execrows
DELETE FROM video_catalog_read.quarantine WHERE id = @id;

-- name: PruneQuarantine :execrows
-- Deletes messages of all consumers that were received longer ago than older_than, by the clock of the database. Ids grow
-- with that time, so it reads only the first max_rows.
DELETE FROM video_catalog_read.quarantine
WHERE id IN (SELECT q.id FROM video_catalog_read.quarantine q ORDER BY q.id LIMIT @max_rows)
	AND received_at < now() - @older_than::interval;

-- name: MeasureQuarantine :one
-- Returns the number of messages of some consumers in quarantine, counted up to max_counted, and the bytes of all.
SELECT
	(SELECT count(*) FROM (SELECT 1 FROM video_catalog_read.quarantine q WHERE q.consumer = ANY (@consumers::text[]) LIMIT @max_counted) counted)::bigint AS quarantined,
	(SELECT coalesce(sum(s.bytes), 0) FROM video_catalog_read.quarantine_size s)::bigint AS quarantine_bytes;

-- name: MeasureTables :many
-- Returns the bytes on disk of each table of the query side.
SELECT c.relname::text AS name, pg_total_relation_size(c.oid)::bigint AS bytes
FROM pg_catalog.pg_class c
WHERE c.relnamespace = 'video_catalog_read'::regnamespace AND c.relkind = 'r';
