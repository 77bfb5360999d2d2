-- name: GetSlot :one
-- Returns the mode, the state of the slot, and the token of the last reader.
SELECT
	r.mode,
	r.slot,
	coalesce(s.wal_status, 'missing')::text AS wal_status,
	coalesce(s.active_pid, 0)::int AS reader,
	o.token
FROM video_catalog.outbox_relay r
CROSS JOIN video_catalog.outbox_reader o
LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = r.slot;

-- name: ListReaderMistakes :many
-- Returns what keeps this user from reading a slot itself, with the remedies.
SELECT m.mistake::text AS mistake
FROM (VALUES
	(
		(SELECT NOT (o.rolreplication OR o.rolsuper) FROM pg_catalog.pg_roles o WHERE o.rolname = session_user),
		format('%I must have the attribute REPLICATION: ALTER ROLE %I REPLICATION', session_user, session_user)
	),
	(
		(SELECT count(*) FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = @slot) = 0
			AND (SELECT count(*) FROM pg_catalog.pg_replication_slots) >= current_setting('max_replication_slots')::int,
		format('all %s slots are taken: drop one, or raise max_replication_slots', current_setting('max_replication_slots'))
	),
	(
		(SELECT count(*) FROM pg_catalog.pg_stat_replication) >= current_setting('max_wal_senders')::int,
		format('all %s senders of the log are taken: raise max_wal_senders', current_setting('max_wal_senders'))
	)
) m (is_wrong, mistake)
WHERE m.is_wrong;

-- name: TakeOver :one
-- Makes a process the reader, unless another has become it since the last one was read. A transaction of the last one
-- that defers events has ended by then.
UPDATE video_catalog.outbox_reader o SET token = @token WHERE o.token = @last
RETURNING o.lost_since;

-- name: ListBlockedAggregates :many
SELECT b.aggregate_type, b.aggregate_id FROM video_catalog.outbox_blocked b WHERE b.lane = ANY (@lanes::smallint[]);

-- name: ListKnown :many
-- Returns the events that are deferred, or that a person has skipped.
SELECT d.id FROM video_catalog.outbox_deferred d WHERE d.repeat = '' UNION ALL SELECT s.event_id FROM video_catalog.outbox_skipped s;

-- name: NoteLoss :exec
-- Records that the slot is lost, if it still is: a new one lacks what was committed since the last confirmed mark, or
-- shortly before.
UPDATE video_catalog.outbox_reader o SET lost_since = least(o.lost_since, r.safe_time - @margin::interval)
FROM video_catalog.outbox_relay r
WHERE NOT EXISTS (
	SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = r.slot AND s.wal_status <> 'lost'
);

-- name: DropLostSlot :exec
SELECT pg_drop_replication_slot(s.slot_name) FROM pg_catalog.pg_replication_slots s
WHERE s.slot_name = @slot AND s.wal_status = 'lost';

-- name: EndLoss :exec
UPDATE video_catalog.outbox_reader SET lost_since = NULL WHERE token = @token;

-- name: ListRecorded :many
-- Returns the next events since a time, by aggregate and version, without those that are deferred or skipped.
SELECT o.* FROM video_catalog.outbox o
WHERE o.id >= video_catalog.uuid7_floor(@since)
	AND (o.aggregate_type, o.aggregate_id, o.version) > (@after_type::text, @after_id::text, @after_version::bigint)
	AND (
		SELECT true FROM video_catalog.outbox_deferred d
		WHERE d.aggregate_type = o.aggregate_type AND d.aggregate_id = o.aggregate_id AND d.id = o.id LIMIT 1
	) IS NULL
	AND (SELECT true FROM video_catalog.outbox_skipped s WHERE s.event_id = o.id) IS NULL
ORDER BY o.aggregate_type, o.aggregate_id, o.version
LIMIT @max_rows;

-- name: HoldReader :one
-- Locks the token until the end of the transaction. It returns no row if another process is the reader, or none.
SELECT o.token FROM video_catalog.outbox_reader o WHERE o.token = @token FOR SHARE;

-- name: HoldLanes :exec
SELECT l.lane FROM video_catalog.outbox_lanes l WHERE l.lane = ANY (@lanes::smallint[]) ORDER BY l.lane FOR UPDATE;

-- name: SetAside :exec
-- Defers an event from the log, and blocks its aggregate. The block has no lowest seq: a pending snapshot that is refused later may be
-- below the event.
WITH event AS (
	INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version,
		schema_version, payload, occurred_at, traceparent, causation_id, correlation_id)
	VALUES (@lane, nextval('video_catalog.outbox_pending_seq_seq'), @id, @aggregate_type, @aggregate_id, @event_type,
		@version, @schema_version, @payload, @occurred_at, sqlc.narg('traceparent'), sqlc.narg('causation_id'),
		sqlc.narg('correlation_id'))
	RETURNING aggregate_type, aggregate_id, lane
)
INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, next_retry_at, last_error)
SELECT event.aggregate_type, event.aggregate_id, event.lane, @attempts::int, clock_timestamp() + @retry_in::interval, @last_error::text
FROM event
ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET head_seq = 0;

-- name: GetEnd :one
SELECT pg_current_wal_flush_lsn()::text AS lsn;

-- name: IsConfirmed :one
-- Reports whether the reader has confirmed the log up to a position, and no event waits that only the table outbox has.
SELECT (s.confirmed_flush_lsn >= (@until::text)::pg_lsn AND o.lost_since IS NULL)::bool AS is_confirmed
FROM video_catalog.outbox_reader o
CROSS JOIN pg_catalog.pg_replication_slots s WHERE s.slot_name = @slot;

-- name: EndReader :exec
UPDATE video_catalog.outbox_reader SET token = 0, lost_since = NULL;

-- name: StopReader :exec
-- Ends the connection of the reader of a slot, if it is of the same user.
SELECT pg_terminate_backend(s.active_pid) FROM pg_catalog.pg_replication_slots s
WHERE s.slot_name = @slot AND s.active_pid IS NOT NULL;
