-- name: PruneCommandAudit :one
SELECT video_catalog.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;

-- name: PruneQueryAudit :one
SELECT video_catalog_read.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;
