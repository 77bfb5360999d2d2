-- name: InsertVideo :exec
INSERT INTO video_catalog.videos (
	id,
	title,
	description,
	release_year,
	duration_ms,
	language_code,
	tags,
	state,
	version,
	create_time,
	update_time,
	publish_time,
	delete_time
) VALUES (
	@id,
	@title,
	@description,
	@release_year,
	@duration_ms,
	@language_code,
	@tags,
	@state,
	@version,
	@create_time,
	@update_time,
	@publish_time,
	@delete_time
);

-- name: LockVideo :one
-- Reads a video and locks its row until the end of the transaction.
SELECT * FROM video_catalog.videos WHERE id = @id FOR NO KEY UPDATE;

-- name: LockVideos :many
-- Reads videos and locks their rows, in the order of their ids, so that two callers cannot deadlock.
SELECT * FROM video_catalog.videos WHERE id = ANY (@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: LockFreeVideos :many
-- Does the same as LockVideos, and leaves out videos that another transaction has locked.
SELECT * FROM video_catalog.videos WHERE id = ANY (@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: UpdateVideo :exec
-- Writes the whole state of a video. The caller must hold the lock of LockVideo.
UPDATE video_catalog.videos
SET
	title = @title,
	description = @description,
	release_year = @release_year,
	duration_ms = @duration_ms,
	language_code = @language_code,
	tags = @tags,
	state = @state,
	version = @version,
	update_time = @update_time,
	publish_time = @publish_time,
	delete_time = @delete_time,
	purge_time = @purge_time
WHERE id = @id;

-- name: GetVideo :one
SELECT * FROM video_catalog.videos WHERE id = @id AND purge_time IS NULL;

-- name: FindVideos :many
-- Returns the existing videos of some ids, deleted and purged ones too.
SELECT * FROM video_catalog.videos WHERE id = ANY (@ids::uuid[]);

-- name: ListVideosNewestFirst :many
-- Returns videos after (before_time, before_id), newest first. The bound is always set, far in the future on the first
-- page, so that every cached plan uses the index.
SELECT * FROM video_catalog.videos
WHERE (create_time, id) < (@before_time::timestamptz, @before_id::uuid)
	AND (@show_purged::bool OR purge_time IS NULL AND (@show_deleted::bool OR delete_time IS NULL))
	AND (sqlc.narg('state')::text IS NULL OR state = sqlc.narg('state'))
	AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
ORDER BY create_time DESC, id DESC
LIMIT @max_rows;

-- name: ListVideosOldestFirst :many
-- Returns videos after (after_time, after_id), oldest first, otherwise like ListVideosNewestFirst.
SELECT * FROM video_catalog.videos
WHERE (create_time, id) > (@after_time::timestamptz, @after_id::uuid)
	AND (@show_purged::bool OR purge_time IS NULL AND (@show_deleted::bool OR delete_time IS NULL))
	AND (sqlc.narg('state')::text IS NULL OR state = sqlc.narg('state'))
	AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
ORDER BY create_time, id
LIMIT @max_rows;
