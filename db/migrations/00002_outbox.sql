-- +goose Up
-- The command side: what it needs beside the tables of its aggregates. Nothing outside the schema video_catalog refers to
-- it.
CREATE SCHEMA video_catalog;

-- Returns the smallest UUIDv7 of an instant. The bounds of the partitions are such values.
CREATE FUNCTION video_catalog.uuid7_floor(t timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (lpad(to_hex(floor(extract(epoch FROM t) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

CREATE TABLE video_catalog.outbox (
	id uuid NOT NULL,
	aggregate_type text NOT NULL,
	aggregate_id text NOT NULL,
	event_type text NOT NULL,
	version bigint NOT NULL,
	schema_version int NOT NULL,
	payload bytea NOT NULL,
	occurred_at timestamptz NOT NULL,
	traceparent text,
	PRIMARY KEY (id)
) PARTITION BY RANGE (id);

COMMENT ON TABLE video_catalog.outbox IS 'Every event of the last days. Rows are never updated, and dropped by partition. A CDC reader could read it.';
COMMENT ON COLUMN video_catalog.outbox.id IS 'The event id, a UUIDv7. Its time decides the partition.';
COMMENT ON COLUMN video_catalog.outbox.traceparent IS 'W3C trace context of the command, if it had one.';

CREATE TABLE video_catalog.outbox_pending (
	lane smallint NOT NULL,
	seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
	id uuid NOT NULL,
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	event_type text NOT NULL,
	version bigint NOT NULL,
	schema_version int NOT NULL,
	payload bytea NOT NULL,
	occurred_at timestamptz NOT NULL,
	traceparent text,
	PRIMARY KEY (lane, seq)
) PARTITION BY LIST (lane);

-- A partition per lane, so that the rows of a claim are neighbors. One more for events set aside, so that they do not
-- slow down a claim. The statistics of a queue are always wrong, so these tables are not analyzed. They need frequent
-- vacuum.
CREATE TABLE video_catalog.outbox_aside PARTITION OF video_catalog.outbox_pending FOR VALUES IN (-1) WITH (
	autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
	autovacuum_vacuum_insert_threshold = -1,
	autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000
);
-- +goose StatementBegin
DO $$
BEGIN
	FOR lane IN 0..7 LOOP
		EXECUTE format($create$
			CREATE TABLE video_catalog.outbox_lane_%1$s PARTITION OF video_catalog.outbox_pending FOR VALUES IN (%1$s) WITH (
				autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
				autovacuum_vacuum_insert_threshold = -1,
				autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000
			)$create$, lane);
	END LOOP;
END $$;
-- +goose StatementEnd

COMMENT ON TABLE video_catalog.outbox_pending IS 'One row per event that is not yet known to be in Pub/Sub. It is inserted with the event, and deleted when the broker has it. It is a copy of the event, so that a claim reads no other table.';
COMMENT ON COLUMN video_catalog.outbox_pending.lane IS '0 to 7, by a hash of the aggregate that the service computes: see outbox.Lane. -1 if the event is set aside, because its aggregate is blocked.';
COMMENT ON COLUMN video_catalog.outbox_pending.seq IS 'The order inside an aggregate. It is drawn under the row lock of the aggregate, from a sequence with CACHE 1.';

COMMENT ON TABLE video_catalog.outbox_aside IS 'The pending events of blocked aggregates.';

-- The condition "lane + 0 = -1" makes the planner use this index only for queries that have the same condition. Other
-- queries use the primary key. Without it the planner would choose by estimates, which are always wrong here.
CREATE INDEX outbox_aside_aggregate ON video_catalog.outbox_aside (aggregate_type, aggregate_id, seq) WHERE lane + 0 = -1;

CREATE TABLE video_catalog.outbox_lanes (
	lane smallint NOT NULL,
	era bigint NOT NULL DEFAULT 0,
	lease_token bigint NOT NULL DEFAULT 0,
	leased_until timestamptz NOT NULL DEFAULT '-infinity',
	leased_for interval NOT NULL DEFAULT '0',
	floor_seq bigint NOT NULL DEFAULT 0,
	mark_seq bigint NOT NULL DEFAULT 0,
	mark_xid xid8 NOT NULL DEFAULT '0',
	mark_ripe bool NOT NULL DEFAULT false,
	settled_seq bigint NOT NULL DEFAULT 0,
	settlements bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (lane, era)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

COMMENT ON TABLE video_catalog.outbox_lanes IS 'The lanes, which publishers claim: one row per lane. The key is the only index, so most updates stay HOT.';
COMMENT ON COLUMN video_catalog.outbox_lanes.settlements IS 'How many settlements there have been. The era follows from it.';
COMMENT ON COLUMN video_catalog.outbox_lanes.era IS 'Grows with every fiftieth settlement. A search for the highest era of a lane finds its current row, and skips the row versions of earlier eras.';
COMMENT ON COLUMN video_catalog.outbox_lanes.lease_token IS 'The fence: a random number that the caller of a claim draws; 0 after the release.';
COMMENT ON COLUMN video_catalog.outbox_lanes.leased_until IS 'The end of the lease. A release writes the current time, so the lane that was served longest ago is claimed first.';
COMMENT ON COLUMN video_catalog.outbox_lanes.leased_for IS 'The duration that the last claim asked for. If a lease ends much later than that, the clock has been set back.';
COMMENT ON COLUMN video_catalog.outbox_lanes.floor_seq IS 'No pending row of this lane exists or can appear at or below this seq.';
COMMENT ON COLUMN video_catalog.outbox_lanes.mark_seq IS 'The next floor, after every transaction before mark_xid has ended.';
COMMENT ON COLUMN video_catalog.outbox_lanes.mark_ripe IS 'Whether those transactions had ended in the snapshot of the claim, which writes it.';
COMMENT ON COLUMN video_catalog.outbox_lanes.settled_seq IS 'The highest seq of a settlement. Pending rows are behind it, except events that were committed late or are not known to be published.';

INSERT INTO video_catalog.outbox_lanes (lane) SELECT generate_series(0, 7);

-- Identifies a cause: messages that differ only in numbers, ids and quoted words have the same one.
CREATE FUNCTION video_catalog.cause(message text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN left(md5(regexp_replace(message, '"[^"]*"|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|[0-9]+', '?', 'g')), 12);

CREATE TABLE video_catalog.outbox_blocked (
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	lane smallint NOT NULL,
	attempts int NOT NULL,
	next_retry_at timestamptz,
	last_error text NOT NULL,
	parked_at timestamptz,
	floor_seq bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (aggregate_type, aggregate_id)
);

COMMENT ON TABLE video_catalog.outbox_blocked IS 'One row per aggregate with an event that the broker refused, until all its events that were set aside are published.';
COMMENT ON COLUMN video_catalog.outbox_blocked.attempts IS 'How often its first event was refused as the first of a pass. A requeue or a skip by a person resets it to 0.';
COMMENT ON COLUMN video_catalog.outbox_blocked.floor_seq IS 'No event of this aggregate is or will be set aside at or below this seq.';
COMMENT ON COLUMN video_catalog.outbox_blocked.next_retry_at IS 'NULL if parked, until a person requeues or skips the event.';

CREATE INDEX outbox_blocked_due ON video_catalog.outbox_blocked (lane, next_retry_at);

-- The claim is a function and not a statement of the client. So the session caches its plan even if the client must not
-- prepare statements (a transaction pooler). An empty claim takes 0.80 ms, of which 0.65 ms are planning.
--
-- Its plans must not depend on statistics. Those of a queue are always wrong: the queue is usually empty when they are
-- taken, and a session keeps the plans that it made then through the next outage. So the claim forbids sequential scans
-- and bitmaps, and leaves the planner one index to use. It also turns off JIT compilation, which would take longer than
-- the claim. The queries that settle and measure do the same: see UseOutboxIndexes in db/queries/outbox.sql.
--
-- The row of a lane is found by its highest era. While another transaction holds an old snapshot, as a dump does,
-- PostgreSQL keeps every version of the eight rows, two per pass. WHERE lane = n alone would read them all.

-- Takes the lease of the lane that has work and was served longest ago, by the clock of the database. Returns its oldest
-- events, in any order. Returns nothing if no lane has work. An event of a blocked aggregate is returned as blocked.
-- Events that were set aside are returned as for a retry, for up to 100 aggregates that are due.
--
-- The events end at the max_events-th, or at the one with which their payloads reach max_bytes. Events for a retry have
-- the same limits, counted separately: aggregate by aggregate, beginning with the one that has been due for longest. For
-- an aggregate with attempts only the first event is returned.
--
-- A row with seq 0 is not an event. With an aggregate, it says that this blocked aggregate has nothing left to retry.
-- Without one, it says that the lane has nothing left.
--
-- With only_lane it takes that lane, or none if no event is behind the mark there. This is for a caller that knows of a
-- commit. It leaves three things to claims without only_lane: events that were committed late, aggregates that are due,
-- and the lane of a clock that was set back.
--
-- token is the token of the new lease, above 0. The caller draws it at random. A claim is committed asynchronously, so a
-- crash or a failover may forget it, and the next claim must have another token. A counter would repeat its values, and
-- so would a clock that had been ahead. lost_tokens are the tokens of claims whose answer the caller never got. The lanes
-- of those are treated as free. The caller knows these tokens without an answer, because it has drawn them.
--
-- The function has several statements and not one, so that a common or an empty claim needs only the plans of its own
-- statements. Each statement sees what was committed before it. That is safe after the first statement, which locks the
-- lane. Only the holder of its lease takes events out of the lane, or blocks or unblocks an aggregate.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_claim(
	max_events int, max_bytes bigint, lease_for interval, only_lane smallint DEFAULT NULL,
	token bigint DEFAULT 1 + (random() * 9e15)::bigint, lost_tokens bigint[] DEFAULT '{}'
) RETURNS TABLE (
	lane smallint, lease_token bigint, seq bigint, retry bool, blocked bool, attempts int,
	id uuid, aggregate_type text, aggregate_id text, version bigint,
	event_type text, schema_version int, payload bytea, occurred_at timestamptz, traceparent text
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
	the_row tid;
	lease record;
	none bool; -- no aggregate of the lane is blocked
	few bool;
BEGIN
	-- Both queries use LATERAL with LIMIT, because EXISTS may become a hash of the whole pending table. They use ORDER
	-- BY, because without it the plan may be a sequential scan.
	IF only_lane IS NOT NULL THEN
		-- Opens one partition. The query below opens them all, which takes half the time of a small claim.
		SELECT free.ctid INTO the_row
		FROM video_catalog.outbox_lanes free
		CROSS JOIN LATERAL (
			SELECT 1 FROM video_catalog.outbox_pending p
			WHERE p.lane = only_lane AND p.seq > free.mark_seq
			ORDER BY p.seq LIMIT 1
		) work
		WHERE free.ctid = (SELECT l.ctid FROM video_catalog.outbox_lanes l WHERE l.lane = only_lane ORDER BY l.era DESC LIMIT 1)
			AND (free.leased_until < now() OR free.lease_token = ANY (lost_tokens))
		FOR UPDATE OF free SKIP LOCKED;
	ELSE
		SELECT free.ctid INTO the_row
		FROM (
			SELECT l.* FROM generate_series(0, 7) AS n
			CROSS JOIN LATERAL (
				SELECT l.ctid AS newest, l.leased_until FROM video_catalog.outbox_lanes l
				WHERE l.lane = n ORDER BY l.era DESC LIMIT 1
			) l
			-- Lanes that are leased come first, and the WHERE below skips them. So do lanes that a clock which was ahead
			-- has released: otherwise they would wait for all others. SQL does not promise that a join keeps this order,
			-- but these plans do.
			ORDER BY CASE WHEN l.leased_until > now() THEN '-infinity' ELSE l.leased_until END
		) l
		JOIN video_catalog.outbox_lanes free ON free.ctid = l.newest
		CROSS JOIN LATERAL (
			-- Behind settled_seq first, because before it are the dead rows of the last claims. While another claim holds
			-- the lock of this lane, every other claim does this search in vain.
			(SELECT 1 FROM video_catalog.outbox_pending p
			WHERE p.lane = free.lane AND p.seq > free.settled_seq
			ORDER BY p.seq LIMIT 1)
			UNION ALL
			(SELECT 1 FROM video_catalog.outbox_pending p
			WHERE p.lane = free.lane AND p.seq > free.floor_seq AND p.seq <= free.settled_seq
			ORDER BY p.seq LIMIT 1)
			UNION ALL
			(SELECT 1 FROM video_catalog.outbox_blocked b WHERE b.lane = free.lane AND b.next_retry_at <= now() LIMIT 1)
			LIMIT 1
		) work
		-- The condition in the middle is true if the clock has been set back since.
		WHERE free.leased_until < now() OR free.leased_until > now() + 2 * free.leased_for OR free.lease_token = ANY (lost_tokens)
		LIMIT 1
		FOR UPDATE OF free SKIP LOCKED;
	END IF;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	UPDATE video_catalog.outbox_lanes l
	SET lease_token = token,
		leased_until = clock_timestamp() + lease_for,
		leased_for = lease_for,
		mark_ripe = pg_snapshot_xmin(pg_current_snapshot()) >= l.mark_xid
	WHERE l.ctid = the_row
	RETURNING l.lane, l.lease_token, l.floor_seq INTO lease;
	-- Asynchronous until the end of this transaction: losing a lease in a crash means publishing twice, never losing an
	-- event.
	PERFORM set_config('synchronous_commit', 'off', true);

	SELECT count(*) <= 1000, count(*) = 0 INTO few, none
	FROM (SELECT 1 FROM video_catalog.outbox_blocked b WHERE b.lane = lease.lane ORDER BY b.lane, b.next_retry_at LIMIT 1001) b;
	IF none THEN
		RETURN QUERY
		SELECT lease.lane, lease.lease_token, p.seq, false, false, 0, p.id, p.aggregate_type, p.aggregate_id, p.version,
			p.event_type, p.schema_version, p.payload, p.occurred_at, coalesce(p.traceparent, '')
		FROM (
			SELECT *, sum(octet_length(p.payload)) OVER (ORDER BY p.seq ROWS UNBOUNDED PRECEDING) - octet_length(p.payload) AS bytes_before
			FROM video_catalog.outbox_pending p
			WHERE p.lane = lease.lane AND p.seq > lease.floor_seq
			ORDER BY p.seq LIMIT max_events
		) p
		WHERE p.bytes_before < max_bytes;
	ELSE
		-- Starting the query costs more than this check. A parked aggregate is never due.
		IF EXISTS (SELECT FROM video_catalog.outbox_blocked b WHERE b.lane = lease.lane AND b.next_retry_at <= now()) THEN
			RETURN QUERY
			SELECT lease.lane, lease.lease_token, coalesce(p.seq, 0), true, false, p.attempts,
				coalesce(p.id, '00000000-0000-0000-0000-000000000000'), p.aggregate_type, p.aggregate_id, coalesce(p.version, 0),
				coalesce(p.event_type, ''), coalesce(p.schema_version, 0), coalesce(p.payload, ''), coalesce(p.occurred_at, 'epoch'), coalesce(p.traceparent, '')
			FROM (
				SELECT *, sum(octet_length(p.payload)) OVER (
					ORDER BY p.next_retry_at, p.aggregate_type, p.aggregate_id, p.seq ROWS UNBOUNDED PRECEDING
				) - octet_length(p.payload) AS bytes_before
				FROM (
					-- LEFT JOIN: an aggregate with nothing set aside has recovered, and is returned without an event.
					SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.next_retry_at,
						a.seq, a.id, a.version, a.event_type, a.schema_version, a.payload, a.occurred_at, a.traceparent
					FROM (
						SELECT * FROM video_catalog.outbox_blocked b
						WHERE b.lane = lease.lane AND b.next_retry_at <= now()
						ORDER BY b.next_retry_at LIMIT least(100, max_events) -- a probe takes few of them
					) b
					LEFT JOIN LATERAL (
						SELECT * FROM video_catalog.outbox_aside a
						-- Starts behind the dead rows of the aggregate. The condition compares rows: with a condition on
						-- seq alone, the planner may read the whole primary key, (lane, seq).
						WHERE a.lane + 0 = -1 AND (a.aggregate_type, a.aggregate_id, a.seq) > (b.aggregate_type, b.aggregate_id, b.floor_seq)
							AND (a.aggregate_type, a.aggregate_id) <= (b.aggregate_type, b.aggregate_id)
						ORDER BY a.aggregate_type, a.aggregate_id, a.seq
						-- Alone, because the broker refuses a whole request that has one bad message.
						LIMIT CASE b.attempts WHEN 0 THEN max_events ELSE 1 END
					) a ON true
					LIMIT max_events -- read no more rows than that
				) p
			) p
			WHERE p.seq IS NULL OR p.bytes_before < max_bytes;
		END IF;
		RETURN QUERY
		SELECT lease.lane, lease.lease_token, p.seq, false,
			-- With few blocked aggregates this is a hash, which the LIMIT keeps small. A hash of the ids alone comes
			-- first: it costs less and decides most events. With many, it is one lookup per row: OFFSET 0 forbids a hash
			-- of them all.
			CASE WHEN few THEN
				p.aggregate_id IN (SELECT b.aggregate_id FROM video_catalog.outbox_blocked b WHERE b.lane = lease.lane LIMIT 1000)
				AND (p.aggregate_type, p.aggregate_id) IN (SELECT b.aggregate_type, b.aggregate_id FROM video_catalog.outbox_blocked b WHERE b.lane = lease.lane LIMIT 1000)
			ELSE
				EXISTS (SELECT 1 FROM video_catalog.outbox_blocked b WHERE b.aggregate_type = p.aggregate_type AND b.aggregate_id = p.aggregate_id OFFSET 0)
			END,
			0, p.id, p.aggregate_type, p.aggregate_id, p.version,
			p.event_type, p.schema_version, p.payload, p.occurred_at, coalesce(p.traceparent, '')
		FROM (
			SELECT *, sum(octet_length(p.payload)) OVER (ORDER BY p.seq ROWS UNBOUNDED PRECEDING) - octet_length(p.payload) AS bytes_before
			FROM video_catalog.outbox_pending p
			WHERE p.lane = lease.lane AND p.seq > lease.floor_seq
			ORDER BY p.seq LIMIT max_events
		) p
		WHERE p.bytes_before < max_bytes;
	END IF;
	IF NOT FOUND THEN
		RETURN QUERY SELECT lease.lane, lease.lease_token, 0::bigint, false, false, 0,
			'00000000-0000-0000-0000-000000000000'::uuid, '', '', 0::bigint, '', 0, ''::bytea, 'epoch'::timestamptz, '';
	END IF;
END $$;
-- +goose StatementEnd

-- Creates the partitions of the outbox from yesterday until days_ahead days from now, and drops those that are older than
-- keep. An event that is still pending is published all the same. Returns how many it created and dropped. While another
-- process runs it, it does nothing. If partitions are in use, or there are many, it does not drop all: the next call
-- continues. A partition that cannot be dropped stays, with a warning in the log of PostgreSQL. SECURITY DEFINER, because
-- the service itself may not create tables.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_maintain(days_ahead int, keep interval)
RETURNS TABLE (created int, dropped int) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET timezone = 'UTC' AS $$
DECLARE
	day date;
	old name;
	locked_at timestamptz;
BEGIN
	created := 0;
	dropped := 0;
	BEGIN
		-- One process at a time. If this one waits longer than lock_timeout, it leaves the work to the other.
		PERFORM pg_advisory_xact_lock(hashtext('video_catalog.outbox_maintain'));
	EXCEPTION WHEN lock_not_available THEN
		RETURN NEXT;
		RETURN;
	END;
	FOR day IN SELECT generate_series(current_date - 1, current_date + days_ahead, interval '1 day') LOOP
		IF to_regclass(format('video_catalog.outbox_p%s', to_char(day, 'YYYYMMDD'))) IS NULL THEN
			-- LIKE and ATTACH lock the parent only against other DDL. PARTITION OF would block every append.
			EXECUTE format('CREATE TABLE video_catalog.outbox_p%s (LIKE video_catalog.outbox INCLUDING ALL)', to_char(day, 'YYYYMMDD'));
			EXECUTE format('ALTER TABLE video_catalog.outbox ATTACH PARTITION video_catalog.outbox_p%s FOR VALUES FROM (%L) TO (%L)',
				to_char(day, 'YYYYMMDD'), video_catalog.uuid7_floor(day), video_catalog.uuid7_floor(day + 1));
			created := created + 1;
		END IF;
	END LOOP;
	FOR old IN
		SELECT p.relname
		FROM (
			SELECT c.relname, to_date(substr(c.relname, 9), 'YYYYMMDD') AS day
			FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
			WHERE i.inhparent = 'video_catalog.outbox'::regclass AND c.relname ~ '^outbox_p[0-9]{8}$' -- only these are ours
			OFFSET 0 -- else the plan may parse the names of other relations as dates
		) p
		WHERE p.day + 1 <= now() - keep
		ORDER BY p.day
	LOOP
		EXIT WHEN clock_timestamp() > locked_at + interval '200 ms'; -- the writers have waited long enough
		BEGIN
			EXECUTE format('DROP TABLE video_catalog.%I', old); -- locks the parent first, as every append does
			locked_at := coalesce(locked_at, clock_timestamp());
			dropped := dropped + 1;
		EXCEPTION
			WHEN lock_not_available THEN
				-- Another transaction reads it or is long. Drop it next time, so that the writers do not wait.
				EXIT;
			WHEN OTHERS THEN
				-- For example, a view or a foreign key depends on it, which DROP does not remove. The partition stays.
				-- The partitions created above must not be rolled back, or commands would soon fail.
				RAISE WARNING 'partition % cannot be dropped: %', old, SQLERRM;
		END;
	END LOOP;
	RETURN NEXT;
END $$;
-- +goose StatementEnd

SELECT * FROM video_catalog.outbox_maintain(7, interval '7 days');

GRANT USAGE ON SCHEMA video_catalog TO video_catalog_rw, support_ro;
GRANT SELECT, INSERT ON video_catalog.outbox TO video_catalog_rw;
GRANT SELECT, INSERT, UPDATE (lane), DELETE ON video_catalog.outbox_pending TO video_catalog_rw;
GRANT SELECT ON video_catalog.outbox_aside TO video_catalog_rw;
GRANT SELECT, INSERT, UPDATE, DELETE ON video_catalog.outbox_blocked TO video_catalog_rw;
GRANT SELECT, UPDATE ON video_catalog.outbox_lanes TO video_catalog_rw;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA video_catalog TO video_catalog_rw;

-- For support, column by column for tables with payloads. The content of an event or a broken message is for programs. A
-- later version of it may contain personal data that nobody has checked. So a new column is closed until it is granted.
GRANT SELECT ON video_catalog.outbox_blocked, video_catalog.outbox_lanes TO support_ro;
GRANT EXECUTE ON FUNCTION video_catalog.cause(text) TO support_ro;
GRANT SELECT (id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON video_catalog.outbox TO support_ro;
GRANT SELECT (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON video_catalog.outbox_pending TO support_ro;
GRANT SELECT (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, occurred_at, traceparent) ON video_catalog.outbox_aside TO support_ro;

-- +goose Down
DROP SCHEMA video_catalog CASCADE;
