-- name: InsertMissingProjections :exec
-- Creates an empty row, of version 0, for each of the videos that has none, because a missing row cannot be locked.
-- Otherwise a projector could wait for a row that another one is inserting, while it holds locks that the other one
-- needs. LockProjections and UpsertProjections follow in the same transaction.
INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, update_time, search, change_xid, updated_at)
SELECT video_id, '', '', 0, 0, '', '{}', false, false, 0, 'epoch', '', pg_current_xact_id(), clock_timestamp()
FROM (SELECT unnest(@video_ids::uuid[]) AS video_id) new
ORDER BY video_id
ON CONFLICT DO NOTHING;

-- name: LockProjections :many
-- Locks the rows of some videos and returns their versions and events. All statements here lock
-- rows in the order of their ids, so that two projectors cannot deadlock. The lateral join makes one lookup per id
-- with any plan. With video_id = ANY(@video_ids), a session that began with an empty table scanned all of it until it
-- was analyzed.
SELECT p.video_id, p.version, p.event_id
FROM (SELECT DISTINCT unnest(@video_ids::uuid[]) AS video_id ORDER BY video_id) wanted
CROSS JOIN LATERAL (
	SELECT video_id, version, event_id FROM video_catalog_read.video_projection
	WHERE video_id = wanted.video_id
	FOR NO KEY UPDATE
) p;

-- name: UpsertProjections :exec
-- Writes the given rows, over any version: the caller has locked them and compared versions. Each array holds one
-- value per row. Tags are array literals, and searches are tsvectors as text. A missing time is the epoch, and a
-- missing id is all zeros.
WITH new AS (
	SELECT unnest(@video_ids::uuid[]) AS video_id,
		unnest(@titles::text[]) AS title,
		unnest(@descriptions::text[]) AS description,
		unnest(@release_years::int[]) AS release_year,
		unnest(@durations_ms::bigint[]) AS duration_ms,
		unnest(@language_codes::text[]) AS language_code,
		unnest(@tags::text[]) AS tags,
		unnest(@visible::bool[]) AS visible,
		unnest(@deleted::bool[]) AS deleted,
		unnest(@versions::bigint[]) AS version,
		NULLIF(unnest(@event_ids::uuid[]), '00000000-0000-0000-0000-000000000000') AS event_id,
		NULLIF(unnest(@publish_times::timestamptz[]), 'epoch') AS publish_time,
		unnest(@update_times::timestamptz[]) AS update_time,
		unnest(@searches::text[]) AS search
)
INSERT INTO video_catalog_read.video_projection (video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, event_id, publish_time, update_time, search, change_xid, updated_at)
SELECT video_id, title, description, release_year, duration_ms, language_code, tags::text[], visible, deleted, version, event_id, publish_time, update_time,
	search::tsvector, pg_current_xact_id(), clock_timestamp()
FROM new
ORDER BY video_id
ON CONFLICT (video_id) DO UPDATE
SET title = excluded.title, description = excluded.description, release_year = excluded.release_year,
	duration_ms = excluded.duration_ms, language_code = excluded.language_code, tags = excluded.tags,
	visible = excluded.visible, deleted = excluded.deleted, version = excluded.version, event_id = excluded.event_id,
	publish_time = excluded.publish_time, update_time = excluded.update_time, search = excluded.search,
	change_xid = excluded.change_xid, updated_at = excluded.updated_at;

-- name: GetProjection :one
SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time
FROM video_catalog_read.video_projection
WHERE video_id = @video_id;

-- name: ListProjectionsNewestFirst :many
-- Returns a page of the catalog after (before_time, before_id), newest publish time first. The page ends when its
-- texts reach max_bytes; has_next of the last row says whether more rows follow. The bound is always set, far in the
-- future on the first page, so that every cached plan uses the index. octet_length reads the size of a text without
-- reading the text.
WITH found AS (
	SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time
	FROM video_catalog_read.video_projection
	WHERE visible
		AND (publish_time, video_id) < (@before_time::timestamptz, @before_id::uuid)
		AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
		AND (sqlc.narg('release_year')::int IS NULL OR release_year = sqlc.narg('release_year'))
		AND (sqlc.narg('tags')::text[] IS NULL OR tags @> sqlc.narg('tags'))
	ORDER BY publish_time DESC, video_id DESC
	LIMIT @one_more
)
SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time,
	has_next::bool AS has_next
FROM (
	SELECT *, lead(true, 1, false) OVER (ORDER BY publish_time DESC, video_id DESC) AS has_next,
		sum(octet_length(title) + octet_length(description) + octet_length(array_to_string(tags, '')))
			OVER (ORDER BY publish_time DESC, video_id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
	FROM found
) page
WHERE bytes_before IS NULL OR bytes_before < @max_bytes::bigint
ORDER BY publish_time DESC, video_id DESC
LIMIT @page_size;

-- name: ListProjectionsByTitle :many
-- Returns a page of the catalog after (after_title, after_id), in the byte order of the titles, otherwise like
-- ListProjectionsNewestFirst.
WITH found AS (
	SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time
	FROM video_catalog_read.video_projection
	WHERE visible
		AND (title, video_id) > (@after_title::text, @after_id::uuid)
		AND (sqlc.narg('language_code')::text IS NULL OR language_code = sqlc.narg('language_code'))
		AND (sqlc.narg('release_year')::int IS NULL OR release_year = sqlc.narg('release_year'))
		AND (sqlc.narg('tags')::text[] IS NULL OR tags @> sqlc.narg('tags'))
	ORDER BY title, video_id
	LIMIT @one_more
)
SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time,
	has_next::bool AS has_next
FROM (
	SELECT *, lead(true, 1, false) OVER (ORDER BY title, video_id) AS has_next,
		sum(octet_length(title) + octet_length(description) + octet_length(array_to_string(tags, '')))
			OVER (ORDER BY title, video_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
	FROM found
) page
WHERE bytes_before IS NULL OR bytes_before < @max_bytes::bigint
ORDER BY title, video_id
LIMIT @page_size;

-- name: SearchProjections :many
-- Returns a page of the entries that match a tsquery, after (before_rank, before_id), best first, otherwise like
-- ListProjectionsNewestFirst. Entries that also match whole_words come before all others. The weights are in the
-- order D, C, B, A: title, tags and description are a factor of 100 apart. With PostgreSQL's weights a description
-- that repeats a word six times would rank above a title. MATERIALIZED parses the queries once and not once per row,
-- with any cached plan.
WITH query AS MATERIALIZED (
	SELECT CAST(@query::text AS tsquery) AS words, CAST(@whole_words::text AS tsquery) AS whole_words
), matching AS (
	SELECT p.video_id, p.title, p.description, p.release_year, p.duration_ms, p.language_code, p.tags, p.visible, p.deleted, p.version, p.publish_time, p.update_time,
		coalesce(nullif(ts_rank_cd('{0.1, 0.0001, 0.01, 1}', p.search, query.whole_words), 0), 1e-12 * ts_rank_cd('{0.1, 0.0001, 0.01, 1}', p.search, query.words))::real AS rank
	FROM query
	JOIN video_catalog_read.video_projection p ON p.visible AND p.search @@ query.words
), found AS (
	SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time, rank
	FROM matching
	WHERE (rank, video_id) < (@before_rank::real, @before_id::uuid)
	ORDER BY rank DESC, video_id DESC
	LIMIT @one_more
)
SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time, rank,
	has_next::bool AS has_next
FROM (
	SELECT *, lead(true, 1, false) OVER (ORDER BY rank DESC, video_id DESC) AS has_next,
		sum(octet_length(title) + octet_length(description) + octet_length(array_to_string(tags, '')))
			OVER (ORDER BY rank DESC, video_id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
	FROM found
) page
WHERE bytes_before IS NULL OR bytes_before < @max_bytes::bigint
ORDER BY rank DESC, video_id DESC
LIMIT @page_size;

-- name: ListProjectionChanges :many
-- Returns rows changed after (after_xid, after_id), in the order of their transactions, up to the row with which
-- their text reaches max_bytes. It returns only changes whose earlier transactions have all ended: a cursor that
-- passed an open transaction would miss its changes. total is the size of the texts up to and including a row.
-- rebuilt is true if a repair wrote the row, and not an event.
SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time, change_xid,
	rebuilt, total
FROM (
	SELECT *, (sum(size) OVER (ORDER BY change_xid, video_id))::bigint AS total
	FROM (
		SELECT video_id, title, description, release_year, duration_ms, language_code, tags, visible, deleted, version, publish_time, update_time, change_xid,
			(event_id IS NULL)::bool AS rebuilt, octet_length(title) + octet_length(description) + pg_column_size(tags) AS size
		FROM video_catalog_read.video_projection
		WHERE (change_xid, video_id) > (@after_xid::xid8, @after_id::uuid)
			AND change_xid < pg_snapshot_xmin(pg_current_snapshot())
		ORDER BY change_xid, video_id
		LIMIT @max_rows
	) page
) sized
WHERE total - size < @max_bytes::bigint
ORDER BY change_xid, video_id;

-- name: GetProjections :many
-- Returns the rows of some videos, by one lookup per id: see LockProjections.
SELECT p.video_id, p.title, p.description, p.release_year, p.duration_ms, p.language_code, p.tags, p.visible, p.deleted, p.version, p.publish_time, p.update_time
FROM unnest(@video_ids::uuid[]) AS wanted (video_id)
CROSS JOIN LATERAL (
	SELECT * FROM video_catalog_read.video_projection e WHERE e.video_id = wanted.video_id LIMIT 1
) p;

-- name: GetChangesDatabase :one
-- Returns the database whose changes ListProjectionChanges reads, and whether that database has given out the transaction
-- id yet.
SELECT video_catalog_read.database_identity() AS identity, (@xid::xid8 < pg_snapshot_xmax(pg_current_snapshot()))::bool AS begun;

-- name: PruneProjectedTombstones :one
-- Deletes the tombstones of videos that were purged long ago.
SELECT video_catalog_read.tombstones_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;
