-- name: LockProjections :many
-- Locks the rows of some videos until the end of the transaction, in the order of their ids, as ProjectVideo writes
-- them. It first creates a missing one, with version 0: a missing row cannot be locked.
INSERT INTO video_catalog_read.video_projection (
	video_id,
	title,
	description,
	release_year,
	duration_ms,
	language_code,
	tags,
	visible,
	deleted,
	version,
	update_time,
	search,
	change_xid,
	updated_at
)
SELECT
	wanted.id,
	'',
	'',
	0,
	0,
	'',
	'{}',
	false,
	false,
	0,
	'epoch',
	'',
	pg_current_xact_id(),
	clock_timestamp()
FROM (SELECT DISTINCT unnest(@video_ids::uuid[]) AS id) wanted
ORDER BY wanted.id
ON CONFLICT (video_id) DO UPDATE SET video_id = excluded.video_id
RETURNING
	video_id,
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
	update_user;

-- name: ResetProjections :exec
-- Resets the version of some rows, so that ProjectVideo writes them.
UPDATE video_catalog_read.video_projection SET version = 0, event_id = NULL WHERE video_id = ANY (@video_ids::uuid[]);

-- name: GetProjection :one
SELECT
	video_id,
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
	update_user
FROM video_catalog_read.video_projection
WHERE video_id = @video_id;

-- name: ListProjectionsNewestFirst :many
-- Returns entries after (before_time, before_id), newest publish time first. The bound is always set, far in the future
-- on the first page, so that every cached plan uses the index.
SELECT
	video_id,
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
	update_user
FROM video_catalog_read.video_projection
WHERE visible
	AND (publish_time, video_id) < (@before_time::timestamptz, @before_id::uuid)
	AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
	AND (sqlc.narg('release_year')::int IS NULL OR release_year = sqlc.narg('release_year'))
	AND (sqlc.narg('tags')::text[] IS NULL OR tags @> sqlc.narg('tags'))
ORDER BY publish_time DESC, video_id DESC
LIMIT @max_rows;

-- name: ListProjectionsByTitle :many
-- Returns entries after (after_title, after_id), in the byte order of the titles, otherwise like
-- ListProjectionsNewestFirst.
SELECT
	video_id,
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
	update_user
FROM video_catalog_read.video_projection
WHERE visible
	AND (title, video_id) > (@after_title::text, @after_id::uuid)
	AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
	AND (sqlc.narg('release_year')::int IS NULL OR release_year = sqlc.narg('release_year'))
	AND (sqlc.narg('tags')::text[] IS NULL OR tags @> sqlc.narg('tags'))
ORDER BY title, video_id
LIMIT @max_rows;

-- name: SearchProjections :many
-- Returns entries that match a tsquery, after (before_rank, before_id), best first. Entries that also match whole_words
-- come before all others. The weights are in the order D, C, B, A: title, tags and description are a factor of 100
-- apart. With PostgreSQL's weights a description that repeats a word six times would rank above a title. MATERIALIZED
-- parses the queries once and not once per row, with any cached plan.
WITH query AS MATERIALIZED (
	SELECT CAST(@query::text AS tsquery) AS words, CAST(@whole_words::text AS tsquery) AS whole_words
), matching AS (
	SELECT p.*,
		coalesce(
			nullif(ts_rank_cd('{0.1, 0.0001, 0.01, 1}', p.search, query.whole_words), 0),
			1e-12 * ts_rank_cd('{0.1, 0.0001, 0.01, 1}', p.search, query.words)
		)::real AS rank
	FROM query
	JOIN video_catalog_read.video_projection p ON p.visible AND p.search @@ query.words
)
SELECT
	video_id,
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
	rank
FROM matching
WHERE (rank, video_id) < (@before_rank::real, @before_id::uuid)
ORDER BY rank DESC, video_id DESC
LIMIT @max_rows;

-- name: ListProjectionChanges :many
-- Returns rows changed after (after_xid, after_id), in the order of their transactions. It returns only changes whose
-- earlier transactions have all ended: a cursor that passed an open transaction would miss its changes. rebuilt is true
-- if a repair wrote the row, and not an event.
SELECT
	video_id,
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
	change_xid,
	(event_id IS NULL)::bool AS rebuilt
FROM video_catalog_read.video_projection
WHERE (change_xid, video_id) > (@after_xid::xid8, @after_id::uuid)
	AND change_xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY change_xid, video_id
LIMIT @max_rows;

-- name: GetChangesDatabase :one
-- Returns the database whose changes ListProjectionChanges reads, whether that database has given out the transaction id
-- yet, and whether a transaction that is open, maybe in another database of the server, holds changes back.
SELECT
	video_catalog_read.database_identity() AS identity,
	(@xid::xid8 < pg_snapshot_xmax(pg_current_snapshot()))::bool AS begun,
	EXISTS (
		SELECT FROM video_catalog_read.video_projection p WHERE p.change_xid >= pg_snapshot_xmin(pg_current_snapshot())
	) AS held;

-- name: PruneProjectedTombstones :one
-- Deletes the tombstones of videos that were purged long ago.
SELECT video_catalog_read.tombstones_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;
