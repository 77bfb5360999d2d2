-- name: InsertPlaylist :exec
INSERT INTO video_catalog.playlists (id, title, video_ids, version, create_time, update_time, delete_time)
VALUES (@id, @title, @video_ids, @version, @create_time, @update_time, @delete_time);

-- name: LockPlaylist :one
-- Reads a playlist and locks its row until the end of the transaction.
SELECT * FROM video_catalog.playlists WHERE id = @id FOR NO KEY UPDATE;

-- name: UpdatePlaylist :exec
-- Writes the whole state of a playlist. The caller must hold the lock of LockPlaylist.
UPDATE video_catalog.playlists
SET title = @title, video_ids = @video_ids, version = @version, update_time = @update_time, delete_time = @delete_time
WHERE id = @id;

-- name: GetPlaylist :one
SELECT * FROM video_catalog.playlists WHERE id = @id;

-- name: ProjectPlaylist :one
-- Writes a playlist unless the row has this version or a newer one. Returns the version before, 0 if there was none.
-- It is read without a lock: beside another projector it may be older, and only the counted outcome is then wrong.
WITH before AS (
	SELECT b.version FROM video_catalog_read.playlist_projection b WHERE b.playlist_id = @playlist_id
), written AS (
	INSERT INTO video_catalog_read.playlist_projection AS p (playlist_id, title, video_ids, deleted, version)
	VALUES (@playlist_id, @title, @video_ids, @deleted, @version)
	ON CONFLICT (playlist_id) DO UPDATE
	SET title = excluded.title, video_ids = excluded.video_ids, deleted = excluded.deleted, version = excluded.version
	WHERE p.version < excluded.version
)
SELECT coalesce((SELECT version FROM before), 0)::bigint AS version_before;

-- name: GetPlaylistProjection :one
SELECT * FROM video_catalog_read.playlist_projection WHERE playlist_id = @playlist_id;
