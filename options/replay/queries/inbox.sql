-- The inbox of a consumer, which a seek empties page by page, so that no statement takes long.

-- name: CountInbox :one
-- Reads at most max_rows ids of a consumer behind after_id. It returns how many it has read, and the last of them.
WITH page AS (
	SELECT i.event_id FROM video_catalog_read.inbox i
	WHERE i.consumer = @consumer AND i.event_id > @after_id
	ORDER BY i.event_id LIMIT @max_rows
)
SELECT count(*)::bigint AS read, coalesce((SELECT p.event_id FROM page p ORDER BY p.event_id DESC LIMIT 1), @after_id)::uuid AS last_id
FROM page p;

-- name: ClearInbox :one
-- Deletes such a page, and returns the same. It starts behind the page before, and not among its dead rows.
WITH page AS (
	SELECT i.event_id FROM video_catalog_read.inbox i
	WHERE i.consumer = @consumer AND i.event_id > @after_id
	ORDER BY i.event_id LIMIT @max_rows
), gone AS (
	DELETE FROM video_catalog_read.inbox i USING page p WHERE i.consumer = @consumer AND i.event_id = p.event_id
)
SELECT count(*)::bigint AS read, coalesce((SELECT p.event_id FROM page p ORDER BY p.event_id DESC LIMIT 1), @after_id)::uuid AS last_id
FROM page p;

-- name: InsertSeekAudit :exec
-- Appends a seek to the audit. The ids may be millions: only their number is in it.
INSERT INTO video_catalog_read.audit (action_id, actor, via, action, filter, reason, items, before, after)
VALUES (@action_id, @actor, @via, @action, @filter, @reason, @items, '[]', '[]');
