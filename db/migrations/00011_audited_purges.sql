-- +goose Up
-- A purge is in the audit, too.
COMMENT ON TABLE video_catalog.audit IS 'What operators did to this side, and which aggregates callers purged: a row per transaction. Roles of the service can append to it, and change nothing.';
COMMENT ON COLUMN video_catalog.audit.actor IS 'Who did it, as the command or the console was told; by default an operating-system user and host. For a purge the caller, or unknown.';
COMMENT ON COLUMN video_catalog.audit.via IS 'command or console; api for a purge.';

-- +goose Down
COMMENT ON TABLE video_catalog.audit IS 'What operators did to this side: a row per transaction. Roles of the service can append to it, and change nothing.';
COMMENT ON COLUMN video_catalog.audit.actor IS 'Who did it, as the command or the console was told; by default an operating-system user and host.';
COMMENT ON COLUMN video_catalog.audit.via IS 'command or console.';
