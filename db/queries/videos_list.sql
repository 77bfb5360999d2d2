-- name: FindVideos :many
-- Returns the existing videos of some ids, deleted and purged ones too.
SELECT * FROM video_catalog.videos WHERE id = ANY (@ids::uuid[]);

-- name: ListVideosOldestFirst :many
-- Returns videos after (after_time, after_id), oldest first, otherwise like ListVideos.
SELECT * FROM video_catalog.videos
WHERE (create_time, id) > (@after_time::timestamptz, @after_id::uuid)
	AND (@show_purged::bool OR purge_time IS NULL AND (@show_deleted::bool OR delete_time IS NULL))
	AND (sqlc.narg('state')::text IS NULL OR state = sqlc.narg('state'))
	AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
ORDER BY create_time, id
LIMIT @max_rows;
