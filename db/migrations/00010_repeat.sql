-- +goose Up
-- The state of aggregates can be published, as snapshots, for a new consumer. Such a pending event is
-- marked, and its message has the mark as an attribute. And an event says who or what led to it: the caller of its command,
-- or another event, its cause: see 00017_reactions.sql.
SET LOCAL lock_timeout = '2s';

ALTER TABLE video_catalog.outbox_pending ADD COLUMN repeat text NOT NULL DEFAULT '';
ALTER TABLE video_catalog.outbox_pending ADD CONSTRAINT outbox_pending_repeat CHECK (repeat IN ('', 'snapshot')) NOT VALID;

ALTER TABLE video_catalog.outbox ADD COLUMN caller text, ADD COLUMN causation_id uuid, ADD COLUMN correlation_id uuid;
ALTER TABLE video_catalog.outbox_pending ADD COLUMN causation_id uuid, ADD COLUMN correlation_id uuid;

COMMENT ON COLUMN video_catalog.outbox.caller IS 'Who called the command, by its token: a verified email, or sub and the subject. NULL if the call had none, and for an event that has a cause. It is never published.';
COMMENT ON COLUMN video_catalog.outbox.causation_id IS 'The event that caused this one, for example by a reaction to it. NULL for the event of a command.';
COMMENT ON COLUMN video_catalog.outbox.correlation_id IS 'The first event of the chain of causes. NULL for the event of a command: it is the first itself.';
COMMENT ON COLUMN video_catalog.outbox_pending.repeat IS 'Empty for an event that a command appended. snapshot: it is the state of its aggregate, which an operator published; outbox does not have it.';

GRANT SELECT (repeat, causation_id, correlation_id) ON video_catalog.outbox_pending, video_catalog.outbox_aside TO support_ro;
GRANT SELECT (caller, causation_id, correlation_id) ON video_catalog.outbox TO support_ro;

-- This function replaces the one of 00002_outbox.sql: it returns the mark and the cause, too.
-- contract: the new function below has the same name and arguments, and returns more columns
DROP FUNCTION video_catalog.outbox_claim(int, bigint, interval, smallint, bigint, bigint[]);

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
	event_type text, schema_version int, payload bytea, occurred_at timestamptz, traceparent text, repeat text,
	causation_id uuid, correlation_id uuid
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
			p.event_type, p.schema_version, p.payload, p.occurred_at, coalesce(p.traceparent, ''), p.repeat,
			coalesce(p.causation_id, '00000000-0000-0000-0000-000000000000'), coalesce(p.correlation_id, '00000000-0000-0000-0000-000000000000')
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
				coalesce(p.event_type, ''), coalesce(p.schema_version, 0), coalesce(p.payload, ''), coalesce(p.occurred_at, 'epoch'), coalesce(p.traceparent, ''), coalesce(p.repeat, ''),
				coalesce(p.causation_id, '00000000-0000-0000-0000-000000000000'), coalesce(p.correlation_id, '00000000-0000-0000-0000-000000000000')
			FROM (
				SELECT *, sum(octet_length(p.payload)) OVER (
					ORDER BY p.next_retry_at, p.aggregate_type, p.aggregate_id, p.seq ROWS UNBOUNDED PRECEDING
				) - octet_length(p.payload) AS bytes_before
				FROM (
					-- LEFT JOIN: an aggregate with nothing set aside has recovered, and is returned without an event.
					SELECT b.aggregate_type, b.aggregate_id, b.attempts, b.next_retry_at,
						a.seq, a.id, a.version, a.event_type, a.schema_version, a.payload, a.occurred_at, a.traceparent, a.repeat,
						a.causation_id, a.correlation_id
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
			p.event_type, p.schema_version, p.payload, p.occurred_at, coalesce(p.traceparent, ''), p.repeat,
			coalesce(p.causation_id, '00000000-0000-0000-0000-000000000000'), coalesce(p.correlation_id, '00000000-0000-0000-0000-000000000000')
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
			'00000000-0000-0000-0000-000000000000'::uuid, '', '', 0::bigint, '', 0, ''::bytea, 'epoch'::timestamptz, '', '',
			'00000000-0000-0000-0000-000000000000'::uuid, '00000000-0000-0000-0000-000000000000'::uuid;
	END IF;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION video_catalog.outbox_claim(int, bigint, interval, smallint, bigint, bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION video_catalog.outbox_claim(int, bigint, interval, smallint, bigint, bigint[]) TO video_catalog_rw;

-- +goose Down
DROP FUNCTION video_catalog.outbox_claim(int, bigint, interval, smallint, bigint, bigint[]);
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

REVOKE ALL ON FUNCTION video_catalog.outbox_claim(int, bigint, interval, smallint, bigint, bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION video_catalog.outbox_claim(int, bigint, interval, smallint, bigint, bigint[]) TO video_catalog_rw;

ALTER TABLE video_catalog.outbox_pending DROP COLUMN repeat, DROP COLUMN causation_id, DROP COLUMN correlation_id;
ALTER TABLE video_catalog.outbox DROP COLUMN caller, DROP COLUMN causation_id, DROP COLUMN correlation_id;
