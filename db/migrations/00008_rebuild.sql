-- +goose Up
-- A projection is rebuilt in a second table, its shadow, which then takes its place. This works for every projection, and
-- costs nothing while no rebuild runs. Each function is a transaction of its own, in READ COMMITTED. A crash between two leaves
-- the shadow, the triggers and their notes: the next rebuild_begin resumes, and rebuild_end removes them.
SET LOCAL lock_timeout = '2s';

CREATE TABLE video_catalog_read.inbox_generations (
	consumer text PRIMARY KEY,
	generation bigint NOT NULL
);

COMMENT ON TABLE video_catalog_read.inbox_generations IS 'How often server seek has made the inbox of a consumer empty; no row: never.';
COMMENT ON COLUMN video_catalog_read.inbox_generations.generation IS 'Rows of the inbox have the consumer CONSUMER#GENERATION. Rows of other generations do not count, and are deleted.';

CREATE TABLE video_catalog_read.rebuilds (
	projection text PRIMARY KEY,
	generation bigint NOT NULL DEFAULT 0,
	phase text NOT NULL DEFAULT 'dropped' CHECK (phase IN ('fill', 'check', 'repeat', 'done', 'dropped')),
	position text NOT NULL DEFAULT '',
	entries bigint NOT NULL DEFAULT 0,
	origin text NOT NULL DEFAULT '',
	token bigint NOT NULL DEFAULT 0,
	leased_until timestamptz NOT NULL DEFAULT '-infinity',
	started_at timestamptz NOT NULL DEFAULT now(),
	ended_at timestamptz
);

COMMENT ON TABLE video_catalog_read.rebuilds IS 'The last rebuild of each projection.';
COMMENT ON COLUMN video_catalog_read.rebuilds.projection IS 'The name of the table. While the phase is fill or check, there is a second one with the suffix _next: the shadow.';
COMMENT ON COLUMN video_catalog_read.rebuilds.generation IS 'Grows with every rebuild that starts from the beginning.';
COMMENT ON COLUMN video_catalog_read.rebuilds.phase IS 'fill: the owner is listed. check: live and shadow are compared. repeat: the shadow has become the live one, and some entries are read from the owner again. done and dropped: the end.';
COMMENT ON COLUMN video_catalog_read.rebuilds.position IS 'Where the owner''s list continues.';
COMMENT ON COLUMN video_catalog_read.rebuilds.entries IS 'How many entries the owner has listed.';
COMMENT ON COLUMN video_catalog_read.rebuilds.origin IS 'The databases in which it began. In others it cannot be resumed.';
COMMENT ON COLUMN video_catalog_read.rebuilds.token IS 'The fence: a random number of the process that runs the rebuild.';
COMMENT ON COLUMN video_catalog_read.rebuilds.leased_until IS 'Until then no other process takes the rebuild over. A day later it cannot be resumed.';

CREATE TABLE video_catalog_read.rebuild_keys (
	projection text NOT NULL,
	again bool NOT NULL DEFAULT false,
	id bigint GENERATED ALWAYS AS IDENTITY,
	key text NOT NULL,
	PRIMARY KEY (projection, again, id)
);

COMMENT ON TABLE video_catalog_read.rebuild_keys IS 'The keys that a rebuild must read again. Two triggers, which exist during a rebuild only, add a row for every entry that an event changes. Rows are only added and deleted: to update one would hide a change that commits at the same time.';
COMMENT ON COLUMN video_catalog_read.rebuild_keys.again IS 'Whether to read the entry from the owner after the swap: the rebuild has lowered the version, so an event may have been too old for the live entry; or the owner has not listed the entry.';

-- +goose StatementBegin
-- Finds a projection: an ordinary table of this schema and this owner with that name, with one column as key, a version and an
-- event_id. The functions below touch no other table. Returns what their statements need. shadow is the name of the second
-- table. same compares a new row n with a live one l. It leaves out the columns that say how a row came to be, and
-- tsvectors, which the build computes from the rest. fresh has those columns of a row that no event has written. Its change_xid
-- is in the future: watches do not see the row until MoveFutureProjections gives it a present one.
CREATE FUNCTION video_catalog_read.rebuild_table(projection text, OUT live regclass, OUT shadow text, OUT key text, OUT key_type text, OUT names text, OUT same text, OUT fresh jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	SELECT c.oid, format('video_catalog_read.%I', left(projection, 58) || '_next'),
		quote_ident(max(a.attname::text) FILTER (WHERE a.attnum = i.indkey[0])),
		max(format_type(a.atttypid, a.atttypmod)) FILTER (WHERE a.attnum = i.indkey[0]),
		string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum),
		string_agg(format('n.%1$I IS NOT DISTINCT FROM l.%1$I', a.attname), ' AND ') FILTER (WHERE NOT origin AND a.atttypid <> 'tsvector'::regtype),
		jsonb_object_agg(a.attname, CASE a.attname
			WHEN 'change_xid' THEN '18446744073709551615'
			WHEN 'updated_at' THEN clock_timestamp()::text
			WHEN 'event_id' THEN CASE WHEN a.attnotnull THEN '00000000-0000-0000-0000-000000000000' END
		END) FILTER (WHERE origin)
	INTO live, shadow, key, key_type, names, same, fresh
	FROM pg_class c
	JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	CROSS JOIN LATERAL (SELECT a.attname IN ('event_id', 'change_xid', 'updated_at') AS origin) o
	WHERE c.relnamespace = 'video_catalog_read'::regnamespace AND c.relname = projection AND right(projection, 11) = '_projection'
		AND c.relkind = 'r' AND pg_get_userbyid(c.relowner) = current_user
	GROUP BY c.oid
	HAVING count(*) FILTER (WHERE (a.attname, a.atttypid) IN (('version', 'bigint'::regtype), ('event_id', 'uuid'::regtype))) = 2;
	IF live IS NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = format('there is no projection %L: want a table of this schema with a key of one column, and the columns version and event_id', projection);
	END IF;
END $$;

-- Returns the indexes of a table, each without its name.
CREATE FUNCTION video_catalog_read.rebuild_indexes(t regclass) RETURNS TABLE (index regclass, definition text) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
	SELECT i.indexrelid, format('index %s%s', substr(d.text, strpos(d.text, ' USING ')),
		jsonb_build_array(i.indisunique, i.indisprimary, i.indisvalid, i.indisclustered, i.indisreplident, c.contype, c.condeferrable, obj_description(i.indexrelid)))
	FROM pg_index i
	CROSS JOIN LATERAL (SELECT pg_get_indexdef(i.indexrelid) AS text) d
	LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.conrelid = t
	WHERE i.indrelid = t
$$;

-- Returns a line for everything that a table is or has, and that depends on it. If two tables have the same lines, one can
-- replace the other. What CREATE TABLE LIKE cannot copy, such as a foreign key, a view or a trigger, is a difference.
CREATE FUNCTION video_catalog_read.rebuild_shape(t regclass) RETURNS text[] LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT array_agg(line ORDER BY line COLLATE "C") FROM (
		SELECT format('settings, grants and comment %s', jsonb_build_array(c.relreplident, c.relpersistence, c.reltablespace, c.relam, c.relrowsecurity, c.relforcerowsecurity,
			c.reloptions, toast.reloptions, obj_description(c.oid), (SELECT array_agg(a.acl::text ORDER BY a.acl::text) FROM unnest(coalesce(c.relacl, acldefault('r', c.relowner))) a (acl)))) AS line
		FROM pg_class c LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid WHERE c.oid = t
		UNION ALL
		SELECT format('column %I %s', a.attname, jsonb_build_array(format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, a.attcollation,
			a.attstorage, a.attcompression, a.attstattarget, a.attoptions, col_description(t, a.attnum), (SELECT array_agg(x.acl::text ORDER BY x.acl::text) FROM unnest(a.attacl) x (acl))))
		FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = t AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL
		SELECT i.definition FROM video_catalog_read.rebuild_indexes(t) i
		UNION ALL
		SELECT format('constraint %I %s', k.conname, pg_get_constraintdef(k.oid)) FROM pg_constraint k WHERE k.conrelid = t AND k.contype = 'c'
		UNION ALL
		SELECT format('publication %I of %s', p.pubname, t) FROM pg_publication_tables p JOIN pg_class c ON c.oid = t
		WHERE p.schemaname = 'video_catalog_read' AND p.tablename = c.relname
		UNION ALL -- all else that depends on it; the line has its name
		SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
		FROM pg_depend d
		LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
		LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
		LEFT JOIN pg_trigger g ON d.classid = 'pg_trigger'::regclass AND g.oid = d.objid
		WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = t AND d.classid NOT IN ('pg_type'::regclass, 'pg_attrdef'::regclass)
			AND coalesce(c.relkind NOT IN ('i', 't') AND c.oid <> t, true) AND coalesce(k.contype NOT IN ('p', 'u', 'x', 'c', 'n'), true)
			AND coalesce(g.tgname NOT IN ('rebuild_inserted', 'rebuild_updated'), true)
	) lines
$$;

-- Notes the keys of entries that an event has just changed, in the transaction of the event. So who sees a note also sees the
-- change. A rebuild that nobody has run for a day gets no more notes, so that they do not grow for ever.
CREATE FUNCTION video_catalog_read.rebuild_note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	changed text := format('SELECT n.%1$s FROM new_rows n WHERE n.version > 0', TG_ARGV[0]);
BEGIN
	IF EXISTS (SELECT FROM video_catalog_read.rebuilds r WHERE r.projection = TG_TABLE_NAME AND r.leased_until < now() - interval '1 day') THEN
		RETURN NULL;
	END IF;
	IF TG_OP = 'UPDATE' THEN
		changed := format('SELECT n.%1$s FROM new_rows n JOIN old_rows o ON o.%1$s = n.%1$s WHERE (n.version, n.event_id) IS DISTINCT FROM (o.version, o.event_id)', TG_ARGV[0]);
	END IF;
	EXECUTE format('INSERT INTO video_catalog_read.rebuild_keys (projection, key) SELECT %L, c.* FROM (%s) c', TG_TABLE_NAME, changed);
	RETURN NULL;
END $$;

-- Renews the lease of a rebuild, and keeps its row locked until the end of the transaction. Fails if another process has taken
-- the rebuild over, or if its process has slept for so long that notes may be missing: an hour later the triggers note no more.
-- Every function below that has a token calls it first.
CREATE FUNCTION video_catalog_read.rebuild_hold(projection text, token bigint) RETURNS video_catalog_read.rebuilds LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	held video_catalog_read.rebuilds;
BEGIN
	UPDATE video_catalog_read.rebuilds r SET leased_until = clock_timestamp() + interval '2 minutes'
	WHERE r.projection = rebuild_hold.projection AND r.token = rebuild_hold.token AND r.phase NOT IN ('done', 'dropped')
		AND r.leased_until > clock_timestamp() - interval '23 hours'
	RETURNING * INTO held;
	IF NOT FOUND THEN
		RAISE object_in_use USING MESSAGE = format('the rebuild of %s was taken over by another process, or has stood still for a day: run it again', projection);
	END IF;
	RETURN held;
END $$;

-- Removes the shadow, the triggers and the keys of a rebuild.
CREATE FUNCTION video_catalog_read.rebuild_clear(projection text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
	t record := video_catalog_read.rebuild_table(projection);
BEGIN
	IF EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = t.live AND g.tgname = 'rebuild_inserted') THEN -- without, no lock is needed
		EXECUTE format('DROP TRIGGER rebuild_inserted ON %s', t.live);
		EXECUTE format('DROP TRIGGER rebuild_updated ON %s', t.live);
	END IF;
	EXECUTE format('DROP TABLE IF EXISTS %s', t.shadow);
	DELETE FROM video_catalog_read.rebuild_keys k WHERE k.projection = rebuild_clear.projection;
END $$;

-- Creates the shadow of a projection, empty, with the same settings, grants and comments, and the triggers. They wait for
-- running writers, so they come last: a writer either ends before the owner is listed, or notes its keys.
CREATE FUNCTION video_catalog_read.rebuild_create(projection text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t record := video_catalog_read.rebuild_table(projection);
	command text;
	lost text;
BEGIN
	EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)%s', t.shadow, t.live, (
		SELECT ' WITH (' || string_agg(o.option, ', ') || ')'
		FROM pg_class c LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid
		CROSS JOIN LATERAL (SELECT unnest(c.reloptions) UNION ALL SELECT 'toast.' || unnest(toast.reloptions)) o (option)
		WHERE c.oid = t.live));
	EXECUTE format('COMMENT ON TABLE %s IS %L', t.shadow, obj_description(t.live, 'pg_class'));
	FOR command IN
		SELECT format('REVOKE ALL ON %s FROM %s', t.shadow, coalesce(nullif(a.grantee::regrole::text, '-'), 'PUBLIC')) -- of default privileges
		FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = t.shadow::regclass AND a.grantee <> c.relowner
		UNION ALL
		SELECT format('GRANT %s%s ON %s TO %s%s', a.privilege_type, ' (' || quote_ident(a.attname) || ')', t.shadow,
			coalesce(nullif(a.grantee::regrole::text, '-'), 'PUBLIC'), CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
		FROM (
			SELECT NULL::name AS attname, g.* FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = t.live AND g.grantee <> c.relowner
			UNION ALL
			SELECT a.attname, g.* FROM pg_attribute a, aclexplode(a.attacl) g WHERE a.attrelid = t.live AND NOT a.attisdropped
		) a
	LOOP
		EXECUTE command;
	END LOOP;
	SELECT string_agg(line, '; ') INTO lost FROM unnest(video_catalog_read.rebuild_shape(t.live)) line
	WHERE line <> ALL (video_catalog_read.rebuild_shape(t.shadow::regclass));
	IF lost IS NOT NULL THEN
		RAISE feature_not_supported USING MESSAGE = format('a rebuild cannot replace %s, because a copy would lack: %s', projection, lost);
	END IF;
	EXECUTE format('CREATE TRIGGER rebuild_inserted AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows
		FOR EACH STATEMENT EXECUTE FUNCTION video_catalog_read.rebuild_note(%L)', t.live, t.key);
	EXECUTE format('CREATE TRIGGER rebuild_updated AFTER UPDATE ON %s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
		FOR EACH STATEMENT EXECUTE FUNCTION video_catalog_read.rebuild_note(%L)', t.live, t.key);
END $$;

-- Starts a rebuild, or resumes one that was interrupted. Fails while another process holds the lease. It starts over with
-- restart, if the databases of origin are others, if the table has changed, or after 23 hours, as in rebuild_hold. estimate is about
-- how many rows the live table has.
CREATE FUNCTION video_catalog_read.rebuild_begin(projection text, origin text, token bigint, restart bool)
RETURNS TABLE (resumed bool, generation bigint, phase text, "position" text, entries bigint, estimate bigint) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
	t record := video_catalog_read.rebuild_table(projection);
	r video_catalog_read.rebuilds;
BEGIN
	INSERT INTO video_catalog_read.rebuilds AS b (projection) VALUES (rebuild_begin.projection)
	ON CONFLICT (projection) DO UPDATE SET projection = b.projection RETURNING * INTO r; -- locks it
	IF r.phase NOT IN ('done', 'dropped') AND r.leased_until > clock_timestamp() THEN
		RAISE object_in_use USING MESSAGE = format('a rebuild of %s has been running since %s: if its process has died, run it again in %s s, and it will be resumed',
			r.projection, r.started_at, ceil(extract(epoch FROM r.leased_until - clock_timestamp())));
	END IF;
	resumed := NOT restart AND r.origin = rebuild_begin.origin AND r.leased_until > clock_timestamp() - interval '23 hours' AND (r.phase = 'repeat'
		OR r.phase IN ('fill', 'check') AND video_catalog_read.rebuild_shape(t.live) IS NOT DISTINCT FROM video_catalog_read.rebuild_shape(to_regclass(t.shadow)));
	IF NOT resumed THEN
		PERFORM video_catalog_read.rebuild_clear(rebuild_begin.projection);
		PERFORM video_catalog_read.rebuild_create(rebuild_begin.projection);
		UPDATE video_catalog_read.rebuilds b SET generation = b.generation + 1, phase = 'fill', position = '', entries = 0, started_at = clock_timestamp(), ended_at = NULL
		WHERE b.projection = rebuild_begin.projection;
	END IF;
	RETURN QUERY
	UPDATE video_catalog_read.rebuilds b SET origin = rebuild_begin.origin, token = rebuild_begin.token, leased_until = clock_timestamp() + interval '2 minutes'
	FROM pg_class c
	WHERE b.projection = rebuild_begin.projection AND c.oid = t.live
	RETURNING resumed, b.generation, b.phase, b.position, b.entries, greatest(c.reltuples, 0)::bigint;
END $$;

-- The three functions that follow read both tables by their keys. The settings leave the planner no other way: the shadow has
-- no statistics at first, and a page of a large table must not read all of it.

-- Writes entries of the owner, an array of objects with the columns of the projection: into the shadow, or after the swap into
-- the live table. A row with the content of the live one keeps its event_id, change_xid and updated_at, so no watch gets it
-- again. With a new position the entries are a page of the owner's list, and with an empty one the last: then later versions
-- stay. Without one they are states of the owner, which are written over any version of the shadow, and over the same of the live
-- table: a projector may have written a later one since. again has the keys to read from the owner after the swap.
CREATE FUNCTION video_catalog_read.rebuild_write(projection text, token bigint, entries jsonb, new_position text, again text[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	r video_catalog_read.rebuilds := video_catalog_read.rebuild_hold(projection, token);
	t record := video_catalog_read.rebuild_table(projection);
BEGIN
	EXECUTE format('
		INSERT INTO %1$s AS s (%3$s)
		SELECT (w.whole).* FROM (
			SELECT CASE WHEN %5$s THEN jsonb_populate_record(l, e.entry) ELSE n END AS whole
			FROM jsonb_array_elements($1) e (entry)
			CROSS JOIN LATERAL jsonb_populate_record(NULL::%2$s, $2 || e.entry) n
			LEFT JOIN %2$s l ON l.%4$s = n.%4$s
			ORDER BY n.%4$s
			OFFSET 0
		) w
		ON CONFLICT (%4$s) DO UPDATE SET (%3$s) = ROW(excluded.*) WHERE excluded.version > s.version OR %6$s',
		CASE r.phase WHEN 'repeat' THEN t.live::text ELSE t.shadow END, t.live, t.names, t.key, t.same,
		CASE WHEN new_position IS NOT NULL THEN 'false' WHEN r.phase = 'repeat' THEN 'excluded.version = s.version' ELSE 'true' END)
	USING entries, t.fresh;
	INSERT INTO video_catalog_read.rebuild_keys (projection, again, key) SELECT rebuild_write.projection, true, unnest(rebuild_write.again);
	IF new_position IS NOT NULL THEN
		UPDATE video_catalog_read.rebuilds b SET position = new_position, entries = b.entries + jsonb_array_length(rebuild_write.entries),
			phase = CASE new_position WHEN '' THEN 'check' ELSE b.phase END
		WHERE b.projection = rebuild_write.projection;
	END IF;
	IF new_position = '' THEN -- statistics, before the first reader
		EXECUTE format('ANALYZE %s', t.shadow);
	END IF;
END $$;

-- Copies entries that events have changed from the live table to the shadow, at most max_keys, and returns how many notes it
-- has read. A row that came from the live table follows it. One of the owner's list stays until the live one is newer, or has
-- the same content: then its event has come. Entries that the owner has not listed are read from it after the swap.
--
-- The statement has one snapshot: it deletes only notes whose changes it copies. A note that commits later stays, whatever its id.
CREATE FUNCTION video_catalog_read.rebuild_catch_up(projection text, token bigint, max_keys int) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	t record := video_catalog_read.rebuild_table(projection);
	keys bigint;
BEGIN
	PERFORM video_catalog_read.rebuild_hold(projection, token);
	EXECUTE format('
		WITH gone AS (
			DELETE FROM video_catalog_read.rebuild_keys k
			WHERE k.projection = $1 AND NOT k.again
				AND k.id IN (SELECT o.id FROM video_catalog_read.rebuild_keys o WHERE o.projection = $1 AND NOT o.again ORDER BY o.id LIMIT $2)
			RETURNING k.key
		), changed AS MATERIALIZED (
			SELECT l.* FROM (SELECT DISTINCT gone.key::%5$s AS key FROM gone) d JOIN %2$s l ON l.%4$s = d.key
		), copied AS (
			UPDATE %1$s n SET (%3$s) = ROW(l.*) FROM changed l
			WHERE n.%4$s = l.%4$s AND (coalesce(n.event_id, $3) <> $3 OR l.version > n.version OR %6$s)
		), added AS (
			INSERT INTO %1$s (%3$s) SELECT l.* FROM changed l WHERE NOT EXISTS (SELECT FROM %1$s n WHERE n.%4$s = l.%4$s) RETURNING %4$s AS key
		), noted AS (
			INSERT INTO video_catalog_read.rebuild_keys (projection, again, key) SELECT $1, true, a.key::text FROM added a
		)
		SELECT count(*) FROM gone', t.shadow, t.live, t.names, t.key, t.key_type, t.same)
	USING projection, max_keys, '00000000-0000-0000-0000-000000000000'::uuid INTO keys;
	RETURN keys;
END $$;

-- Compares the live table with the shadow, at most max_keys entries after a key, in the order of the keys; NULL: from the
-- beginning. doubtful has the keys of entries that the shadow lacks, or has with an older version: the owner's state decides. An event
-- on its way can be the reason, too.
CREATE FUNCTION video_catalog_read.rebuild_compare(projection text, token bigint, after_key text, max_keys int,
	OUT last_key text, OUT keys bigint, OUT missing bigint, OUT behind bigint, OUT different bigint, OUT doubtful text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	t record := video_catalog_read.rebuild_table(projection);
BEGIN
	PERFORM video_catalog_read.rebuild_hold(projection, token);
	EXECUTE format('
		WITH page AS MATERIALIZED (
			(SELECT l.%3$s AS key FROM %2$s l WHERE %4$s ORDER BY 1 LIMIT $2)
			UNION
			(SELECT l.%3$s FROM %1$s l WHERE %4$s ORDER BY 1 LIMIT $2)
			ORDER BY key LIMIT $2
		)
		SELECT (SELECT p.key::text FROM page p ORDER BY p.key DESC LIMIT 1), count(*), count(*) FILTER (WHERE l.%3$s IS NULL), count(*) FILTER (WHERE l.version < n.version),
			count(*) FILTER (WHERE l.version = n.version AND NOT (%5$s)),
			coalesce(array_agg(p.key::text) FILTER (WHERE n.%3$s IS NULL OR l.version > n.version), ''{}'')
		FROM page p LEFT JOIN %2$s l ON l.%3$s = p.key LEFT JOIN %1$s n ON n.%3$s = p.key',
		t.shadow, t.live, t.key, CASE WHEN after_key IS NULL THEN 'true' ELSE format('l.%s > $1::%s', t.key, t.key_type) END, t.same)
	USING after_key, max_keys INTO last_key, keys, missing, behind, different, doubtful;
END $$;

-- Makes the shadow the live table, with the names of the live one, after the last changes. The lock comes first: then every
-- writer has committed, and the statements that follow see all notes. Returns false, and does not swap, if there are max_keys notes
-- or more. Readers and writers wait for at most lock_timeout: call it again if it fails with that.
CREATE FUNCTION video_catalog_read.rebuild_swap(projection text, token bigint, max_keys int) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
	r video_catalog_read.rebuilds := video_catalog_read.rebuild_hold(projection, token);
	t record := video_catalog_read.rebuild_table(projection);
	renames text[];
	command text;
BEGIN
	IF r.phase <> 'check' THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = format('the rebuild of %s is in the phase %s, want check', projection, r.phase);
	END IF;
	EXECUTE format('LOCK TABLE %s', t.live);
	IF video_catalog_read.rebuild_shape(t.live) <> video_catalog_read.rebuild_shape(t.shadow::regclass) THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = format('%s was altered after its rebuild had started: run the rebuild again, and it will start over', projection);
	END IF;
	IF video_catalog_read.rebuild_catch_up(projection, token, max_keys) >= max_keys THEN
		RETURN false;
	END IF;
	SELECT array_agg(format('ALTER INDEX %s RENAME TO %I', n.index, l.name)) INTO renames
	FROM (SELECT c.relname AS name, i.definition, row_number() OVER (PARTITION BY i.definition ORDER BY c.relname) AS nth
		FROM video_catalog_read.rebuild_indexes(t.live) i JOIN pg_class c ON c.oid = i.index) l
	JOIN (SELECT i.*, row_number() OVER (PARTITION BY i.definition ORDER BY i.index) AS nth FROM video_catalog_read.rebuild_indexes(t.shadow::regclass) i) n USING (definition, nth);
	FOREACH command IN ARRAY ARRAY[format('DROP TABLE %s', t.live), format('ALTER TABLE %s RENAME TO %I', t.shadow, projection)] || renames LOOP
		EXECUTE command;
	END LOOP;
	UPDATE video_catalog_read.rebuilds b SET phase = 'repeat' WHERE b.projection = rebuild_swap.projection;
	RETURN true;
END $$;

-- Ends a rebuild. Before the swap it drops the shadow, and nothing has changed.
CREATE FUNCTION video_catalog_read.rebuild_end(projection text, token bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
	PERFORM video_catalog_read.rebuild_hold(projection, token);
	PERFORM video_catalog_read.rebuild_clear(projection);
	UPDATE video_catalog_read.rebuilds b SET phase = CASE b.phase WHEN 'repeat' THEN 'done' ELSE 'dropped' END, ended_at = clock_timestamp(), leased_until = clock_timestamp()
	WHERE b.projection = rebuild_end.projection;
END $$;
-- +goose StatementEnd

-- Nobody else has access. The functions without a token have no grant: those with one call them.
REVOKE ALL ON video_catalog_read.inbox_generations, video_catalog_read.rebuilds, video_catalog_read.rebuild_keys FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA video_catalog_read FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE ON video_catalog_read.inbox_generations TO video_catalog_read_rw;
GRANT SELECT, UPDATE (leased_until) ON video_catalog_read.rebuilds TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.rebuild_keys TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.inbox_generations, video_catalog_read.rebuilds, video_catalog_read.rebuild_keys TO support_ro;
GRANT EXECUTE ON FUNCTION
	video_catalog_read.rebuild_begin(text, text, bigint, bool), video_catalog_read.rebuild_hold(text, bigint), video_catalog_read.rebuild_write(text, bigint, jsonb, text, text[]),
	video_catalog_read.rebuild_catch_up(text, bigint, int), video_catalog_read.rebuild_compare(text, bigint, text, int),
	video_catalog_read.rebuild_swap(text, bigint, int), video_catalog_read.rebuild_end(text, bigint)
TO video_catalog_read_rw;

-- +goose Down
-- A rebuild that was interrupted leaves triggers and a shadow: server rebuild --dry-run removes them first.
DROP FUNCTION video_catalog_read.rebuild_end, video_catalog_read.rebuild_swap, video_catalog_read.rebuild_compare, video_catalog_read.rebuild_catch_up,
	video_catalog_read.rebuild_write, video_catalog_read.rebuild_begin, video_catalog_read.rebuild_create, video_catalog_read.rebuild_clear,
	video_catalog_read.rebuild_hold, video_catalog_read.rebuild_note, video_catalog_read.rebuild_shape, video_catalog_read.rebuild_indexes, video_catalog_read.rebuild_table;
DROP TABLE video_catalog_read.rebuild_keys, video_catalog_read.rebuilds, video_catalog_read.inbox_generations;
