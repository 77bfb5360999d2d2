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
	count(*)::bigint AS items,
	min(q.received_at)::timestamptz AS first_time,
	max(q.received_at)::timestamptz AS last_time
FROM video_catalog_read.quarantine q
GROUP BY 1
ORDER BY items DESC, cause
LIMIT @max_rows;

-- name: CountQuarantine :one
-- Counts messages. An empty text and the id 0 match all.
SELECT count(*)::bigint
FROM video_catalog_read.quarantine q
WHERE (@id::bigint = 0 OR q.id = @id)
	AND (@aggregate_type::text = '' OR q.attributes ->> 'aggregate_type' = @aggregate_type)
	AND (@cause::text = '' OR q.cause = @cause)
	AND (@age::interval = '0' OR q.received_at < now() - @age);

-- name: ListQuarantine :many
-- Returns messages in the order in which they were set aside, behind the one with the id after_id, without their payloads,
-- which are large, and which support_ro may not read.
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
	q.received_at
FROM video_catalog_read.quarantine q
WHERE q.id > @after_id
	AND (@id::bigint = 0 OR q.id = @id)
	AND (@aggregate_type::text = '' OR q.attributes ->> 'aggregate_type' = @aggregate_type)
	AND (@cause::text = '' OR q.cause = @cause)
	AND (@age::interval = '0' OR q.received_at < now() - @age)
ORDER BY q.id
LIMIT @max_rows;

-- name: GetQuarantinedPayload :one
-- Returns the payload of a message; NULL if it is not kept.
SELECT q.payload
FROM video_catalog_read.quarantine q
WHERE q.id = @id;

-- name: DeleteQuarantine :many
-- Deletes messages and appends the audit row. It returns the ids of those that were still there.
WITH gone AS (
	DELETE FROM video_catalog_read.quarantine q
	WHERE q.id = ANY (@ids::bigint[])
	RETURNING
		q.id,
		q.consumer,
		q.message_id,
		q.ordering_key,
		q.attributes,
		q.reason,
		q.publish_time,
		q.received_at
), audited AS (
	INSERT INTO video_catalog_read.audit (
		action_id,
		actor,
		via,
		action,
		filter,
		reason,
		items,
		before
	)
	SELECT
		@action_id,
		@actor,
		@via,
		@action,
		@filter,
		@reason,
		count(*),
		jsonb_agg(to_jsonb(g) ORDER BY g.id)
	FROM gone g
	HAVING count(*) > 0
)
SELECT g.id
FROM gone g
ORDER BY g.id;

-- name: EraseQuarantine :exec
-- Deletes the messages of all consumers that have one of some ordering keys. It reads the whole table, which has few rows.
DELETE FROM video_catalog_read.quarantine
WHERE ordering_key = ANY (@ordering_keys::text[]);

-- name: PruneQuarantine :execrows
-- Deletes messages of all consumers that were received longer ago than older_than, by the clock of the database. Ids grow
-- with that time, so it reads only the first max_rows.
DELETE FROM video_catalog_read.quarantine
WHERE id IN (
	SELECT q.id
	FROM video_catalog_read.quarantine q
	ORDER BY q.id
	LIMIT @max_rows
)
	AND received_at < now() - @older_than::interval;

-- name: MeasureQuarantine :one
-- Returns the number of messages of some consumers in quarantine, counted up to max_counted.
SELECT count(*) FROM (
	SELECT FROM video_catalog_read.quarantine q WHERE q.consumer = ANY (@consumers::text[]) LIMIT @max_counted
) counted;
