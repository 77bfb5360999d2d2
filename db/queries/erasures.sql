-- name: LockOutboxLane :one
-- Locks a lane until the end of the transaction, as every claim and settlement does. So no event of it leaves the lane
-- meanwhile.
SELECT floor_seq FROM video_catalog.outbox_lanes WHERE lane = @lane FOR UPDATE;

-- name: ErasePending :exec
-- Deletes the pending and deferred events of an aggregate, and ends its block. The caller must hold the lock of
-- LockOutboxLane. It reads the whole lane, which is short unless the broker is unavailable.
WITH unblocked AS ( -- first: an operator locks it before its events
	DELETE FROM video_catalog.outbox_blocked b WHERE b.aggregate_type = @aggregate_type AND b.aggregate_id = @aggregate_id
	RETURNING b.aggregate_id
), deferred AS (
	DELETE FROM video_catalog.outbox_deferred d
	WHERE d.aggregate_type = @aggregate_type AND d.aggregate_id = @aggregate_id AND (SELECT count(*) FROM unblocked) >= 0
)
DELETE FROM video_catalog.outbox_pending p
WHERE p.lane = @lane AND p.seq > @floor_seq AND p.aggregate_type = @aggregate_type AND p.aggregate_id = @aggregate_id;

-- name: InsertErasure :exec
-- Queues an aggregate whose events and requests must be erased. Appends the purge to the audit, with the id of its event.
WITH audited AS (
	INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
	VALUES (
		@event_id,
		coalesce(nullif(@caller::text, ''), 'unknown'),
		'api',
		'purge',
		jsonb_build_object('type', @aggregate_type::text, 'aggregate', @aggregate_id::text),
		'',
		1,
		'[]'
	)
)
INSERT INTO video_catalog.erasures (aggregate_type, aggregate_id) VALUES (@aggregate_type, @aggregate_id);

-- name: ListErasures :many
SELECT id FROM video_catalog.erasures ORDER BY id LIMIT @max_rows;

-- name: EraseOutbox :one
-- Erases events: see video_catalog.outbox_erase. Returns the zero id at the end.
SELECT coalesce(
	video_catalog.outbox_erase(@erasure_ids::bigint[], @after_id::uuid, @max_rows::int),
	'00000000-0000-0000-0000-000000000000'
)::uuid AS last_id;

-- name: EraseRequests :one
-- Reads about max_rows requests that were made after after_time. Deletes the requests of the given erasures. Returns
-- the time of the last that it read, or the epoch if there was none. IS TRUE forbids a join, as in DeletePublished:
-- with any statistics it compares with a hash.
WITH last AS MATERIALIZED (
	SELECT max(batch.create_time) AS last_time
	FROM (
		SELECT q.create_time FROM video_catalog.requests q
		WHERE q.create_time > @after_time ORDER BY q.create_time LIMIT @max_rows
	) batch
), gone AS (
	DELETE FROM video_catalog.requests r
	WHERE r.create_time > @after_time AND r.create_time <= (SELECT l.last_time FROM last l)
		AND ((r.aggregate_type, r.aggregate_id) IN (
			SELECT e.aggregate_type, e.aggregate_id FROM video_catalog.erasures e WHERE e.id = ANY (@erasure_ids::bigint[])
		)) IS TRUE
)
SELECT coalesce(l.last_time, 'epoch')::timestamptz AS last_time FROM last l;

-- name: DeleteErasures :exec
DELETE FROM video_catalog.erasures WHERE id = ANY (@erasure_ids::bigint[]);

-- name: PruneTombstones :one
-- Deletes what is left of aggregates that were purged long ago.
SELECT video_catalog.tombstones_prune(@older_than::interval, @max_rows::int)::bigint AS deleted;

-- name: EraseQuarantine :exec
-- Deletes the messages of all consumers that have one of some ordering keys, but for messages of the purge, by its
-- version: a purge has no content, and is not applied yet. It reads the whole table, which has few rows.
DELETE FROM video_catalog_read.quarantine q
USING (SELECT unnest(@ordering_keys::text[]) AS ordering_key, unnest(@versions::bigint[]) AS version) purge
WHERE q.ordering_key = purge.ordering_key AND q.attributes ->> 'version' IS DISTINCT FROM purge.version::text;
