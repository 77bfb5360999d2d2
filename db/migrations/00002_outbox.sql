-- +goose Up
-- The outbox of the command side. Nothing outside the schema video_catalog refers to it. Each query on a queue has one index
-- to use: see UseOutboxSettings in internal/pg/queries/outbox.sql.
CREATE SCHEMA video_catalog;

-- Returns the smallest UUIDv7 of an instant. The bounds of the partitions are such values.
CREATE FUNCTION video_catalog.uuid7_floor(t timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (lpad(to_hex(floor(extract(epoch FROM t) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- Identifies a cause: messages that differ only in numbers, ids and quoted words have the same one.
CREATE FUNCTION video_catalog.cause(message text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN left(md5(regexp_replace(message, '"[^"]*"|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|[0-9]+', '?', 'g')), 12);

CREATE TABLE video_catalog.outbox (
	id uuid PRIMARY KEY, -- a UUIDv7: its time decides the partition
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	event_type text NOT NULL,
	version bigint NOT NULL,
	schema_version int NOT NULL,
	payload bytea NOT NULL,
	occurred_at timestamptz NOT NULL,
	traceparent text, -- W3C trace context of the command, if it had one
	caller text, -- by the token of the call: a verified email, or sub and the subject; never published
	causation_id uuid, -- the event that caused this one; NULL for the event of a command
	correlation_id uuid -- the first event of the chain of causes; NULL for the event of a command
) PARTITION BY RANGE (id);
COMMENT ON TABLE video_catalog.outbox IS 'Every event of the last days. Rows are never updated, and dropped by partition. A CDC reader could read it.';

-- The statistics of a queue are always wrong, so this table is not analyzed. It needs frequent vacuum.
CREATE TABLE video_catalog.outbox_pending (
	lane smallint NOT NULL, -- a shard of the outbox, 0 to 7: see Lane in internal/outbox
	seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1), -- drawn under the row lock of the aggregate: the order of its events
	id uuid NOT NULL,
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	event_type text NOT NULL,
	version bigint NOT NULL,
	schema_version int NOT NULL,
	payload bytea NOT NULL,
	occurred_at timestamptz NOT NULL,
	traceparent text,
	repeat text NOT NULL DEFAULT '' CHECK (repeat IN ('', 'snapshot')), -- snapshot: the state of its aggregate, which an operator published; outbox does not have it
	causation_id uuid,
	correlation_id uuid,
	PRIMARY KEY (lane, seq)
) PARTITION BY LIST (lane); -- so that the rows of a claim are neighbors
-- +goose StatementBegin
DO $$ BEGIN
	FOR lane IN 0..7 LOOP
		EXECUTE format('CREATE TABLE video_catalog.outbox_lane_%1$s PARTITION OF video_catalog.outbox_pending FOR VALUES IN (%1$s)
			WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
			autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000)', lane);
	END LOOP;
END $$;
-- +goose StatementEnd
COMMENT ON TABLE video_catalog.outbox_pending IS 'One row per event that is not known to be in Pub/Sub, and not deferred. It is a copy of the event, so that a claim reads no other table.';

CREATE TABLE video_catalog.outbox_deferred (
	LIKE video_catalog.outbox_pending INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
	PRIMARY KEY (aggregate_type, aggregate_id, seq)
);
COMMENT ON TABLE video_catalog.outbox_deferred IS 'The events of blocked aggregates, moved from outbox_pending. They are published from here, and never moved back.';

CREATE TABLE video_catalog.outbox_blocked (
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	lane smallint NOT NULL,
	head_seq bigint NOT NULL DEFAULT 0, -- no event of the aggregate is or will be deferred below it; the first from it on is the head
	attempts int NOT NULL, -- how often the head was refused; 0 after a retry or a skip by a person
	next_retry_at timestamptz, -- NULL if parked, until a person retries or skips the head
	parked_at timestamptz,
	last_error text NOT NULL,
	cause text GENERATED ALWAYS AS (video_catalog.cause(last_error)) STORED, -- what errors of the same cause have in common
	PRIMARY KEY (aggregate_type, aggregate_id)
);
CREATE INDEX outbox_blocked_due ON video_catalog.outbox_blocked (lane, next_retry_at);
COMMENT ON TABLE video_catalog.outbox_blocked IS 'One row per aggregate with an event that the broker refused, until all its deferred events are published.';

CREATE TABLE video_catalog.outbox_skipped (
	event_id uuid PRIMARY KEY,
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	seq bigint NOT NULL,
	actor text NOT NULL,
	reason text NOT NULL,
	create_time timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE video_catalog.outbox_skipped IS 'The events that a person gave up. An event of outbox is published if it is not here, not pending, not deferred and not erased.';

CREATE TABLE video_catalog.outbox_lanes (
	lane smallint PRIMARY KEY,
	token bigint NOT NULL DEFAULT 0, -- the fence: drawn at random by the claimer; 0 after the release
	leased_until timestamptz NOT NULL DEFAULT '-infinity', -- a release writes the current time: the lane served longest ago comes first
	settled_seq bigint NOT NULL DEFAULT 0, -- the highest seq of a settlement; it only helps to find work, because an event that commits late is below it
	floor_seq bigint NOT NULL DEFAULT 0, -- no pending row is or will be at or below it; claims read from here
	mark_seq bigint NOT NULL DEFAULT 0, -- the highest possible next floor, after every transaction before mark_xid has ended
	mark_xid xid8 NOT NULL DEFAULT '0'
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO video_catalog.outbox_lanes (lane) SELECT generate_series(0, 7);
COMMENT ON TABLE video_catalog.outbox_lanes IS 'The lanes: a row is the lease. Only its holder, or a transaction that locks the row, takes rows out of the lane or deletes blocked rows.';

-- Creates the partitions of the outbox from yesterday until days_ahead days from now, and drops at most five that are older
-- than keep. It also deletes the notes of skipped events of that age. An event that is still pending is published all the same.
-- While another process runs it, it does nothing. A partition that cannot be dropped stays, with a warning in the log of
-- PostgreSQL. SECURITY DEFINER, because the service itself may not create tables.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_maintain(days_ahead int, keep interval) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET timezone = 'UTC' AS $$
DECLARE
	day date;
	name text;
BEGIN
	IF NOT pg_try_advisory_xact_lock(hashtext('video_catalog.outbox_maintain')) THEN
		RETURN;
	END IF;
	FOR day IN SELECT generate_series(current_date - 1, current_date + days_ahead, interval '1 day') LOOP
		name := 'outbox_p' || to_char(day, 'YYYYMMDD');
		CONTINUE WHEN to_regclass('video_catalog.' || name) IS NOT NULL;
		-- LIKE and ATTACH lock the parent only against other DDL. PARTITION OF would block every append.
		EXECUTE format('CREATE TABLE video_catalog.%I (LIKE video_catalog.outbox INCLUDING ALL)', name);
		EXECUTE format('ALTER TABLE video_catalog.outbox ATTACH PARTITION video_catalog.%I FOR VALUES FROM (%L) TO (%L)',
			name, video_catalog.uuid7_floor(day), video_catalog.uuid7_floor(day + 1));
	END LOOP;
	DELETE FROM video_catalog.outbox_skipped s WHERE s.create_time < now() - keep - interval '1 day'; -- first, because a DROP makes the writers wait; an event is older than its note
	FOR name IN
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'video_catalog.outbox'::regclass AND c.relname ~ '^outbox_p[0-9]{8}$' -- the other partitions are not ours
			AND c.relname < 'outbox_p' || to_char(now() - keep, 'YYYYMMDD')
		ORDER BY c.relname LIMIT 5 -- few, because a DROP makes the writers wait until the end
	LOOP
		BEGIN
			EXECUTE format('DROP TABLE video_catalog.%I', name); -- locks the parent first, as every append does
		EXCEPTION WHEN OTHERS THEN
			-- For example, a transaction reads it, or a view depends on it, which DROP does not remove.
			-- The partitions created above must not be rolled back, or commands would soon fail.
			RAISE WARNING 'partition % is not dropped: %', name, SQLERRM;
		END;
	END LOOP;
END $$;
-- +goose StatementEnd

SELECT video_catalog.outbox_maintain(7, interval '7 days');

GRANT USAGE ON SCHEMA video_catalog TO video_catalog_rw, support_ro;
GRANT SELECT, INSERT ON video_catalog.outbox, video_catalog.outbox_skipped TO video_catalog_rw;
GRANT SELECT, INSERT, DELETE ON video_catalog.outbox_pending, video_catalog.outbox_deferred TO video_catalog_rw;
GRANT SELECT, INSERT, UPDATE, DELETE ON video_catalog.outbox_blocked TO video_catalog_rw;
GRANT SELECT, UPDATE ON video_catalog.outbox_lanes TO video_catalog_rw;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA video_catalog TO video_catalog_rw;

-- For support, column by column for tables with payloads. The content of an event or a broken message is for programs, and
-- later versions may have personal data in it that nobody has checked. So a new column is closed until it is granted.
GRANT SELECT ON video_catalog.outbox_blocked, video_catalog.outbox_skipped, video_catalog.outbox_lanes TO support_ro;
GRANT SELECT (id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent, caller, causation_id, correlation_id)
	ON video_catalog.outbox TO support_ro;
GRANT SELECT (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent, repeat, causation_id, correlation_id)
	ON video_catalog.outbox_pending, video_catalog.outbox_deferred TO support_ro;

-- +goose Down
DROP SCHEMA video_catalog CASCADE;
