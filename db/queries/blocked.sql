-- Queries and actions of operators, for aggregates whose event the broker refused. Each action and its audit row are
-- one statement. An empty text in a filter matches all.

-- name: GroupBlocked :many
-- Returns the blocked aggregates by cause, the largest group first.
SELECT b.cause::text AS cause, max(b.last_error)::text AS sample, count(*) AS items, count(b.parked_at) AS waiting,
	coalesce(min(b.parked_at), 'epoch')::timestamptz AS first_time, coalesce(max(b.parked_at), 'epoch')::timestamptz AS last_time
FROM video_catalog.outbox_blocked b
GROUP BY b.cause
ORDER BY items DESC, b.cause
LIMIT @max_rows;

-- name: CountBlocked :one
-- Counts the aggregates that an action would change: parked ones, and a blocked one that is named.
SELECT count(*)::bigint
FROM video_catalog.outbox_blocked b
WHERE (@aggregate_type::text = '' OR b.aggregate_type = @aggregate_type)
	AND (@aggregate_id::text = '' OR b.aggregate_id = @aggregate_id)
	AND (@cause::text = '' OR b.cause = @cause)
	AND (b.parked_at IS NOT NULL OR @aggregate_id <> '')
	AND (@age::interval = '0' OR b.parked_at < now() - @age);

-- name: ListBlocked :many
-- Returns blocked aggregates behind the given one in the order of their keys, with the first event of each. With an age it
-- returns only those that have been parked for that long.
SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.next_retry_at, b.last_error, b.cause::text AS cause, b.parked_at,
	coalesce(h.id, '00000000-0000-0000-0000-000000000000')::uuid AS event_id, coalesce(h.version, 0)::bigint AS version,
	coalesce(h.event_type, '')::text AS event_type, coalesce(h.occurred_at, 'epoch')::timestamptz AS event_time
FROM video_catalog.outbox_blocked b
LEFT JOIN LATERAL (
	SELECT d.id, d.version, d.event_type, d.occurred_at FROM video_catalog.outbox_deferred d
	WHERE d.aggregate_type = b.aggregate_type AND d.aggregate_id = b.aggregate_id AND d.seq >= b.head_seq
	ORDER BY d.seq LIMIT 1
) h ON true
WHERE (b.aggregate_type, b.aggregate_id) > (@after_type::text, @after_id::text)
	AND (@aggregate_type::text = '' OR b.aggregate_type = @aggregate_type)
	AND (@aggregate_id::text = '' OR b.aggregate_id = @aggregate_id)
	AND (@cause::text = '' OR b.cause = @cause)
	AND (@age::interval = '0' OR b.parked_at < now() - @age)
ORDER BY b.aggregate_type, b.aggregate_id
LIMIT @max_rows;

-- name: RequeueBlocked :many
-- Makes blocked aggregates behind the given one due immediately, at most max_rows, and returns them in the order of their
-- keys. The rows stay, because a claim that saw a row may defer events. The settlement of the last attempt may be running: it finds other
-- attempts, and so does not park the event again.
WITH due AS (
	SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.last_error, b.parked_at
	FROM video_catalog.outbox_blocked b
	WHERE (b.aggregate_type, b.aggregate_id) > (@after_type::text, @after_id::text)
		AND (@aggregate_type::text = '' OR b.aggregate_type = @aggregate_type)
		AND (@aggregate_id::text = '' OR b.aggregate_id = @aggregate_id)
		AND (@cause::text = '' OR b.cause = @cause)
		AND (b.parked_at IS NOT NULL OR @aggregate_id <> '')
		AND (@age::interval = '0' OR b.parked_at < now() - @age)
	ORDER BY b.aggregate_type, b.aggregate_id
	LIMIT @max_rows
	FOR UPDATE
), requeued AS (
	UPDATE video_catalog.outbox_blocked b
	SET parked_at = NULL, attempts = 0, next_retry_at = now()
	FROM due
	WHERE b.aggregate_type = due.aggregate_type AND b.aggregate_id = due.aggregate_id
	RETURNING b.aggregate_type, b.aggregate_id, due.attempts, due.last_error, due.parked_at
), audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, count(*), jsonb_agg(to_jsonb(r) ORDER BY r.aggregate_type, r.aggregate_id)
	FROM requeued r HAVING count(*) > 0
)
SELECT r.aggregate_type, r.aggregate_id FROM requeued r ORDER BY r.aggregate_type, r.aggregate_id;

-- name: SkipBlocked :many
-- Gives up the head of blocked aggregates behind the given one, at most max_rows, and makes their next event due. With an
-- event_id it gives up no other event. If the settlement of a failed attempt comes later, BlockAggregate does not find the event.
-- An event that is published meanwhile is not skipped.
WITH due AS (
	SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.last_error, b.parked_at, h.seq
	FROM video_catalog.outbox_blocked b
	CROSS JOIN LATERAL (
		SELECT d.seq, d.id FROM video_catalog.outbox_deferred d
		WHERE d.aggregate_type = b.aggregate_type AND d.aggregate_id = b.aggregate_id AND d.seq >= b.head_seq
		ORDER BY d.seq LIMIT 1
	) h
	WHERE (b.aggregate_type, b.aggregate_id) > (@after_type::text, @after_id::text)
		AND (@aggregate_type::text = '' OR b.aggregate_type = @aggregate_type)
		AND (@aggregate_id::text = '' OR b.aggregate_id = @aggregate_id)
		AND (@cause::text = '' OR b.cause = @cause)
		AND (b.parked_at IS NOT NULL OR @aggregate_id <> '')
		AND (@age::interval = '0' OR b.parked_at < now() - @age)
		AND (sqlc.narg('event_id')::uuid IS NULL OR h.id = sqlc.narg('event_id'))
	ORDER BY b.aggregate_type, b.aggregate_id
	LIMIT @max_rows
	FOR UPDATE OF b
), gone AS (
	DELETE FROM video_catalog.outbox_deferred d USING due
	WHERE d.aggregate_type = due.aggregate_type AND d.aggregate_id = due.aggregate_id AND d.seq = due.seq
	RETURNING d.aggregate_type, d.aggregate_id, d.seq, d.id AS event_id, d.event_type, d.version
), noted AS (
	INSERT INTO video_catalog.outbox_skipped (event_id, aggregate_type, aggregate_id, seq, actor, reason)
	SELECT gone.event_id, gone.aggregate_type, gone.aggregate_id, gone.seq, @actor, @reason FROM gone
), skipped AS (
	UPDATE video_catalog.outbox_blocked b
	SET parked_at = NULL, last_error = '', attempts = 0, next_retry_at = now(), head_seq = gone.seq + 1, oldest_at = (
		SELECT CASE d.repeat WHEN '' THEN d.occurred_at END FROM video_catalog.outbox_deferred d
		WHERE d.aggregate_type = b.aggregate_type AND d.aggregate_id = b.aggregate_id AND d.seq > gone.seq
		ORDER BY d.seq LIMIT 1
	)
	FROM due JOIN gone ON gone.seq = due.seq
	WHERE b.aggregate_type = due.aggregate_type AND b.aggregate_id = due.aggregate_id
	RETURNING b.aggregate_type, b.aggregate_id, due.attempts, due.last_error, due.parked_at, gone.event_id, gone.event_type, gone.version
), audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, count(*), jsonb_agg(to_jsonb(s) ORDER BY s.aggregate_type, s.aggregate_id)
	FROM skipped s HAVING count(*) > 0
)
SELECT s.aggregate_type, s.aggregate_id FROM skipped s ORDER BY s.aggregate_type, s.aggregate_id;
