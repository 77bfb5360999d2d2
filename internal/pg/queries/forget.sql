-- The inbox of a consumer, which a seek empties page by page, so that no statement takes long.

-- name: CountInbox :one
-- Reads at most max_rows ids of a consumer above after_id. It returns their number, and the last id.
WITH page AS (
	SELECT i.event_id FROM video_catalog_read.inbox i
	WHERE i.consumer = @consumer AND i.event_id > @after_id
	ORDER BY i.event_id LIMIT @max_rows
)
SELECT
	count(*)::bigint AS read,
	coalesce((SELECT p.event_id FROM page p ORDER BY p.event_id DESC LIMIT 1), @after_id)::uuid AS last_id
FROM page;

-- name: ClearInbox :one
-- Deletes the ids that CountInbox would read, and returns the same. after_id keeps it off the dead rows of the page
-- before.
WITH page AS (
	SELECT i.event_id FROM video_catalog_read.inbox i
	WHERE i.consumer = @consumer AND i.event_id > @after_id
	ORDER BY i.event_id LIMIT @max_rows
), gone AS (
	DELETE FROM video_catalog_read.inbox d USING page WHERE d.consumer = @consumer AND d.event_id = page.event_id
)
SELECT
	count(*)::bigint AS read,
	coalesce((SELECT p.event_id FROM page p ORDER BY p.event_id DESC LIMIT 1), @after_id)::uuid AS last_id
FROM page;

-- name: InsertSeekAudit :exec
-- Appends a seek to the audit. The audit has only the number of the ids: there may be millions.
INSERT INTO video_catalog_read.audit (
	action_id,
	actor,
	via,
	action,
	filter,
	reason,
	items,
	before,
	after
)
VALUES (
	@action_id,
	@actor,
	@via,
	@action,
	@filter,
	@reason,
	@items,
	'[]',
	'[]'
);
