-- +goose Up
-- What the command side needs to react to events, and to the passing of time.
CREATE TABLE video_catalog.inbox (
	consumer text NOT NULL,
	event_id uuid NOT NULL,
	received_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (consumer, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05); -- a prune also reads deleted rows until they are vacuumed

COMMENT ON TABLE video_catalog.inbox IS 'Ids of the events that a consumer has reacted to. Each is inserted in the transaction of its effects.';

CREATE TABLE video_catalog.timers (
	aggregate_type text NOT NULL,
	aggregate_id uuid NOT NULL,
	name text NOT NULL,
	due_at timestamptz NOT NULL,
	attempts int NOT NULL DEFAULT 0,
	last_error text,
	causation_id uuid NOT NULL,
	correlation_id uuid NOT NULL,
	PRIMARY KEY (aggregate_type, aggregate_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.05); -- the search for due timers begins at those that were deleted since the last vacuum

CREATE INDEX timers_due ON video_catalog.timers (aggregate_type, due_at, aggregate_id);

COMMENT ON TABLE video_catalog.timers IS 'What an aggregate will do when a time has come. A timer is set and cancelled in the transaction that changes its aggregate, and deleted in the one that fires it. Lock the aggregate first.';
COMMENT ON COLUMN video_catalog.timers.due_at IS 'By the clock of the database. After a failure: when to try again.';
COMMENT ON COLUMN video_catalog.timers.attempts IS 'How often it failed.';
COMMENT ON COLUMN video_catalog.timers.causation_id IS 'The event with which it was set.';
COMMENT ON COLUMN video_catalog.timers.correlation_id IS 'The first event of the chain of causes.';

GRANT SELECT, INSERT, DELETE ON video_catalog.inbox TO video_catalog_rw;
GRANT SELECT, INSERT, UPDATE, DELETE ON video_catalog.timers TO video_catalog_rw;
GRANT SELECT ON video_catalog.inbox, video_catalog.timers TO support_ro;

-- +goose Down
DROP TABLE video_catalog.timers, video_catalog.inbox;
