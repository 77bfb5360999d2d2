-- name: ListVideoIDs :many
-- Returns the next ids behind after_id, also of deleted videos.
SELECT id FROM video_catalog.videos WHERE id > @after_id ORDER BY id LIMIT @max_rows;
