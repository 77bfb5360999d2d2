-- name: BeginRebuild :one
-- Starts or resumes the rebuild of a projection.
SELECT b.resumed::bool AS resumed, b.generation::bigint AS generation, b.phase::text AS phase, b.position::text AS position,
	b.entries::bigint AS entries, b.estimate::bigint AS estimate
FROM video_catalog_read.rebuild_begin(@projection::text, @origin::text, @token::bigint, @lease_for::interval, @restart::bool) AS b;

-- name: HoldRebuild :exec
-- Renews the lease of a rebuild.
SELECT video_catalog_read.rebuild_hold(@projection::text, @token::bigint)::text;

-- name: WriteRebuild :exec
SELECT video_catalog_read.rebuild_write(@projection::text, @token::bigint, @entries::jsonb, @overwrite::bool, sqlc.narg('position')::text, @lowered::text[]);

-- name: CatchUpRebuild :one
SELECT c.keys::bigint AS keys, c.unlisted::text[] AS unlisted
FROM video_catalog_read.rebuild_catch_up(@projection::text, @token::bigint, @max_keys::int) AS c;

-- name: CompareRebuild :one
-- Compares entries after after_key; NULL: from the first on.
SELECT coalesce(c.last_key, '')::text AS last_key, c.keys::bigint AS keys, c.missing::bigint AS missing, c.behind::bigint AS behind,
	c.different::bigint AS different, c.ask::text[] AS ask
FROM video_catalog_read.rebuild_compare(@projection::text, @token::bigint, sqlc.narg('after_key')::text, @max_keys::int) AS c;

-- name: SwapRebuild :one
SELECT s.swapped::bool AS swapped, s.unlisted::text[] AS unlisted
FROM video_catalog_read.rebuild_swap(@projection::text, @token::bigint, @max_keys::int) AS s;

-- name: EndRebuild :exec
SELECT video_catalog_read.rebuild_end(@projection::text, @token::bigint);

-- name: ReleaseRebuild :exec
SELECT video_catalog_read.rebuild_release(@projection::text, @token::bigint);

-- name: ListLoweredKeys :many
-- Returns the keys of entries that a rebuild has lowered, after after_id.
SELECT id, key FROM video_catalog_read.rebuild_keys
WHERE projection = @projection AND lowered AND id > @after_id
ORDER BY id
LIMIT @max_rows;
