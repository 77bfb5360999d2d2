-- name: SampleProjections :one
-- Describes the entries that were written after after_xid, up to max_counted: how many, how long after their events (in
-- seconds, the median and the 99th percentile), and by which transaction the last one. applied_at is when an entry was
-- last written; the epoch means never.
WITH changed AS (
	SELECT p.change_xid, p.event_id, extract(epoch FROM p.updated_at - p.update_time) AS lag
	FROM video_catalog_read.video_projection p
	WHERE p.change_xid > @after_xid::xid8
	ORDER BY p.change_xid DESC
	LIMIT @max_counted
), lags AS (
	SELECT count(*) AS n, percentile_cont(0.5) WITHIN GROUP (ORDER BY lag) AS p50, percentile_cont(0.99) WITHIN GROUP (ORDER BY lag) AS p99
	FROM changed WHERE event_id IS NOT NULL
), newest AS (
	SELECT p.change_xid, p.updated_at FROM video_catalog_read.video_projection p ORDER BY p.change_xid DESC LIMIT 1
)
SELECT lags.n::bigint AS applied, coalesce(lags.p50, 0)::float8 AS p50, coalesce(lags.p99, 0)::float8 AS p99,
	coalesce((SELECT newest.change_xid FROM newest), '0')::xid8 AS newest_xid,
	coalesce((SELECT newest.updated_at FROM newest), 'epoch')::timestamptz AS applied_at
FROM lags;

-- name: CountProjections :one
-- Counts the entries up to max_counted. If there are more, estimate has the number by the statistics of the table.
SELECT
	(SELECT count(*) FROM (SELECT 1 FROM video_catalog_read.video_projection LIMIT @max_counted) counted)::bigint AS n,
	(SELECT greatest(c.reltuples, 0) FROM pg_catalog.pg_class c WHERE c.oid = 'video_catalog_read.video_projection'::regclass)::bigint AS estimate;

-- name: FindProjections :many
-- Returns entries whose title contains a text, in any case, the last changed first. It reads the last max_read changed
-- entries only, because no index has the parts of titles of hidden entries.
SELECT video_id, title, version, deleted, visible
FROM (
	SELECT video_id, title, version, deleted, visible FROM video_catalog_read.video_projection
	ORDER BY change_xid DESC, video_id DESC LIMIT @max_read
) newest
WHERE strpos(lower(title), lower(@part::text)) > 0
LIMIT @max_rows;

-- name: ListProjectionTitles :many
SELECT video_id, title FROM video_catalog_read.video_projection WHERE video_id = ANY (@video_ids::uuid[]);
