-- name: InsertRequest :exec
-- Fails with a unique violation when the request was made before.
INSERT INTO video.requests (request_id, video_id, fingerprint, create_time)
VALUES (@request_id, @video_id, @fingerprint, @create_time);

-- name: GetRequest :one
SELECT * FROM video.requests WHERE request_id = @request_id;

-- name: PruneRequests :execrows
-- Deletes at most max_rows requests made before a time.
DELETE FROM video.requests
WHERE request_id IN (SELECT r.request_id FROM video.requests r WHERE r.create_time < @before ORDER BY r.create_time LIMIT @max_rows);
