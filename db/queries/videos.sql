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
	delete_time,
	publish_time,
	create_user,
	update_user
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
	@delete_time,
	@publish_time,
	@create_user,
	@update_user
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
	delete_time = @delete_time,
	publish_time = @publish_time,
	purge_time = @purge_time,
	create_user = @create_user,
	update_user = @update_user
WHERE id = @id;

-- name: GetVideo :one
SELECT * FROM video_catalog.videos WHERE id = @id AND purge_time IS NULL;

-- name: GetVideos :many
SELECT * FROM video_catalog.videos WHERE id = ANY (@ids::uuid[]) AND purge_time IS NULL;

-- name: ListVideos :many
-- Returns videos after (before_time, before_id), newest first. The bound is always set, far in the future on the first
-- page, so that every cached plan uses the index.
SELECT * FROM video_catalog.videos
WHERE (create_time, id) < (@before_time::timestamptz, @before_id::uuid)
	AND (@show_purged::bool OR purge_time IS NULL AND (@show_deleted::bool OR delete_time IS NULL))
	AND (sqlc.narg('state')::text IS NULL OR state = sqlc.narg('state'))
	AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
ORDER BY create_time DESC, id DESC
LIMIT @max_rows;

-- name: FindVideoVersions :many
-- Returns the versions and the events of some rows, by one lookup per id: with = ANY, a session that began with an
-- empty table would scan the whole table until it is analyzed.
SELECT p.video_id, p.version, p.event_id
FROM unnest(@ids::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (
	SELECT * FROM video_catalog_read.video_projection r WHERE r.video_id = wanted.id LIMIT 1
) p;

-- name: ProjectVideo :exec
-- Writes the row, unless it has a later version, or the same version from a repair or an event whose id is not smaller.
INSERT INTO video_catalog_read.video_projection AS p (
	video_id,
	event_id,
	title,
	description,
	release_year,
	duration_ms,
	language_code,
	tags,
	visible,
	deleted,
	version,
	publish_time,
	update_time,
	create_user,
	update_user,
	search,
	change_xid,
	updated_at
) VALUES (
	@video_id,
	sqlc.narg('event_id'),
	@title,
	@description,
	@release_year,
	@duration_ms,
	@language_code,
	@tags,
	@visible,
	@deleted,
	@version,
	sqlc.narg('publish_time'),
	@update_time,
	@create_user,
	@update_user,
	@search,
	pg_current_xact_id(),
	clock_timestamp()
)
ON CONFLICT (video_id) DO UPDATE
SET
	event_id = excluded.event_id,
	title = excluded.title,
	description = excluded.description,
	release_year = excluded.release_year,
	duration_ms = excluded.duration_ms,
	language_code = excluded.language_code,
	tags = excluded.tags,
	visible = excluded.visible,
	deleted = excluded.deleted,
	version = excluded.version,
	publish_time = excluded.publish_time,
	update_time = excluded.update_time,
	create_user = excluded.create_user,
	update_user = excluded.update_user,
	search = excluded.search,
	change_xid = excluded.change_xid,
	updated_at = excluded.updated_at
WHERE (p.version, p.event_id) < (excluded.version, excluded.event_id);
