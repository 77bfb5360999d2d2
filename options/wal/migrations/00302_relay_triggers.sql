-- +goose Up
SET LOCAL lock_timeout = '2s';

-- To read the mode makes an append slower, so it does only during a switch. Then the trigger outbox_relayed is enabled. Else none is in
-- mode lanes, and outbox_dropped in the others.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_dropped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RETURN NULL;
END $$;

-- Waits until no transaction is open that has appended: what a trigger did for it is then right for the other trigger, too.
CREATE FUNCTION video_catalog.outbox_relay_triggers(is_switching bool) RETURNS void LANGUAGE plpgsql SECURITY DEFINER -- only the owner may alter the table
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	is_lanes bool;
BEGIN
	SELECT r.mode = 'lanes' INTO is_lanes FROM video_catalog.outbox_relay r FOR SHARE; -- no other switch changes it meanwhile
	EXECUTE format('ALTER TABLE video_catalog.outbox_pending %s TRIGGER outbox_relayed, %s TRIGGER outbox_dropped',
		CASE WHEN is_switching THEN 'ENABLE' ELSE 'DISABLE' END, CASE WHEN is_switching OR is_lanes THEN 'DISABLE' ELSE 'ENABLE' END);
END $$;

-- A build from before this migration must not switch, and two switches must not meet: events would be sent twice, or by nobody.
CREATE FUNCTION video_catalog.outbox_relay_switching() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = 'video_catalog.outbox_pending'::regclass AND t.tgname = 'outbox_relayed' AND t.tgenabled = 'D') THEN
		RAISE EXCEPTION 'the trigger outbox_relayed is disabled: switch with a build that has 00302_relay_triggers.sql, and not twice at once';
	END IF;
	RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER outbox_dropped BEFORE INSERT ON video_catalog.outbox_pending
FOR EACH ROW WHEN (NEW.repeat = '') EXECUTE FUNCTION video_catalog.outbox_dropped();
CREATE TRIGGER outbox_relay_switching BEFORE UPDATE OF mode ON video_catalog.outbox_relay
FOR EACH ROW EXECUTE FUNCTION video_catalog.outbox_relay_switching();
SELECT video_catalog.outbox_relay_triggers(false);

GRANT EXECUTE ON FUNCTION video_catalog.outbox_relay_triggers(bool) TO video_catalog_rw;

-- +goose Down
SELECT video_catalog.outbox_relay_triggers(true);
DROP TRIGGER outbox_relay_switching ON video_catalog.outbox_relay;
DROP TRIGGER outbox_dropped ON video_catalog.outbox_pending;
DROP FUNCTION video_catalog.outbox_relay_switching(), video_catalog.outbox_relay_triggers(bool), video_catalog.outbox_dropped();
