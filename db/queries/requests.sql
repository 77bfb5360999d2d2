-- name: InsertRequest :exec
-- Fails with a unique violation when the request was made before.
INSERT INTO video.requests (aggregate_type, request_id, aggregate_id, fingerprint, create_time)
VALUES (@aggregate_type, @request_id, @aggregate_id, @fingerprint, now());

-- name: GetRequest :one
SELECT aggregate_id, fingerprint FROM video.requests WHERE aggregate_type = @aggregate_type AND request_id = @request_id;

-- name: PruneRequests :execrows
-- Deletes at most max_rows requests that are older than that. All by one clock, the database's: a process
-- whose own is a day ahead must not forget what is promised to be known.
DELETE FROM video.requests
WHERE (aggregate_type, request_id) IN (
	SELECT r.aggregate_type, r.request_id FROM video.requests r WHERE r.create_time < now() - @older_than::interval ORDER BY r.create_time LIMIT @max_rows
);
