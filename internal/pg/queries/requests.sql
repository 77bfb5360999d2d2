-- name: InsertRequest :one
-- Returns no row if the request was already recorded. If a transaction that has not ended recorded it, this waits for
-- the end.
INSERT INTO video_catalog.requests (
	aggregate_type,
	request_id,
	aggregate_id,
	fingerprint,
	create_time
)
VALUES (
	@aggregate_type,
	@request_id,
	@aggregate_id,
	@fingerprint,
	now()
)
ON CONFLICT DO NOTHING
RETURNING request_id;

-- name: GetRequest :one
SELECT aggregate_id, fingerprint
FROM video_catalog.requests
WHERE aggregate_type = @aggregate_type AND request_id = @request_id;

-- name: PruneRequests :execrows
-- Deletes at most max_rows requests that are older than older_than. Only the clock of the database counts: a process
-- whose clock is a day ahead must not delete requests that the API promises to remember.
DELETE FROM video_catalog.requests
WHERE (aggregate_type, request_id) IN (
	SELECT r.aggregate_type, r.request_id FROM video_catalog.requests r
	WHERE r.create_time < now() - @older_than::interval
	ORDER BY r.create_time LIMIT @max_rows
);
