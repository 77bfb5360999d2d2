-- name: GetCommandDatabase :one
-- Returns the identity of the database of the command side, and the identity in which its data was last known to be
-- right.
SELECT video_catalog.database_identity() AS live, identity AS known
FROM video_catalog.known_database;

-- name: KnowCommandDatabase :one
-- Records a database as known for the command side, and appends the audit row, unless it is known already. It
-- returns how many databases became known: 1 or 0.
WITH was AS (
	SELECT k.identity FROM video_catalog.known_database k WHERE k.identity <> @identity FOR UPDATE
), known AS (
	UPDATE video_catalog.known_database k SET identity = @identity, updated_at = clock_timestamp()
	FROM was
	RETURNING was.identity AS before, k.identity AS after
), audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before, after)
	SELECT
		@action_id,
		@actor,
		@via,
		@action,
		@filter,
		@reason,
		1,
		jsonb_build_array(jsonb_build_object('identity', known.before)),
		jsonb_build_array(jsonb_build_object('identity', known.after))
	FROM known
)
SELECT count(*)::bigint FROM known;

-- name: GetQueryDatabase :one
-- Returns the same for the query side.
SELECT video_catalog_read.database_identity() AS live, identity AS known
FROM video_catalog_read.known_database;

-- name: KnowQueryDatabase :one
-- The same for the query side.
WITH was AS (
	SELECT k.identity FROM video_catalog_read.known_database k WHERE k.identity <> @identity FOR UPDATE
), known AS (
	UPDATE video_catalog_read.known_database k SET identity = @identity, updated_at = clock_timestamp()
	FROM was
	RETURNING was.identity AS before, k.identity AS after
), audited AS (
	INSERT INTO video_catalog_read.audit (action_id, actor, via, action, filter, reason, items, before, after)
	SELECT
		@action_id,
		@actor,
		@via,
		@action,
		@filter,
		@reason,
		1,
		jsonb_build_array(jsonb_build_object('identity', known.before)),
		jsonb_build_array(jsonb_build_object('identity', known.after))
	FROM known
)
SELECT count(*)::bigint FROM known;
