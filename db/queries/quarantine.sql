-- name: InsertQuarantine :exec
INSERT INTO catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
VALUES (@consumer, @message_id, @ordering_key, @attributes, @payload, @reason, @publish_time)
ON CONFLICT (consumer, message_id) DO NOTHING;

-- name: ListQuarantine :many
SELECT * FROM catalog_read.quarantine WHERE consumer = @consumer AND id > @after_id ORDER BY id LIMIT @max_rows;

-- name: DeleteQuarantine :execrows
DELETE FROM catalog_read.quarantine WHERE id = @id;

-- name: MeasureCatalog :one
-- The messages in quarantine, counted up to max_counted, and the bytes on disk of the projection and of the inbox.
SELECT
	(SELECT count(*) FROM (SELECT 1 FROM catalog_read.quarantine q WHERE q.consumer = @consumer LIMIT @max_counted) counted)::bigint AS quarantined,
	pg_total_relation_size('catalog_read.video_projection')::bigint AS projection_bytes,
	pg_total_relation_size('catalog_read.inbox')::bigint AS inbox_bytes;
