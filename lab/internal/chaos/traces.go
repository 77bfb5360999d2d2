package chaos

import (
	"context"
	"fmt"
)

// watchEvents adds triggers that keep what the service forgets: a purge erases events, and a
// seek clears the inbox. They write in the transaction of the service, so they have what was
// committed and nothing else.
//
//	chaos.events    every event of the outbox, in the order in which they were written
//	chaos.consumed  the events that were ever in the inbox
//	chaos.acted     each blocked aggregate that operators changed, and each message that they took out of quarantine
func watchEvents(ctx context.Context, c conn) error {
	_, err := c.Exec(ctx, `
		CREATE SCHEMA IF NOT EXISTS chaos;
		CREATE TABLE chaos.events (
			n bigint GENERATED ALWAYS AS IDENTITY, id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
			version bigint NOT NULL, schema_version int NOT NULL, payload bytea NOT NULL, occurred_at timestamptz NOT NULL, traceparent text
		);
		CREATE TABLE chaos.consumed (event_id uuid PRIMARY KEY);
		CREATE TABLE chaos.acted (side text NOT NULL);
		CREATE FUNCTION chaos.keep_event() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO chaos.events (id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at, traceparent)
			VALUES (NEW.id, NEW.aggregate_type, NEW.aggregate_id, NEW.event_type, NEW.version, NEW.schema_version, NEW.payload, NEW.occurred_at, NEW.traceparent);
			RETURN NULL;
		END $$;
		CREATE FUNCTION chaos.keep_consumed() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO chaos.consumed VALUES (NEW.event_id) ON CONFLICT DO NOTHING;
			RETURN NULL;
		END $$;
		CREATE FUNCTION chaos.keep_acted() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO chaos.acted VALUES (TG_TABLE_SCHEMA);
			RETURN NULL;
		END $$;
		CREATE TRIGGER chaos_acted AFTER UPDATE ON video_catalog.outbox_blocked FOR EACH ROW
			WHEN (current_setting('application_name') = 'operator') EXECUTE FUNCTION chaos.keep_acted();
		CREATE TRIGGER chaos_acted AFTER DELETE ON video_catalog_read.quarantine FOR EACH ROW
			WHEN (current_setting('application_name') = 'operator') EXECUTE FUNCTION chaos.keep_acted();
		CREATE TRIGGER chaos_keep AFTER INSERT ON video_catalog.outbox FOR EACH ROW EXECUTE FUNCTION chaos.keep_event();
		CREATE TRIGGER chaos_keep AFTER INSERT ON video_catalog_read.inbox FOR EACH ROW EXECUTE FUNCTION chaos.keep_consumed()`)
	if err != nil {
		return fmt.Errorf("watch events: %w", err)
	}
	return nil
}
