-- name: InsertQuarantine :exec
INSERT INTO catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time)
VALUES (@consumer, @message_id, @ordering_key, @attributes, @payload, @reason, @publish_time)
ON CONFLICT (consumer, message_id) DO NOTHING;

-- name: ListQuarantine :many
SELECT * FROM catalog_read.quarantine WHERE consumer = @consumer AND id > @after_id ORDER BY id LIMIT @max_rows;

-- name: DeleteQuarantine :execrows
DELETE FROM catalog_read.quarantine WHERE id = @id;
