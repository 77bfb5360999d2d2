-- name: InsertRequests :exec
-- Records the requests of a batch that are new. If a transaction that has not ended recorded one, this waits for the end.
-- The order of the ids is the same in all batches, so that two of them cannot deadlock. The zero id stands for none.
INSERT INTO video_catalog.requests (
	aggregate_type,
	request_id,
	aggregate_id,
	fingerprint,
	create_time
)
SELECT @aggregate_type, r.request_id, r.aggregate_id, r.fingerprint, now()
FROM (
	SELECT
		unnest(@request_ids::uuid[]) AS request_id,
		unnest(@aggregate_ids::text[]) AS aggregate_id,
		unnest(@fingerprints::bytea[]) AS fingerprint
) r
WHERE r.request_id <> '00000000-0000-0000-0000-000000000000'
ORDER BY r.request_id
ON CONFLICT DO NOTHING;

-- name: FindRequests :many
SELECT request_id, aggregate_id::uuid AS aggregate_id, fingerprint
FROM video_catalog.requests
WHERE aggregate_type = @aggregate_type AND request_id = ANY (@request_ids::uuid[]);
