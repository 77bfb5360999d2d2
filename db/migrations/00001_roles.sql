-- +goose Up
-- Least privilege: a role per side, and a read-only one for support. They cannot log in; grant them to the users of the
-- service: docs/database.md says who gets which. Each migration grants what its tables need.
-- Roles belong to the whole server, so a migration of another database may have created them.
-- +goose StatementBegin
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['video_catalog_rw', 'video_catalog_read_rw', 'support_ro'] LOOP
		IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = name) THEN
			BEGIN
				EXECUTE format('CREATE ROLE %I NOLOGIN', name);
			EXCEPTION WHEN duplicate_object OR unique_violation THEN
				NULL; -- a migration of another database was faster
			END;
		END IF;
	END LOOP;
END $$;
-- +goose StatementEnd

-- PostgreSQL lets everybody call a new function. From now on, new functions of this owner are closed. Tables are closed
-- anyway, and no default grant opens them: it would also open each new partition of the outbox, with its payloads.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- +goose Down
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
