-- +goose Up
-- Drops at most five partitions of the outbox that are older than keep, and deletes the notes of skipped events of that age. The
-- clock of the database may be wrong, so a partition goes only if a call found it old a day before: its comment has that time.
-- It is marked a day early, so that it is dropped in time. outbox_maintain drops at once, so the service calls it with a keep of
-- a thousand years. A partition that cannot be dropped stays, with a warning in the log of PostgreSQL.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_drop_old(keep interval) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' SET timezone = 'UTC' AS $$
DECLARE
	name text;
	mark timestamptz;
	tried int := 0;
BEGIN
	IF NOT pg_try_advisory_xact_lock(hashtext('video_catalog.outbox_drop_old')) THEN
		RETURN;
	END IF;
	DELETE FROM video_catalog.outbox_skipped s -- first, because a DROP makes the writers wait
	WHERE s.create_time < now() - keep - interval '1 day' AND (SELECT count(*) FROM video_catalog.outbox o WHERE o.id = s.event_id) = 0;
	FOR name, mark IN
		SELECT c.relname, substring(obj_description(c.oid, 'pg_class') FROM '^old since (.*)')::timestamptz
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'video_catalog.outbox'::regclass AND c.relname ~ '^outbox_p[0-9]{8}$' -- the other partitions are not ours
			AND c.relname < 'outbox_p' || to_char(now() - keep + interval '1 day', 'YYYYMMDD')
		ORDER BY c.relname
	LOOP
		BEGIN
			IF mark IS NULL OR mark > now() THEN
				EXECUTE format('COMMENT ON TABLE video_catalog.%I IS %L', name, 'old since ' || to_char(now(), 'YYYY-MM-DD HH24:MI:SS'));
			ELSIF mark <= now() - interval '1 day' AND name < 'outbox_p' || to_char(now() - keep, 'YYYYMMDD') THEN
				tried := tried + 1;
				EXIT WHEN tried > 5; -- few, because a DROP makes the writers wait until the end
				EXECUTE format('DROP TABLE video_catalog.%I', name); -- locks the parent first, as every append does
			END IF;
		EXCEPTION WHEN OTHERS THEN -- for example, a transaction reads it, or a view depends on it, which DROP does not remove
			RAISE WARNING 'partition % is not dropped: %', name, SQLERRM;
		END;
	END LOOP;
END $$;
-- +goose StatementEnd
GRANT EXECUTE ON FUNCTION video_catalog.outbox_drop_old(interval) TO video_catalog_rw;

-- +goose Down
DROP FUNCTION video_catalog.outbox_drop_old(interval);
