-- name: BeginRebuild :one
-- Starts or resumes the rebuild of a projection.
SELECT b.resumed::bool AS resumed, b.generation::bigint AS generation, b.phase::text AS phase, b.position::text AS position,
	b.entries::bigint AS entries, b.estimate::bigint AS estimate
FROM video_catalog_read.rebuild_begin(@projection::text, @origin::text, @token::bigint, @restart::bool) AS b;

-- name: GetRebuild :one
-- Returns the last rebuild of a projection.
SELECT phase, generation, entries, started_at, ended_at,
	(phase NOT IN ('done', 'dropped') AND leased_until > clock_timestamp())::bool AS running
FROM video_catalog_read.rebuilds WHERE projection = @projection;

-- name: HoldRebuild :exec
-- Renews the lease of a rebuild.
SELECT video_catalog_read.rebuild_hold(@projection::text, @token::bigint)::text;

-- name: WriteRebuild :exec
SELECT video_catalog_read.rebuild_write(@projection::text, @token::bigint, @entries::jsonb, sqlc.narg('position')::text, @again::text[]);

-- name: CatchUpRebuild :one
SELECT video_catalog_read.rebuild_catch_up(@projection::text, @token::bigint, @max_keys::int)::bigint AS keys;

-- name: CompareRebuild :one
-- Compares entries after after_key; NULL: from the first on.
SELECT coalesce(c.last_key, '')::text AS last_key, c.keys::bigint AS keys, c.missing::bigint AS missing, c.behind::bigint AS behind,
	c.different::bigint AS different, c.doubtful::text[] AS doubtful
FROM video_catalog_read.rebuild_compare(@projection::text, @token::bigint, sqlc.narg('after_key')::text, @max_keys::int) AS c;

-- name: SwapRebuild :one
-- If it swaps, it appends the audit row.
WITH tried AS (
	SELECT video_catalog_read.rebuild_swap(@projection::text, @token::bigint, @max_keys::int) AS swapped
), audited AS (
	INSERT INTO video_catalog_read.audit (action_id, actor, via, action, filter, reason, items, before, after)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, @items, @before, @after FROM tried t WHERE t.swapped
)
SELECT t.swapped::bool AS swapped FROM tried t;

-- name: EndRebuild :exec
SELECT video_catalog_read.rebuild_end(@projection::text, @token::bigint);

-- name: ReleaseRebuild :exec
-- Ends the lease of a rebuild, so that another process can resume it at once.
UPDATE video_catalog_read.rebuilds SET leased_until = clock_timestamp() WHERE projection = @projection AND token = @token;

-- name: ListRebuildKeys :many
-- Returns the keys of entries that a rebuild reads from the owner again after the swap, behind after_id.
SELECT id, key FROM video_catalog_read.rebuild_keys
WHERE projection = @projection AND again AND id > @after_id
ORDER BY id
LIMIT @max_rows;
