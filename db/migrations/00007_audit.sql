-- +goose Up
-- The actions of operators. Each side has its own table, so that an action and its row are one transaction, and the
-- sides can be in two databases.
CREATE TABLE video_catalog.audit (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	action_id uuid NOT NULL,
	create_time timestamptz NOT NULL DEFAULT now(),
	actor text NOT NULL,
	via text NOT NULL,
	database_user text NOT NULL DEFAULT session_user,
	action text NOT NULL,
	filter jsonb NOT NULL,
	reason text NOT NULL,
	items bigint NOT NULL,
	before jsonb NOT NULL,
	after jsonb NOT NULL DEFAULT '[]'
);

COMMENT ON TABLE video_catalog.audit IS 'What operators did to this side: a row per transaction. Roles of the service can append to it, and change nothing.';
COMMENT ON COLUMN video_catalog.audit.action_id IS 'One action. One on many items has several transactions, and a row for each.';
COMMENT ON COLUMN video_catalog.audit.actor IS 'Who did it, as the command or the console was told; by default an operating-system user and host.';
COMMENT ON COLUMN video_catalog.audit.via IS 'command or console.';
COMMENT ON COLUMN video_catalog.audit.database_user IS 'Who did it, as PostgreSQL knows: no client can set it.';
COMMENT ON COLUMN video_catalog.audit.items IS 'How many items this transaction changed.';
COMMENT ON COLUMN video_catalog.audit.before IS 'An array of these items, as they were before. Payloads are not in it.';
COMMENT ON COLUMN video_catalog.audit.after IS 'An array of these items, as this transaction has left them. Empty if the action says it: a deleted message is gone, a retried aggregate is due.';

CREATE TABLE video_catalog_read.audit (LIKE video_catalog.audit INCLUDING ALL);

COMMENT ON TABLE video_catalog_read.audit IS 'What operators did to this side: see the columns of the table of the same name on the command side.';

-- Deletes at most max_rows rows that are older than a time, and returns how many. Nobody can use it to hide what was done
-- lately: the time is at least 30 days.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.audit_prune(older_than interval, max_rows int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	WITH gone AS (
		DELETE FROM video_catalog.audit
		WHERE id IN (SELECT a.id FROM video_catalog.audit a ORDER BY a.id LIMIT max_rows)
			AND create_time < now() - greatest(older_than, interval '30 days')
		RETURNING 1
	)
	SELECT count(*) FROM gone
$$;
CREATE FUNCTION video_catalog_read.audit_prune(older_than interval, max_rows int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	WITH gone AS (
		DELETE FROM video_catalog_read.audit
		WHERE id IN (SELECT a.id FROM video_catalog_read.audit a ORDER BY a.id LIMIT max_rows)
			AND create_time < now() - greatest(older_than, interval '30 days')
		RETURNING 1
	)
	SELECT count(*) FROM gone
$$;
-- +goose StatementEnd

GRANT SELECT, INSERT (action_id, actor, via, action, filter, reason, items, before, after) ON video_catalog.audit TO video_catalog_rw;
GRANT SELECT, INSERT (action_id, actor, via, action, filter, reason, items, before, after) ON video_catalog_read.audit TO video_catalog_read_rw;
GRANT SELECT ON video_catalog.audit, video_catalog_read.audit TO support_ro;
GRANT EXECUTE ON FUNCTION video_catalog.audit_prune(interval, int) TO video_catalog_rw;
GRANT EXECUTE ON FUNCTION video_catalog_read.audit_prune(interval, int) TO video_catalog_read_rw;

-- +goose Down
DROP TABLE video_catalog.audit, video_catalog_read.audit;
DROP FUNCTION video_catalog.audit_prune, video_catalog_read.audit_prune;
