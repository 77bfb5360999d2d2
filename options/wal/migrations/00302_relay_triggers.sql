-- +goose Up
SET LOCAL lock_timeout = '2s';

-- Reading the mode makes an append slower. So only during a switch the trigger outbox_relayed calls the function of that name. At other
-- times it is disabled in mode lanes, and calls this function in the others.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_dropped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RETURN NULL;
END $$;

-- Begins or ends the time of a switch, in which appends read the mode. Waits for the transactions that have written pending events: so none
-- is open that has appended in the other way.
CREATE FUNCTION video_catalog.outbox_relay_switching(is_switching bool) RETURNS void LANGUAGE plpgsql SECURITY DEFINER -- only the owner may alter the table
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	is_lanes bool;
BEGIN
	SELECT r.mode = 'lanes' INTO is_lanes FROM video_catalog.outbox_relay r FOR SHARE;
	EXECUTE format('CREATE OR REPLACE TRIGGER outbox_relayed BEFORE INSERT ON video_catalog.outbox_pending FOR EACH ROW WHEN (NEW.repeat = %L) EXECUTE FUNCTION video_catalog.%I()',
		'', CASE WHEN is_switching OR is_lanes THEN 'outbox_relayed' ELSE 'outbox_dropped' END);
	IF is_lanes AND NOT is_switching THEN
		ALTER TABLE video_catalog.outbox_pending DISABLE TRIGGER outbox_relayed;
	END IF;
END $$;

-- A build from before this migration must not change the mode: events would be sent twice, or by nobody.
CREATE FUNCTION video_catalog.outbox_relay_checked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = 'video_catalog.outbox_pending'::regclass
		AND t.tgfoid = 'video_catalog.outbox_relayed'::regproc AND t.tgenabled <> 'D') THEN
		RAISE EXCEPTION 'appends do not read the mode: switch with a build that has 00302_relay_triggers.sql';
	END IF;
	RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER outbox_relay_checked BEFORE UPDATE OF mode ON video_catalog.outbox_relay
FOR EACH ROW EXECUTE FUNCTION video_catalog.outbox_relay_checked();
SELECT video_catalog.outbox_relay_switching(false);

GRANT EXECUTE ON FUNCTION video_catalog.outbox_relay_switching(bool) TO video_catalog_rw;

-- +goose Down
SET LOCAL lock_timeout = '2s';
SELECT video_catalog.outbox_relay_switching(true);
DROP TRIGGER outbox_relay_checked ON video_catalog.outbox_relay;
DROP FUNCTION video_catalog.outbox_relay_checked(), video_catalog.outbox_relay_switching(bool), video_catalog.outbox_dropped();
