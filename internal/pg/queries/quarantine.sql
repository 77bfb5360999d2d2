-- name: InsertQuarantine :exec
-- Stores a whole message, unless the quarantine would then have more than max_bytes: then it stores the message
-- shortened. Messages that are stored at the same time may together exceed the limit.
INSERT INTO video_catalog_read.quarantine (
	consumer,
	message_id,
	ordering_key,
	attributes,
	payload,
	payload_size,
	payload_sha256,
	reason,
	publish_time
)
SELECT
	@consumer,
	@message_id,
	@ordering_key,
	CASE WHEN room.enough THEN @attributes::jsonb ELSE @short_attributes::jsonb END,
	CASE WHEN room.enough THEN @payload::bytea END,
	CASE WHEN NOT room.enough THEN octet_length(@payload) END,
	CASE WHEN NOT room.enough THEN encode(sha256(@payload), 'hex') END,
	CASE WHEN room.enough THEN @reason::text ELSE @short_reason::text END,
	@publish_time
FROM (
	SELECT coalesce(sum(s.bytes), 0) + @message_bytes::bigint <= @max_bytes::bigint AS enough
	FROM video_catalog_read.quarantine_size s
) room
ON CONFLICT (consumer, message_id) DO NOTHING;

-- name: GroupQuarantine :many
-- Returns the messages in quarantine by cause, the largest group first.
SELECT
	q.cause::text AS cause,
	max(q.reason)::text AS sample,
	count(*) AS items,
	min(q.received_at)::timestamptz AS since
FROM video_catalog_read.quarantine q
GROUP BY q.cause
ORDER BY items DESC, q.cause
LIMIT @max_rows;

-- name: ListQuarantine :many
-- Returns messages in the order in which they were quarantined, and how many match. It leaves out payloads: they are
-- large, and support_ro may not read them. An empty text matches all. An id is the id of an event, or the number of a
-- message.
WITH matching AS (
	SELECT a.id, count(*) OVER () AS total
	FROM video_catalog_read.quarantine a
	WHERE (@id::text = '' OR a.id::text = @id OR a.attributes ->> 'event_id' = @id)
		AND (@aggregate_type::text = '' OR a.attributes ->> 'aggregate_type' = @aggregate_type)
		AND (@aggregate_id::text = '' OR a.attributes ->> 'aggregate_id' = @aggregate_id)
		AND (@cause::text = '' OR a.cause = @cause OR strpos(a.reason, @cause) > 0)
		AND coalesce(a.received_at <= sqlc.narg('until')::timestamptz, true)
	ORDER BY a.id LIMIT @max_rows
)
SELECT
	q.id,
	q.consumer,
	q.message_id,
	q.ordering_key,
	q.attributes,
	q.payload_size,
	q.payload_sha256,
	q.reason,
	q.cause::text AS cause,
	q.publish_time,
	q.received_at,
	m.total
FROM matching m
JOIN video_catalog_read.quarantine q ON q.id = m.id
ORDER BY q.id;

-- name: GetQuarantinedPayload :one
-- Returns the payload of a message; NULL if it is not kept.
SELECT q.payload FROM video_catalog_read.quarantine q WHERE q.id = @id;

-- name: DeleteQuarantine :one
-- Deletes messages and appends the audit row, and returns how many were still there.
WITH gone AS (
	DELETE FROM video_catalog_read.quarantine q
	WHERE q.id = ANY (@ids::bigint[])
	RETURNING q.id, q.consumer, q.message_id, q.ordering_key, q.attributes, q.reason, q.publish_time, q.received_at
), audited AS (
	INSERT INTO video_catalog_read.audit (action_id, actor, via, action, filter, reason, items, before)
	SELECT @action_id, @actor, @via, @action, @filter, @reason, count(*), jsonb_agg(g ORDER BY g.id)
	FROM gone g HAVING count(*) > 0
)
SELECT count(*) FROM gone;

-- name: PruneQuarantine :execrows
-- Deletes messages of all consumers that were received longer ago than older_than, by the clock of the database. Ids
-- grow with that time, so it reads only the first max_rows.
DELETE FROM video_catalog_read.quarantine
WHERE id IN (
	SELECT q.id FROM video_catalog_read.quarantine q
	ORDER BY q.id LIMIT @max_rows
) AND received_at < now() - @older_than::interval;

-- name: MeasureQuarantine :one
-- Returns the number of messages of some consumers in quarantine, counted up to max_counted.
SELECT count(*) FROM (
	SELECT FROM video_catalog_read.quarantine q WHERE q.consumer = ANY (@consumers::text[]) LIMIT @max_counted
) counted;

-- name: PruneQueryAudit :one
SELECT video_catalog_read.audit_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;
