-- name: SetTimers :exec
-- Sets timers of an aggregate, in place of those with the same names. The caller has locked the aggregate.
INSERT INTO video_catalog.timers (
	aggregate_type,
	aggregate_id,
	name,
	due_at,
	causation_id,
	correlation_id
)
SELECT
	@aggregate_type,
	@aggregate_id,
	new.name,
	clock_timestamp() + new.after,
	@causation_id,
	@correlation_id
FROM (SELECT unnest(@names::text[]) AS name, unnest(@afters::interval[]) AS after) new
ON CONFLICT (aggregate_type, aggregate_id, name) DO UPDATE
SET
	due_at = excluded.due_at,
	attempts = 0,
	last_error = NULL,
	causation_id = excluded.causation_id,
	correlation_id = excluded.correlation_id;

-- name: CancelTimers :exec
-- Deletes timers of an aggregate. The caller has locked the aggregate.
DELETE FROM video_catalog.timers
WHERE aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id AND name = ANY (@names::text[]);

-- name: ListDueAggregates :many
-- Returns the aggregates of the next due timers behind (after_due, after_id), the oldest first, without a lock.
SELECT aggregate_id, due_at FROM video_catalog.timers
WHERE aggregate_type = @aggregate_type
	AND due_at <= now()
	AND (due_at, aggregate_id) > (@after_due::timestamptz, @after_id::uuid)
ORDER BY due_at, aggregate_id
LIMIT @max_rows;

-- name: ListDueTimers :many
-- Returns, for each aggregate, the timer that was due first. The caller has locked the aggregates, or only postpones.
SELECT DISTINCT ON (aggregate_id)
	aggregate_id,
	name,
	attempts,
	causation_id,
	correlation_id,
	extract(epoch FROM clock_timestamp() - due_at)::float8 AS late_seconds
FROM video_catalog.timers
WHERE aggregate_type = @aggregate_type AND aggregate_id = ANY (@aggregate_ids::uuid[]) AND due_at <= now()
ORDER BY aggregate_id, due_at, name;

-- name: DeleteTimer :exec
-- Deletes a timer that fires. The caller has locked the aggregate.
DELETE FROM video_catalog.timers
WHERE aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id AND name = @name;

-- name: PostponeTimer :execrows
-- Postpones a timer that failed, unless it has fired or was set to a later time meanwhile.
UPDATE video_catalog.timers
SET due_at = clock_timestamp() + @after::interval, attempts = attempts + 1, last_error = @last_error
WHERE aggregate_type = @aggregate_type AND aggregate_id = @aggregate_id AND name = @name AND due_at <= now();

-- name: MeasureTimers :one
-- Returns by how many seconds the oldest timer of an aggregate type is late, and how many wait, up to max_counted.
SELECT
	coalesce((
		SELECT extract(epoch FROM now() - t.due_at) FROM video_catalog.timers t
		WHERE t.aggregate_type = @aggregate_type AND t.due_at <= now() ORDER BY t.due_at LIMIT 1
	), 0)::float8 AS late_seconds,
	(SELECT count(*) FROM (
		SELECT 1 FROM video_catalog.timers t WHERE t.aggregate_type = @aggregate_type LIMIT @max_counted
	) counted)::bigint AS waiting;
