-- name: ListCommandAudit :many
-- Returns what operators did to the command side, the newest first, before the row with the id before_id. The items before
-- and after are large: only whole rows have them.
SELECT a.id, a.action_id, a.create_time, a.actor, a.via, a.database_user, a.action, a.filter, a.reason, a.items,
	(CASE WHEN @whole::bool THEN a.before ELSE 'null' END)::jsonb AS before, (CASE WHEN @whole THEN a.after ELSE 'null' END)::jsonb AS after
FROM video_catalog.audit a WHERE a.id < @before_id ORDER BY a.id DESC LIMIT @max_rows;

-- name: ListQueryAudit :many
-- The same for the query side.
SELECT a.id, a.action_id, a.create_time, a.actor, a.via, a.database_user, a.action, a.filter, a.reason, a.items,
	(CASE WHEN @whole::bool THEN a.before ELSE 'null' END)::jsonb AS before, (CASE WHEN @whole THEN a.after ELSE 'null' END)::jsonb AS after
FROM video_catalog_read.audit a WHERE a.id < @before_id ORDER BY a.id DESC LIMIT @max_rows;

-- name: PruneCommandAudit :one
SELECT video_catalog.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;

-- name: PruneQueryAudit :one
SELECT video_catalog_read.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;
