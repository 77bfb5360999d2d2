-- name: MeasureOutbox :one
-- Measures the backlog without reading all of it. It returns when the oldest event in a lane happened; the epoch means
-- none. Events that are published again do not count for that: they happened long ago, and are not late. It counts
-- events that are pending or deferred, and blocked aggregates, each up to max_counted, how many of these aggregates are
-- parked, and the future days that have their partition.
SELECT
	coalesce((
		SELECT min(head.occurred_at) FROM video_catalog.outbox_lanes l CROSS JOIN LATERAL (
			SELECT p.occurred_at FROM video_catalog.outbox_pending p
			WHERE p.lane = l.lane AND p.seq > l.floor_seq AND p.repeat = '' ORDER BY p.seq LIMIT 1
		) head
	), 'epoch')::timestamptz AS oldest,
	(SELECT count(*) FROM (
		(SELECT 1 FROM video_catalog.outbox_lanes l CROSS JOIN LATERAL (
			SELECT 1 FROM video_catalog.outbox_pending p
			WHERE p.lane = l.lane AND p.seq > l.floor_seq ORDER BY p.seq LIMIT @max_counted
		) counted_lane)
		UNION ALL
		(SELECT 1 FROM video_catalog.outbox_deferred d ORDER BY d.aggregate_type, d.aggregate_id, d.seq LIMIT @max_counted)
		LIMIT @max_counted
	) counted)::bigint AS pending,
	stuck.blocked,
	stuck.parked,
	coalesce((
		SELECT max(substr(c.relname, 9))::date - (now() AT TIME ZONE 'UTC')::date FROM pg_catalog.pg_class c
		WHERE c.relnamespace = 'video_catalog'::regnamespace
			AND c.relispartition AND c.relkind = 'r' AND c.relname ~ '^outbox_p[0-9]{8}$'
	), 0)::bigint AS days_ahead
FROM (
	SELECT count(*) AS blocked, count(limited.parked_at) AS parked
	FROM (
		SELECT b.parked_at FROM video_catalog.outbox_blocked b
		ORDER BY b.lane, b.next_retry_at LIMIT @max_counted
	) limited
) stuck;
