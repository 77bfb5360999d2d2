-- +goose Up
SET LOCAL lock_timeout = '2s';

-- How events leave the service: see options/wal/README.md.
CREATE TABLE video_catalog.outbox_relay (
	one bool PRIMARY KEY DEFAULT true CHECK (one),
	mode text NOT NULL DEFAULT 'lanes' CHECK (mode IN ('lanes', 'external', 'wal')),
	slot text NOT NULL DEFAULT 'video_catalog_outbox',
	since timestamptz NOT NULL DEFAULT now(),
	first_seq bigint NOT NULL DEFAULT 0,
	safe_time timestamptz NOT NULL DEFAULT now(),
	mark_lsn pg_lsn NOT NULL DEFAULT '0/0',
	mark_time timestamptz NOT NULL DEFAULT now()
);
INSERT INTO video_catalog.outbox_relay DEFAULT VALUES;
COMMENT ON TABLE video_catalog.outbox_relay IS 'One row: the mode. In mode lanes a publisher sends the pending events. In the others a new event is only in the log, and a reader of the slot sends it.';
COMMENT ON COLUMN video_catalog.outbox_relay.since IS 'When the switch to the mode began. Events from before it were pending.';
COMMENT ON COLUMN video_catalog.outbox_relay.first_seq IS 'Above the seqs of the events that the last switch has made pending.';
COMMENT ON COLUMN video_catalog.outbox_relay.mark_lsn IS 'The end of the log at mark_time. When the reader has confirmed it, a process sets the next.';
COMMENT ON COLUMN video_catalog.outbox_relay.safe_time IS 'The last confirmed mark_time: the reader has confirmed all that was committed before.';

-- Drops the pending copy of a new event, unless a publisher sends it. The lock lasts until the transaction ends, so a switch, which takes
-- EXCLUSIVE, waits for each transaction that has read the old mode. A transaction that waits for the switch then reads the new mode, and
-- draws another seq: the events that the switch has moved out of the log come first.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_relayed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER -- not each role that appends may read the mode
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	relay record;
BEGIN
	LOCK TABLE video_catalog.outbox_relay IN ROW SHARE MODE;
	SELECT r.mode, r.first_seq INTO relay FROM video_catalog.outbox_relay r;
	IF relay.mode <> 'lanes' THEN
		RETURN NULL;
	ELSIF NEW.seq < relay.first_seq THEN
		NEW.seq := nextval('video_catalog.outbox_pending_seq_seq');
	END IF;
	RETURN NEW;
END $$;

-- A build without this migration must not start while nothing is pending: it would publish nothing.
CREATE FUNCTION video_catalog.outbox_relay_needed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	UPDATE public.video_catalog_migrations m
	SET needed = CASE NEW.mode WHEN 'lanes' THEN NULL ELSE format('events are handed to the log, which the reader of slot %s sends (mode %s of options/wal); only older ones are pending: see `server relay status`; only `server relay lanes` of a build with the option ends this', NEW.slot, NEW.mode) END
	WHERE m.version_id = 300;
	RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER outbox_relayed BEFORE INSERT ON video_catalog.outbox_pending
FOR EACH ROW WHEN (NEW.repeat = '') EXECUTE FUNCTION video_catalog.outbox_relayed();
CREATE TRIGGER outbox_relay_needed AFTER UPDATE OF mode ON video_catalog.outbox_relay
FOR EACH ROW EXECUTE FUNCTION video_catalog.outbox_relay_needed();

-- Without the caller, who is never published.
CREATE PUBLICATION video_catalog_outbox FOR TABLE video_catalog.outbox (id, aggregate_type, aggregate_id, event_type, version, schema_version,
	payload, occurred_at, traceparent, causation_id, correlation_id) WITH (publish = 'insert', publish_via_partition_root = true);

GRANT SELECT, UPDATE ON video_catalog.outbox_relay TO video_catalog_rw;
GRANT UPDATE ON SEQUENCE video_catalog.outbox_pending_seq_seq TO video_catalog_rw;
GRANT SELECT ON video_catalog.outbox_relay TO support_ro;
GRANT EXECUTE ON FUNCTION video_catalog.outbox_relayed(), video_catalog.outbox_relay_needed() TO video_catalog_rw;

-- +goose Down
REVOKE UPDATE ON SEQUENCE video_catalog.outbox_pending_seq_seq FROM video_catalog_rw;
DROP PUBLICATION video_catalog_outbox;
DROP TRIGGER outbox_relayed ON video_catalog.outbox_pending;
DROP TABLE video_catalog.outbox_relay;
DROP FUNCTION video_catalog.outbox_relayed(), video_catalog.outbox_relay_needed();
