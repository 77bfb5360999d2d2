-- Queries and actions of operators, for aggregates whose event the broker refused. Each action and its audit row are
-- one statement.

-- name: GroupBlocked :many
-- Returns the blocked aggregates by cause, the largest group first.
SELECT
	b.cause::text AS cause,
	max(b.last_error)::text AS sample,
	count(*) AS items,
	count(b.parked_at) AS waiting,
	coalesce(min(b.parked_at), 'epoch')::timestamptz AS since
FROM video_catalog.outbox_blocked b
GROUP BY b.cause
ORDER BY items DESC, b.cause
LIMIT @max_rows;

-- name: ListBlocked :many
-- Returns blocked aggregates in the order of their keys, with the first event of each, and how many match. An empty
-- text matches all; cause also matches a part of an error. until leaves out those parked later, retry those that are
-- due, and skip those that do not wait for a person.
SELECT
	b.aggregate_type,
	b.aggregate_id,
	b.attempts,
	b.next_retry_at,
	b.last_error,
	b.cause::text AS cause,
	b.parked_at,
	coalesce(h.id, '00000000-0000-0000-0000-000000000000')::uuid AS event_id,
	coalesce(h.version, 0)::bigint AS version,
	coalesce(h.event_type, '')::text AS event_type,
	coalesce(h.occurred_at, 'epoch')::timestamptz AS event_time,
	count(*) OVER () AS total
FROM video_catalog.outbox_blocked b
LEFT JOIN LATERAL (
	SELECT d.id, d.version, d.event_type, d.occurred_at FROM video_catalog.outbox_deferred d
	WHERE d.aggregate_type = b.aggregate_type AND d.aggregate_id = b.aggregate_id AND d.seq >= b.head_seq
	ORDER BY d.seq LIMIT 1
) h ON true
WHERE (@id::text = '' OR h.id::text = @id)
	AND (@aggregate_type::text = '' OR b.aggregate_type = @aggregate_type)
	AND (@aggregate_id::text = '' OR b.aggregate_id = @aggregate_id)
	AND (@cause::text = '' OR b.cause = @cause OR strpos(b.last_error, @cause) > 0)
	AND coalesce(b.parked_at <= sqlc.narg('until')::timestamptz, true)
	AND (@action::text = '' OR b.parked_at IS NOT NULL OR @action = 'retry' AND (b.attempts > 0 OR b.next_retry_at > now()))
ORDER BY b.aggregate_type, b.aggregate_id
LIMIT @max_rows;

-- name: RetryBlocked :one
-- Makes blocked aggregates due, but for those that are due, and returns how many. The rows stay: a claim that saw one
-- may defer events. A settlement of the last attempt finds that attempts have changed, and does not park the event.
WITH due AS (
	SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.last_error, b.parked_at
	FROM (SELECT unnest(@types::text[]) AS aggregate_type, unnest(@ids::text[]) AS aggregate_id) named
	JOIN video_catalog.outbox_blocked b ON b.aggregate_type = named.aggregate_type AND b.aggregate_id = named.aggregate_id
	WHERE b.parked_at IS NOT NULL OR b.attempts > 0 OR b.next_retry_at > clock_timestamp()
	ORDER BY b.aggregate_type, b.aggregate_id
	FOR UPDATE OF b
), retried AS (
	UPDATE video_catalog.outbox_blocked b
	SET parked_at = NULL, attempts = 0, next_retry_at = now()
	FROM due
	WHERE b.aggregate_type = due.aggregate_type AND b.aggregate_id = due.aggregate_id
	RETURNING due.*
), audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, count(*), jsonb_agg(r ORDER BY r)
	FROM retried r HAVING count(*) > 0
)
SELECT count(*) FROM retried;

-- name: SkipBlocked :one
-- Gives up the given heads of blocked aggregates, makes their next events due, and returns how many it has given up. If
-- the settlement of a failed attempt comes later, BlockAggregate does not find the event. An event that is published,
-- or skipped or retried by another person, meanwhile is not skipped.
WITH due AS (
	SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.last_error, b.parked_at, h.seq, h.id AS event_id
	FROM (
		SELECT
			unnest(@types::text[]) AS aggregate_type,
			unnest(@ids::text[]) AS aggregate_id,
			unnest(@event_ids::uuid[]) AS event_id,
			unnest(@parked::bool[]) AS parked
	) named
	JOIN video_catalog.outbox_blocked b ON b.aggregate_type = named.aggregate_type AND b.aggregate_id = named.aggregate_id
	CROSS JOIN LATERAL (
		SELECT d.seq, d.id FROM video_catalog.outbox_deferred d
		WHERE d.aggregate_type = b.aggregate_type AND d.aggregate_id = b.aggregate_id AND d.seq >= b.head_seq
		ORDER BY d.seq LIMIT 1
	) h
	WHERE h.id = named.event_id AND (b.parked_at IS NOT NULL OR NOT named.parked)
	ORDER BY b.aggregate_type, b.aggregate_id
	FOR UPDATE OF b
), gone AS (
	DELETE FROM video_catalog.outbox_deferred d USING due
	WHERE d.aggregate_type = due.aggregate_type AND d.aggregate_id = due.aggregate_id AND d.seq = due.seq
	RETURNING d.aggregate_type, d.aggregate_id, d.seq, d.id AS event_id, d.event_type, d.version
), noted AS (
	INSERT INTO video_catalog.outbox_skipped (event_id, aggregate_type, aggregate_id, seq, actor, reason)
	SELECT gone.event_id, gone.aggregate_type, gone.aggregate_id, gone.seq, @actor, @reason
	FROM gone
	ON CONFLICT (event_id) DO NOTHING -- a snapshot has the same id each time
), skipped AS (
	UPDATE video_catalog.outbox_blocked b
	SET parked_at = NULL, last_error = '', attempts = 0, next_retry_at = now(), head_seq = gone.seq + 1
	FROM due JOIN gone ON gone.aggregate_type = due.aggregate_type AND gone.aggregate_id = due.aggregate_id
	WHERE b.aggregate_type = due.aggregate_type AND b.aggregate_id = due.aggregate_id
	RETURNING due.*, gone.event_type, gone.version
), audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, count(*), jsonb_agg(to_jsonb(s) - 'seq' ORDER BY s)
	FROM skipped s HAVING count(*) > 0
)
SELECT count(*) FROM skipped;

-- name: PruneCommandAudit :one
SELECT video_catalog.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;
