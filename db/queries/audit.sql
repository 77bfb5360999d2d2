-- name: ListCommandAudit :many
-- Returns what operators did to the command side, the newest first, before the row with the id before_id.
SELECT a.id, a.action_id, a.create_time, a.actor, a.via, a.database_user, a.action, a.reason, a.items, a.filter, a.before, a.after
FROM video_catalog.audit a WHERE a.id < @before_id ORDER BY a.id DESC LIMIT @max_rows;

-- name: ListQueryAudit :many
-- The same for the query side.
SELECT a.id, a.action_id, a.create_time, a.actor, a.via, a.database_user, a.action, a.reason, a.items, a.filter, a.before, a.after
FROM video_catalog_read.audit a WHERE a.id < @before_id ORDER BY a.id DESC LIMIT @max_rows;

-- name: PruneCommandAudit :one
SELECT video_catalog.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;

-- name: PruneQueryAudit :one
SELECT video_catalog_read.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;
