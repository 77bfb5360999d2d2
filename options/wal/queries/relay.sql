-- name: GetRelay :one
-- Returns the mode, and its slot: kept is how much of the log it keeps, in bytes, and age for how long its reader has not
-- confirmed a position. A slot that is not there is missing.
SELECT
	r.mode,
	r.slot,
	r.since,
	r.safe_time,
	coalesce(s.wal_status, 'missing')::text AS wal_status,
	coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint AS kept,
	(CASE WHEN r.mode <> 'lanes' AND (s.confirmed_flush_lsn >= r.mark_lsn) IS NOT TRUE
		THEN extract(epoch FROM now() - r.mark_time) ELSE 0 END)::float8 AS age
FROM video_catalog.outbox_relay r
LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = r.slot;

-- name: ListSlots :many
-- Returns the slots of this database with the plugin of the publication, and whether somebody reads them.
SELECT
	s.slot_name::text AS name,
	coalesce(s.active, false)::bool AS active,
	coalesce(s.wal_status, '')::text AS wal_status,
	coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint AS kept
FROM pg_catalog.pg_replication_slots s WHERE s.database = current_database() AND s.plugin = 'pgoutput' ORDER BY s.slot_name;

-- name: ListMistakes :many
-- Returns what keeps a reader of a slot, or of the slot of the mode, from the events, with the remedies. It changes nothing.
SELECT m.mistake::text AS mistake
FROM (SELECT coalesce(nullif(@slot::text, ''), o.slot) AS slot FROM video_catalog.outbox_relay o) r CROSS JOIN LATERAL (VALUES
	(pg_is_in_recovery(), 'this server is a standby: use the primary'),
	(current_setting('wal_level') <> 'logical', format('wal_level is %s and must be logical: ALTER SYSTEM SET wal_level = logical,'
		' then restart the server', current_setting('wal_level'))),
	((SELECT count(*) FROM pg_catalog.pg_publication p WHERE p.pubname = 'video_catalog_outbox'
		AND (p.pubinsert, p.pubviaroot, p.pubupdate, p.pubdelete, p.pubtruncate) = (true, true, false, false, false)) = 0,
		'the publication video_catalog_outbox must exist, with publish = insert and publish_via_partition_root = true'),
	((SELECT count(*) FROM pg_catalog.pg_publication_tables t WHERE t.pubname = 'video_catalog_outbox' AND t.tablename = 'outbox'
		AND 'caller' <> ALL (t.attnames)) = 0,
		'the publication video_catalog_outbox must have the table outbox without the column caller'),
	((SELECT count(*) FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = r.slot
		AND (s.database <> current_database() OR s.plugin <> 'pgoutput')) = 1,
		format('the slot %s must have the plugin pgoutput, and be of this database: choose another with --slot', r.slot))
) m (is_wrong, mistake)
WHERE m.is_wrong;

-- name: MarkRelay :exec
-- Sets the next mark, if the reader has confirmed the last one.
UPDATE video_catalog.outbox_relay r SET safe_time = r.mark_time, mark_lsn = pg_current_wal_lsn(), mark_time = now()
FROM pg_catalog.pg_replication_slots s
WHERE s.slot_name = r.slot AND r.mode <> 'lanes' AND s.confirmed_flush_lsn >= r.mark_lsn;

-- name: CreateSlot :exec
SELECT pg_create_logical_replication_slot(@slot, 'pgoutput');

-- name: DropSlot :exec
-- Drops the slot, if it is there, and the mode is lanes. A slot with a reader stays, with an error.
SELECT pg_drop_replication_slot(s.slot_name) FROM pg_catalog.pg_replication_slots s, video_catalog.outbox_relay r
WHERE s.slot_name = @slot AND s.database = current_database() AND r.mode = 'lanes';

-- name: AdvanceSlot :exec
-- Confirms the log up to a position, or up to its end. A slot that is not there is an error.
SELECT pg_replication_slot_advance(@slot, greatest((SELECT s.confirmed_flush_lsn FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = @slot),
	coalesce(sqlc.narg('until')::text::pg_lsn, pg_current_wal_lsn())));

-- name: HasReader :one
-- Reports whether a reader is connected to a slot. A statement that uses it is none.
SELECT EXISTS (
	SELECT FROM pg_catalog.pg_replication_slots s JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = @slot
);

-- name: LimitLock :exec
-- The time is longer than deadlock_timeout, when PostgreSQL ends an autovacuum that is in the way.
SELECT set_config('lock_timeout', '1500ms', true);

-- name: LockSwitch :one
-- Takes the right to switch, until the end of the transaction, which may be idle.
SELECT set_config(s.name, '0', true) FROM pg_catalog.pg_settings s, pg_advisory_xact_lock('video_catalog.outbox_relay'::regclass::oid::bigint)
WHERE s.name IN ('idle_in_transaction_session_timeout', 'transaction_timeout');

-- name: SetSwitching :exec
-- Begins or ends the time of a switch, in which appends read the mode. Waits for the transactions that have written
-- pending events.
SELECT video_catalog.outbox_relay_switching(@is_switching);

-- name: HoldAppends :exec
-- Waits until no transaction that has read the mode is open, and holds appends until the end of this transaction.
LOCK TABLE video_catalog.outbox_relay IN EXCLUSIVE MODE;

-- name: FindHolder :one
-- Describes the oldest transaction that has written pending events, or has read the mode, or, for a new slot, that has
-- written.
SELECT format('process %s, user %s, application %s, age %s', a.pid, a.usename, a.application_name,
	coalesce(date_trunc('second', now() - a.xact_start)::text, 'hidden from this user'))::text AS holder
FROM pg_catalog.pg_stat_activity a
WHERE a.pid <> pg_backend_pid() AND CASE WHEN @for_slot::bool THEN a.backend_xid IS NOT NULL ELSE a.pid IN (
	SELECT l.pid FROM pg_catalog.pg_locks l
	WHERE l.granted AND l.mode <> 'AccessShareLock' AND (l.relation = 'video_catalog.outbox_relay'::regclass
		OR l.relation IN (SELECT t.relid FROM pg_partition_tree('video_catalog.outbox_pending') t))) END
ORDER BY a.xact_start LIMIT 1;

-- name: PeekLog :many
-- Returns the ids of the events in the log that the reader has not confirmed, in the order of their commits, and the ends
-- of their transactions. An insert is I, the number of the relation (4 bytes), N, the number of columns (2), and the
-- columns: t, the length (4), the text. The first is the id.
SELECT p.lsn::text AS lsn,
	(CASE get_byte(p.data, 0) WHEN ascii('I') THEN convert_from(substring(p.data FROM 14 FOR 36), 'UTF8') ELSE '' END)::text AS id
FROM pg_logical_slot_peek_binary_changes(@slot, NULL, @max_changes::int, 'proto_version', '1',
	'publication_names', 'video_catalog_outbox') p
WHERE get_byte(p.data, 0) IN (ascii('I'), ascii('C'));

-- name: ListAggregates :many
-- Returns the aggregates of some events, or of all since a time, in the order of their versions.
SELECT o.id, o.aggregate_type, o.aggregate_id FROM video_catalog.outbox o
WHERE o.id = ANY (@ids::uuid[]) OR @is_lost::bool AND o.id >= video_catalog.uuid7_floor(@since) ORDER BY o.version;

-- name: MoveToLanes :exec
-- Makes events pending, in their order. The mode must be lanes for this transaction.
INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload,
	occurred_at, traceparent, causation_id, correlation_id)
SELECT m.lane, o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.version, o.schema_version, o.payload,
	o.occurred_at, o.traceparent, o.causation_id, o.correlation_id
FROM (SELECT unnest(@lanes::smallint[]) AS lane, unnest(@ids::uuid[]) AS id, generate_subscripts(@ids, 1) AS place) m
JOIN video_catalog.outbox o USING (id)
ORDER BY m.place;

-- name: UseMode :exec
-- Sets the mode. An event that drew its seq before, and becomes pending after it, draws another.
UPDATE video_catalog.outbox_relay SET mode = @mode, first_seq = nextval('video_catalog.outbox_pending_seq_seq');

-- name: BeginMode :exec
-- Begins a mode. A reader has nothing to confirm yet.
UPDATE video_catalog.outbox_relay
SET mode = @mode, slot = @slot, since = now(), safe_time = now(), mark_lsn = pg_current_wal_lsn(), mark_time = now();

-- name: AuditSwitch :exec
INSERT INTO video_catalog.audit (action_id, actor, via, action, filter, reason, items, before)
VALUES (@action_id, @actor, @via, @action, @filter, @reason, @items, '[]');
