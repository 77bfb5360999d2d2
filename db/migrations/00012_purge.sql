-- +goose Up
-- A video can be purged: its content is erased for good, and a tombstone is left. docs/operations.md says what is erased when.
SET LOCAL lock_timeout = '2s';

ALTER TABLE video_catalog.videos ADD COLUMN purge_time timestamptz;
-- A build that does not know the column must not bring a purged video back.
ALTER TABLE video_catalog.videos ADD CONSTRAINT videos_purged_are_empty CHECK (
	purge_time IS NULL
	OR delete_time IS NOT NULL AND (title, description, release_year, duration_ms, language_code, tags) = ('', '', 0, 0, '', '{}')
) NOT VALID;

COMMENT ON COLUMN video_catalog.videos.purge_time IS 'When the content was erased; NULL if it was not. The row stays as a tombstone, so that its id and its versions are not used again.';

-- outbox_erase erases no other type.
ALTER TABLE video_catalog.erasures ADD CONSTRAINT erasures_of_videos CHECK (aggregate_type = 'video') NOT VALID;

-- Reads up to max_rows events behind after_id, in the order of their ids. Deletes those of the given erasures, and returns the
-- last id that it read, or NULL if there was none. The event of the purge stays. SECURITY DEFINER, because the service itself
-- may only append. So it checks that the aggregate is purged. It does not read by aggregate: an index for that would slow
-- down every append.
-- +goose StatementBegin
CREATE FUNCTION video_catalog.outbox_erase(erasure_ids bigint[], after_id uuid, max_rows int) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET enable_seqscan = off AS $$
DECLARE
	purged text[] := ARRAY(
		SELECT e.aggregate_id FROM video_catalog.erasures e
		JOIN video_catalog.videos v ON v.id = e.aggregate_id::uuid
		WHERE e.id = ANY (erasure_ids) AND e.aggregate_type = 'video' AND v.purge_time IS NOT NULL
	);
	last_id uuid;
BEGIN
	SELECT o.id INTO last_id
	FROM (SELECT id FROM video_catalog.outbox WHERE id > after_id ORDER BY id LIMIT max_rows) o
	ORDER BY o.id DESC LIMIT 1;
	-- An array, because a join with any statistics may read these events once per aggregate.
	DELETE FROM video_catalog.outbox o
	WHERE o.id > after_id AND o.id <= last_id
		AND o.aggregate_type = 'video' AND o.aggregate_id = ANY (purged) AND o.event_type <> 'VideoPurged';
	RETURN last_id;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION video_catalog.outbox_erase(bigint[], uuid, int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION video_catalog.outbox_erase(bigint[], uuid, int) TO video_catalog_rw;

-- +goose Down
DROP FUNCTION video_catalog.outbox_erase(bigint[], uuid, int);
ALTER TABLE video_catalog.erasures DROP CONSTRAINT erasures_of_videos;
ALTER TABLE video_catalog.videos DROP CONSTRAINT videos_purged_are_empty;
ALTER TABLE video_catalog.videos DROP COLUMN purge_time;
