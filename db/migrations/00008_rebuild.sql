-- +goose Up
-- A projection is rebuilt in a second table, its shadow, which then takes its place. This works for every projection, and
-- costs nothing while no rebuild runs.
SET LOCAL lock_timeout = '2s';

CREATE TABLE video_catalog_read.inbox_generations (
	consumer text PRIMARY KEY,
	generation bigint NOT NULL
);

COMMENT ON TABLE video_catalog_read.inbox_generations IS 'How often server seek has made the inbox of a consumer empty; no row: never.';
COMMENT ON COLUMN video_catalog_read.inbox_generations.generation IS 'Rows of the inbox have the consumer CONSUMER#GENERATION. Rows of other generations do not count, and are deleted.';

CREATE TABLE video_catalog_read.rebuilds (
	projection text PRIMARY KEY,
	generation bigint NOT NULL,
	phase text NOT NULL CHECK (phase IN ('fill', 'check', 'repeat', 'done', 'dropped')),
	position text NOT NULL,
	entries bigint NOT NULL,
	origin text NOT NULL,
	token bigint NOT NULL,
	leased_until timestamptz NOT NULL,
	leased_for interval NOT NULL,
	started_at timestamptz NOT NULL,
	ended_at timestamptz
);

COMMENT ON TABLE video_catalog_read.rebuilds IS 'The last rebuild of each projection.';
COMMENT ON COLUMN video_catalog_read.rebuilds.projection IS 'The name of the table. While the phase is fill or check, there is a second one with the suffix _next: the shadow.';
COMMENT ON COLUMN video_catalog_read.rebuilds.generation IS 'Grows with every rebuild that starts from the beginning.';
COMMENT ON COLUMN video_catalog_read.rebuilds.phase IS 'fill: the owner is listed. check: live and shadow are compared. repeat: the shadow has become the live one, and the owner is asked once more. done and dropped: the end.';
COMMENT ON COLUMN video_catalog_read.rebuilds.position IS 'Where the owner''s list continues.';
COMMENT ON COLUMN video_catalog_read.rebuilds.entries IS 'How many entries the owner has listed.';
COMMENT ON COLUMN video_catalog_read.rebuilds.origin IS 'The databases in which it began. In others it cannot be resumed.';
COMMENT ON COLUMN video_catalog_read.rebuilds.token IS 'The fence: a random number of the process that runs the rebuild.';
COMMENT ON COLUMN video_catalog_read.rebuilds.leased_until IS 'Until then no other process takes the rebuild over. A day later it cannot be resumed.';

CREATE TABLE video_catalog_read.rebuild_keys (
	projection text NOT NULL,
	lowered bool NOT NULL DEFAULT false,
	id bigint GENERATED ALWAYS AS IDENTITY,
	key text NOT NULL,
	PRIMARY KEY (projection, lowered, id)
);

COMMENT ON TABLE video_catalog_read.rebuild_keys IS 'The keys that a rebuild must look at again. Two triggers, which exist during a rebuild only, add a row for every entry that an event changes.';
COMMENT ON COLUMN video_catalog_read.rebuild_keys.lowered IS 'Whether the rebuild has lowered the version. Then an event may have been too old for the live entry, and the owner is asked again after the swap.';

-- Returns the table of a projection: an ordinary table of this schema and this owner with that name, with one column as key,
-- a version and an event_id. The functions below use it, so they touch no other table.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_table(projection text) RETURNS regclass LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	found regclass;
BEGIN
	SELECT c.oid INTO found
	FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1
	WHERE c.relnamespace = 'video_catalog_read'::regnamespace AND c.relname = projection AND right(projection, 11) = '_projection'
		AND c.relkind = 'r' AND c.relowner = (SELECT u.oid FROM pg_roles u WHERE u.rolname = current_user)
		AND 2 = (
			SELECT count(*) FROM pg_attribute a
			WHERE a.attrelid = c.oid AND (a.attname, a.atttypid) IN (('version', 'bigint'::regtype), ('event_id', 'uuid'::regtype))
		);
	IF found IS NULL THEN
		RAISE invalid_parameter_value USING MESSAGE = format('there is no projection %L: want a table of this schema with a key of one column, and the columns version and event_id', projection);
	END IF;
	RETURN found;
END $$;
-- +goose StatementEnd

-- Returns the name of the shadow of a projection.
CREATE FUNCTION video_catalog_read.rebuild_shadow(projection text) RETURNS text LANGUAGE sql IMMUTABLE STRICT
RETURN format('video_catalog_read.%I', left(projection, 58) || '_next');

-- Returns the parts of the statements that work on a projection. n is a new row, l the live one. The columns event_id,
-- change_xid and updated_at say how a row came to be, and are not compared. Nor is a tsvector, which the build computes
-- from the rest.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_columns(projection regclass,
	OUT key text, OUT key_type text, OUT names text, OUT sets text, OUT fresh text, OUT moved text, OUT adopted text, OUT same text
) LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT quote_ident(max(a.attname::text) FILTER (WHERE a.attnum = i.indkey[0])),
		max(format_type(a.atttypid, a.atttypmod)) FILTER (WHERE a.attnum = i.indkey[0]),
		string_agg(format('%I', a.attname), ', ' ORDER BY a.attnum),
		string_agg(format('%1$I = excluded.%1$I', a.attname), ', '),
		-- A change_xid of the future: watches do not see the row until MoveFutureProjections gives it a present one.
		string_agg(CASE WHEN kept THEN format('CASE WHEN x.same THEN l.%I ELSE %s END', a.attname, CASE a.attname
			WHEN 'event_id' THEN CASE WHEN a.attnotnull THEN quote_literal('00000000-0000-0000-0000-000000000000') || '::uuid' ELSE 'NULL' END
			WHEN 'change_xid' THEN quote_literal('18446744073709551615') || '::xid8'
			WHEN 'updated_at' THEN 'clock_timestamp()' END) ELSE format('n.%I', a.attname) END, ', ' ORDER BY a.attnum),
		string_agg(format('%1$I = l.%1$I', a.attname), ', '),
		string_agg(format('%1$I = l.%1$I', a.attname), ', ') FILTER (WHERE kept),
		string_agg(format('n.%1$I IS NOT DISTINCT FROM l.%1$I', a.attname), ' AND ') FILTER (WHERE NOT kept AND a.atttypid <> 'tsvector'::regtype)
	FROM pg_attribute a
	JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
	CROSS JOIN LATERAL (SELECT a.attname IN ('event_id', 'change_xid', 'updated_at') AS kept) k
	WHERE a.attrelid = projection AND a.attnum > 0 AND NOT a.attisdropped
$$;
-- +goose StatementEnd

-- Returns the indexes of a table, each without its name.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_indexes(t regclass) RETURNS TABLE (index regclass, definition text) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
	SELECT i.indexrelid, format('index %s%s', substr(d.text, strpos(d.text, ' USING ')),
		jsonb_build_array(i.indisunique, i.indisprimary, i.indisvalid, i.indisclustered, i.indisreplident, c.contype, c.condeferrable, obj_description(i.indexrelid)))
	FROM pg_index i
	CROSS JOIN LATERAL (SELECT pg_get_indexdef(i.indexrelid) AS text) d
	LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.conrelid = t
	WHERE i.indrelid = t
$$;
-- +goose StatementEnd

-- Returns a line for everything that a table is or has, and that depends on it. If two tables have the same lines, one can
-- replace the other. What CREATE TABLE LIKE cannot copy, such as a foreign key, a view or a trigger, is a difference.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_shape(t regclass) RETURNS text[] LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT array_agg(line ORDER BY line COLLATE "C") FROM (
		SELECT format('settings, grants and comment %s', jsonb_build_array(c.relreplident, c.relpersistence, c.reltablespace, c.relam, c.relrowsecurity, c.relforcerowsecurity,
			c.reloptions, toast.reloptions, obj_description(c.oid), (SELECT array_agg(a.acl::text ORDER BY a.acl::text) FROM unnest(coalesce(c.relacl, acldefault('r', c.relowner))) a (acl)))) AS line
		FROM pg_class c LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid WHERE c.oid = t
		UNION ALL
		SELECT format('column %I %s', a.attname, jsonb_build_array(format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, a.attcollation,
			a.attstorage, a.attcompression, a.attstattarget, a.attoptions, col_description(t, a.attnum), pg_get_serial_sequence(t::text, a.attname), (SELECT array_agg(x.acl::text ORDER BY x.acl::text) FROM unnest(a.attacl) x (acl))))
		FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = t AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL
		SELECT i.definition FROM video_catalog_read.rebuild_indexes(t) i
		UNION ALL
		SELECT format('constraint %I %s', c.conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c
		WHERE t IN (c.conrelid, c.confrelid) AND c.contype NOT IN ('p', 'u', 'x', 'n')
		UNION ALL
		SELECT format('trigger %I', g.tgname) FROM pg_trigger g WHERE g.tgrelid = t AND NOT g.tgisinternal AND g.tgname NOT IN ('rebuild_inserted', 'rebuild_updated')
		UNION ALL
		SELECT format('policy %I', p.polname) FROM pg_policy p WHERE p.polrelid = t
		UNION ALL
		SELECT format('statistics %I', s.stxname) FROM pg_statistic_ext s WHERE s.stxrelid = t
		UNION ALL
		SELECT format('inheritance of %s by %s', i.inhparent::regclass, i.inhrelid::regclass) FROM pg_inherits i WHERE t IN (i.inhparent, i.inhrelid)
		UNION ALL
		SELECT format('publication %I of %s', p.pubname, t) FROM pg_publication_tables p, pg_class c
		WHERE c.oid = t AND p.schemaname = 'video_catalog_read' AND p.tablename = c.relname
		UNION ALL
		SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend d
		WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = t AND d.classid IN ('pg_rewrite'::regclass, 'pg_proc'::regclass)
	) lines
$$;
-- +goose StatementEnd

-- Adds the keys of entries that an event has just changed. A rebuild that nobody has run for a day gets no more.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	key text := TG_ARGV[0];
BEGIN
	IF EXISTS (SELECT FROM video_catalog_read.rebuilds r WHERE r.projection = TG_TABLE_NAME AND r.leased_until < now() - interval '1 day') THEN
		RETURN NULL;
	END IF;
	IF TG_OP = 'INSERT' THEN
		EXECUTE format('INSERT INTO video_catalog_read.rebuild_keys (projection, key) SELECT %L, n.%s FROM new_rows n WHERE n.version > 0', TG_TABLE_NAME, key);
	ELSE
		EXECUTE format('INSERT INTO video_catalog_read.rebuild_keys (projection, key) SELECT %L, n.%s FROM new_rows n JOIN old_rows o ON o.%2$s = n.%2$s
			WHERE (n.version, n.event_id) IS DISTINCT FROM (o.version, o.event_id)', TG_TABLE_NAME, key);
	END IF;
	RETURN NULL;
END $$;
-- +goose StatementEnd

-- Renews the lease of a rebuild, and keeps its row locked until the end of the transaction. Fails if another process has taken
-- the rebuild over. Every function below that has a token calls it first.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_hold(projection text, token bigint) RETURNS video_catalog_read.rebuilds LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	held video_catalog_read.rebuilds;
BEGIN
	UPDATE video_catalog_read.rebuilds r SET leased_until = clock_timestamp() + r.leased_for
	WHERE r.projection = rebuild_hold.projection AND r.token = rebuild_hold.token AND r.phase NOT IN ('done', 'dropped')
	RETURNING * INTO held;
	IF NOT FOUND THEN
		RAISE object_in_use USING MESSAGE = format('another process has taken over the rebuild of %s', projection);
	END IF;
	RETURN held;
END $$;
-- +goose StatementEnd

-- Removes the shadow, the triggers and the keys of a rebuild.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_clear(projection text, live regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = live AND t.tgname = 'rebuild_inserted') THEN
		EXECUTE format('DROP TRIGGER rebuild_inserted ON %s', live);
		EXECUTE format('DROP TRIGGER rebuild_updated ON %s', live);
	END IF;
	IF to_regclass(video_catalog_read.rebuild_shadow(projection)) IS NOT NULL THEN
		EXECUTE format('DROP TABLE %s', video_catalog_read.rebuild_shadow(projection));
	END IF;
	DELETE FROM video_catalog_read.rebuild_keys k WHERE k.projection = rebuild_clear.projection;
END $$;
-- +goose StatementEnd

-- Creates the shadow of a projection, empty, with the same settings, grants and comments, and the triggers. They wait for
-- running writers, so they come last.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_create(projection text, live regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	shadow text := video_catalog_read.rebuild_shadow(projection);
	command text;
	lost text;
BEGIN
	EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', shadow, live);
	FOR command IN
		SELECT format('REVOKE ALL ON %s FROM %s', shadow, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
		FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = shadow::regclass AND a.grantee <> c.relowner
		UNION ALL
		SELECT format('GRANT %s%s ON %s TO %s%s', a.privilege_type, ' (' || quote_ident(a.attname) || ')', shadow,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
		FROM (
			SELECT NULL::name AS attname, g.* FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = live AND g.grantee <> c.relowner
			UNION ALL
			SELECT a.attname, g.* FROM pg_attribute a, aclexplode(a.attacl) g WHERE a.attrelid = live AND NOT a.attisdropped
		) a
		UNION ALL
		SELECT format('ALTER TABLE %s SET (%s%I = %L)', shadow, o.prefix, split_part(o.option, '=', 1), substr(o.option, strpos(o.option, '=') + 1))
		FROM (
			SELECT '' AS prefix, unnest(c.reloptions) AS option FROM pg_class c WHERE c.oid = live
			UNION ALL
			SELECT 'toast.', unnest(toast.reloptions) FROM pg_class c JOIN pg_class toast ON toast.oid = c.reltoastrelid WHERE c.oid = live
		) o
		UNION ALL
		SELECT format('COMMENT ON TABLE %s IS %L', shadow, obj_description(live, 'pg_class'))
	LOOP
		EXECUTE command;
	END LOOP;
	SELECT string_agg(line, '; ') INTO lost FROM unnest(video_catalog_read.rebuild_shape(live)) line
	WHERE line <> ALL (video_catalog_read.rebuild_shape(shadow::regclass));
	IF lost IS NOT NULL THEN
		RAISE feature_not_supported USING MESSAGE = format('a rebuild cannot replace %s, because a copy would lack: %s', projection, lost);
	END IF;
	EXECUTE format('CREATE TRIGGER rebuild_inserted AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows
		FOR EACH STATEMENT EXECUTE FUNCTION video_catalog_read.rebuild_note(%L)', live, (video_catalog_read.rebuild_columns(live)).key);
	EXECUTE format('CREATE TRIGGER rebuild_updated AFTER UPDATE ON %s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
		FOR EACH STATEMENT EXECUTE FUNCTION video_catalog_read.rebuild_note(%L)', live, (video_catalog_read.rebuild_columns(live)).key);
END $$;
-- +goose StatementEnd

-- Starts a rebuild, or resumes one that was interrupted. Fails while another process holds the lease. It starts over with
-- restart, if the databases of origin are others, if the table has changed, or after a day. estimate is about how many rows the
-- live table has.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_begin(projection text, origin text, token bigint, lease_for interval, restart bool)
RETURNS TABLE (resumed bool, generation bigint, phase text, "position" text, entries bigint, estimate bigint) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
	live regclass := video_catalog_read.rebuild_table(projection);
	shadow regclass := to_regclass(video_catalog_read.rebuild_shadow(projection));
	r video_catalog_read.rebuilds;
BEGIN
	INSERT INTO video_catalog_read.rebuilds (projection, generation, phase, position, entries, origin, token, leased_until, leased_for, started_at)
	VALUES (rebuild_begin.projection, 0, 'dropped', '', 0, '', 0, '-infinity', '0', now()) ON CONFLICT DO NOTHING;
	SELECT b.* INTO r FROM video_catalog_read.rebuilds b WHERE b.projection = rebuild_begin.projection FOR UPDATE;
	IF r.phase NOT IN ('done', 'dropped') AND r.leased_until > clock_timestamp() THEN
		RAISE object_in_use USING MESSAGE = format('a rebuild of %s has been running since %s: if its process has died, run it again in %s s, and it will be resumed',
			r.projection, r.started_at, ceil(extract(epoch FROM r.leased_until - clock_timestamp())));
	END IF;
	resumed := NOT restart AND r.origin = rebuild_begin.origin AND r.leased_until > now() - interval '1 day' AND (r.phase = 'repeat'
		OR r.phase IN ('fill', 'check') AND shadow IS NOT NULL AND video_catalog_read.rebuild_shape(live) = video_catalog_read.rebuild_shape(shadow));
	IF NOT resumed THEN
		PERFORM video_catalog_read.rebuild_clear(rebuild_begin.projection, live);
		PERFORM video_catalog_read.rebuild_create(rebuild_begin.projection, live);
		r.generation := r.generation + 1;
		r.phase := 'fill';
		r.position := '';
		r.entries := 0;
		r.started_at := clock_timestamp();
	END IF;
	UPDATE video_catalog_read.rebuilds b SET generation = r.generation, phase = r.phase, position = r.position, entries = r.entries, started_at = r.started_at, ended_at = NULL,
		origin = rebuild_begin.origin, token = rebuild_begin.token, leased_for = lease_for, leased_until = clock_timestamp() + lease_for
	WHERE b.projection = rebuild_begin.projection;
	RETURN QUERY SELECT resumed, r.generation, r.phase, r.position, r.entries, greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = live;
END $$;
-- +goose StatementEnd

-- The three functions that follow read both tables by their keys. The settings leave the planner no other way: the shadow has
-- no statistics at first, and a page of a large table must not read all of it.

-- Writes entries of the owner, an array of objects with the columns of the projection: into the shadow, or after the swap into
-- the live table. It skips entries of which the target has the same or a later version, unless overwrite is true. A row with the
-- content of the live one keeps its event_id, change_xid and updated_at, so no watch gets it again. With a new position the
-- entries are a page of the owner's list, and with an empty one the last. lowered has the keys to ask about after the swap.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_write(projection text, token bigint, entries jsonb, overwrite bool, new_position text, lowered text[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	r video_catalog_read.rebuilds := video_catalog_read.rebuild_hold(projection, token);
	live regclass := video_catalog_read.rebuild_table(projection);
	c record;
BEGIN
	SELECT * INTO c FROM video_catalog_read.rebuild_columns(live);
	EXECUTE format('
		INSERT INTO %1$s AS s (%3$s)
		SELECT DISTINCT ON (n.%4$s) %5$s
		FROM jsonb_populate_recordset(NULL::%2$s, $1) n
		LEFT JOIN %2$s l ON l.%4$s = n.%4$s
		CROSS JOIN LATERAL (SELECT %6$s AS same) x
		ORDER BY n.%4$s, n.version DESC
		ON CONFLICT (%4$s) DO UPDATE SET %7$s WHERE $2 OR excluded.version > s.version',
		CASE r.phase WHEN 'repeat' THEN live::text ELSE video_catalog_read.rebuild_shadow(projection) END, live, c.names, c.key, c.fresh, c.same, c.sets)
	USING entries, overwrite;
	INSERT INTO video_catalog_read.rebuild_keys (projection, lowered, key) SELECT rebuild_write.projection, true, unnest(rebuild_write.lowered);
	IF new_position IS NOT NULL THEN
		UPDATE video_catalog_read.rebuilds b SET position = new_position, entries = b.entries + jsonb_array_length(rebuild_write.entries),
			phase = CASE new_position WHEN '' THEN 'check' ELSE b.phase END
		WHERE b.projection = rebuild_write.projection;
	END IF;
	IF new_position = '' THEN -- statistics, before the first reader
		EXECUTE format('ANALYZE %s', video_catalog_read.rebuild_shadow(projection));
	END IF;
END $$;
-- +goose StatementEnd

-- Copies entries that events have changed from the live table to the shadow, at most max_keys. Returns how many keys it read,
-- and those that are not in the shadow: the owner has not listed them.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_catch_up(projection text, token bigint, max_keys int, OUT keys bigint, OUT unlisted text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	live regclass := video_catalog_read.rebuild_table(projection);
	c record;
BEGIN
	PERFORM video_catalog_read.rebuild_hold(projection, token);
	SELECT * INTO c FROM video_catalog_read.rebuild_columns(live);
	-- copied: the event is newer, or competes with the event that the shadow has. adopted: the owner had listed its result
	-- before it came. Both see the same snapshot, and no row is in both.
	EXECUTE format('
		WITH gone AS (
			DELETE FROM video_catalog_read.rebuild_keys k
			WHERE k.projection = $1 AND NOT k.lowered
				AND k.id IN (SELECT o.id FROM video_catalog_read.rebuild_keys o WHERE o.projection = $1 AND NOT o.lowered ORDER BY o.id LIMIT $2)
			RETURNING k.key
		), changed AS MATERIALIZED (
			SELECT l.* FROM (SELECT DISTINCT gone.key::%3$s AS key FROM gone) d JOIN %2$s l ON l.%4$s = d.key
		), copied AS (
			UPDATE %1$s n SET %5$s FROM changed l
			WHERE n.%4$s = l.%4$s AND (l.version > n.version OR l.version = n.version AND coalesce(n.event_id, $3) <> $3)
		), adopted AS (
			UPDATE %1$s n SET %6$s FROM changed l WHERE n.%4$s = l.%4$s AND coalesce(n.event_id, $3) = $3 AND %7$s
		)
		SELECT (SELECT count(*) FROM gone), ARRAY(SELECT l.%4$s::text FROM changed l WHERE NOT EXISTS (SELECT FROM %1$s n WHERE n.%4$s = l.%4$s))',
		video_catalog_read.rebuild_shadow(projection), live, c.key_type, c.key, c.moved, c.adopted, c.same)
	USING projection, max_keys, '00000000-0000-0000-0000-000000000000'::uuid INTO keys, unlisted;
END $$;
-- +goose StatementEnd

-- Compares the live table with the shadow, at most max_keys entries after a key, in the order of the keys; NULL: from the
-- beginning. ask has the keys of entries that the shadow lacks, or has with an older version: the owner must decide. An event
-- on its way can be the reason, too.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_compare(projection text, token bigint, after_key text, max_keys int,
	OUT last_key text, OUT keys bigint, OUT missing bigint, OUT behind bigint, OUT different bigint, OUT ask text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	live regclass := video_catalog_read.rebuild_table(projection);
	c record;
BEGIN
	PERFORM video_catalog_read.rebuild_hold(projection, token);
	SELECT * INTO c FROM video_catalog_read.rebuild_columns(live);
	EXECUTE format('
		WITH page AS MATERIALIZED (
			(SELECT l.%4$s AS key FROM %2$s l WHERE %5$s ORDER BY 1 LIMIT $2)
			UNION
			(SELECT l.%4$s FROM %1$s l WHERE %5$s ORDER BY 1 LIMIT $2)
			ORDER BY key LIMIT $2
		)
		SELECT (SELECT p.key::text FROM page p ORDER BY p.key DESC LIMIT 1), count(*), count(*) FILTER (WHERE l.%4$s IS NULL), count(*) FILTER (WHERE l.version < n.version),
			count(*) FILTER (WHERE l.version = n.version AND NOT (%6$s)),
			coalesce(array_agg(p.key::text) FILTER (WHERE n.%4$s IS NULL OR l.version > n.version), ''{}'')
		FROM page p LEFT JOIN %2$s l ON l.%4$s = p.key LEFT JOIN %1$s n ON n.%4$s = p.key',
		video_catalog_read.rebuild_shadow(projection), live, c.key_type, c.key, CASE WHEN after_key IS NULL THEN 'true' ELSE format('l.%s > $1::%s', c.key, c.key_type) END, c.same)
	USING after_key, max_keys INTO last_key, keys, missing, behind, different, ask;
END $$;
-- +goose StatementEnd

-- Makes the shadow the live table, with the names of the live one. It first stops the writers and copies what they have
-- changed, up to max_keys. It does not swap, and returns false, if more is left, or if there are unlisted keys, as in
-- rebuild_catch_up. Writers and then readers wait for at most lock_timeout: call it again if it fails with that.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_swap(projection text, token bigint, max_keys int, OUT swapped bool, OUT unlisted text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
	r video_catalog_read.rebuilds := video_catalog_read.rebuild_hold(projection, token);
	live regclass := video_catalog_read.rebuild_table(projection);
	shadow text := video_catalog_read.rebuild_shadow(projection);
	renames text[];
	command text;
	left_over bigint;
BEGIN
	IF r.phase <> 'check' THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = format('the rebuild of %s is in the phase %s, want check', projection, r.phase);
	END IF;
	EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', live);
	IF video_catalog_read.rebuild_shape(live) <> video_catalog_read.rebuild_shape(shadow::regclass) THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = format('%s was altered after its rebuild had started: run the rebuild again, and it will start over', projection);
	END IF;
	SELECT u.keys, u.unlisted INTO left_over, unlisted FROM video_catalog_read.rebuild_catch_up(projection, token, max_keys) u;
	swapped := left_over < max_keys AND unlisted = '{}';
	IF NOT swapped THEN
		RETURN;
	END IF;
	SELECT array_agg(format('ALTER INDEX %s RENAME TO %I', n.index, l.name)) INTO renames
	FROM (SELECT c.relname AS name, i.definition, row_number() OVER (PARTITION BY i.definition ORDER BY c.relname) AS nth
		FROM video_catalog_read.rebuild_indexes(live) i JOIN pg_class c ON c.oid = i.index) l
	JOIN (SELECT i.*, row_number() OVER (PARTITION BY i.definition ORDER BY i.index) AS nth FROM video_catalog_read.rebuild_indexes(shadow::regclass) i) n USING (definition, nth);
	EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', live);
	EXECUTE format('DROP TABLE %s', live);
	EXECUTE format('ALTER TABLE %s RENAME TO %I', shadow, projection);
	FOREACH command IN ARRAY renames LOOP
		EXECUTE command;
	END LOOP;
	UPDATE video_catalog_read.rebuilds b SET phase = 'repeat' WHERE b.projection = rebuild_swap.projection;
END $$;
-- +goose StatementEnd

-- Ends a rebuild. Before the swap it drops the shadow, and nothing has changed.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_end(projection text, token bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
	r video_catalog_read.rebuilds := video_catalog_read.rebuild_hold(projection, token);
BEGIN
	PERFORM video_catalog_read.rebuild_clear(projection, video_catalog_read.rebuild_table(projection));
	UPDATE video_catalog_read.rebuilds b SET phase = CASE r.phase WHEN 'repeat' THEN 'done' ELSE 'dropped' END, ended_at = clock_timestamp(), leased_until = clock_timestamp()
	WHERE b.projection = rebuild_end.projection;
END $$;
-- +goose StatementEnd

-- Ends the lease of a rebuild, so that another process can resume it at once.
-- +goose StatementBegin
CREATE FUNCTION video_catalog_read.rebuild_release(projection text, token bigint) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
	UPDATE video_catalog_read.rebuilds b SET leased_until = clock_timestamp() WHERE b.projection = rebuild_release.projection AND b.token = rebuild_release.token
$$;
-- +goose StatementEnd

-- Nobody else has access. The functions without a token have no grant: those with one call them.
REVOKE ALL ON video_catalog_read.inbox_generations, video_catalog_read.rebuilds, video_catalog_read.rebuild_keys FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA video_catalog_read FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE ON video_catalog_read.inbox_generations TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.rebuilds, video_catalog_read.rebuild_keys TO video_catalog_read_rw;
GRANT SELECT ON video_catalog_read.inbox_generations, video_catalog_read.rebuilds, video_catalog_read.rebuild_keys TO support_ro;
GRANT EXECUTE ON FUNCTION
	video_catalog_read.rebuild_begin(text, text, bigint, interval, bool), video_catalog_read.rebuild_hold(text, bigint),
	video_catalog_read.rebuild_write(text, bigint, jsonb, bool, text, text[]),
	video_catalog_read.rebuild_catch_up(text, bigint, int), video_catalog_read.rebuild_compare(text, bigint, text, int),
	video_catalog_read.rebuild_swap(text, bigint, int), video_catalog_read.rebuild_end(text, bigint), video_catalog_read.rebuild_release(text, bigint)
TO video_catalog_read_rw;

-- +goose Down
-- A rebuild that was interrupted leaves triggers and a shadow: server rebuild --dry-run removes them first.
DROP FUNCTION video_catalog_read.rebuild_release, video_catalog_read.rebuild_end, video_catalog_read.rebuild_swap, video_catalog_read.rebuild_compare,
	video_catalog_read.rebuild_catch_up, video_catalog_read.rebuild_write, video_catalog_read.rebuild_begin,
	video_catalog_read.rebuild_create, video_catalog_read.rebuild_clear, video_catalog_read.rebuild_hold, video_catalog_read.rebuild_note,
	video_catalog_read.rebuild_shape, video_catalog_read.rebuild_indexes, video_catalog_read.rebuild_columns, video_catalog_read.rebuild_shadow, video_catalog_read.rebuild_table;
DROP TABLE video_catalog_read.rebuild_keys, video_catalog_read.rebuilds, video_catalog_read.inbox_generations;
