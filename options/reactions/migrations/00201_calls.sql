-- +goose Up
SET LOCAL lock_timeout = '2s';

-- Calls set timers. With the option tenancy they have a role of their own, which can be older than the table.
-- +goose StatementBegin
DO $$
BEGIN
	IF to_regrole('video_catalog_calls') IS NOT NULL THEN
		GRANT SELECT, INSERT, UPDATE, DELETE ON video_catalog.timers TO video_catalog_calls;
	END IF;
END $$;
-- +goose StatementEnd

-- +goose Down
-- The grant goes with the table.
SELECT 1;
