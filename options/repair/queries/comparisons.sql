-- Queries for the comparison of a projection, of any aggregate type, with its owner.

-- name: ClaimComparison :many
-- Claims the next slice of a comparison for the time pause. Returns no row if the slice is not due.
INSERT INTO video_catalog_read.comparisons AS c (
	aggregate_type,
	claim,
	next_time,
	begin_time,
	after_id
)
VALUES (
	@aggregate_type,
	1,
	now() + @pause::interval,
	now(),
	'00000000-0000-0000-0000-000000000000'
)
ON CONFLICT (aggregate_type) DO UPDATE
SET
	claim = c.claim + 1,
	next_time = excluded.next_time,
	begin_time = CASE WHEN c.after_id = excluded.after_id THEN now() ELSE c.begin_time END
WHERE c.next_time <= now()
RETURNING claim, after_id;

-- name: SaveComparison :execrows
-- Saves the result of a slice, unless there is a later claim. If ended is true, it ends the pass; the next pass waits
-- until the time between has passed since the begin of this pass.
UPDATE video_catalog_read.comparisons c
SET
	after_id = CASE WHEN @ended::bool THEN '00000000-0000-0000-0000-000000000000' ELSE @up_to::uuid END,
	compared = CASE WHEN @ended THEN 0 ELSE c.compared + @compared::bigint END,
	differences = CASE WHEN @ended THEN 0 ELSE c.differences + @differences::bigint END,
	last_time = CASE WHEN @ended THEN clock_timestamp() ELSE c.last_time END,
	last_compared = CASE WHEN @ended THEN c.compared + @compared ELSE c.last_compared END,
	last_differences = CASE WHEN @ended THEN c.differences + @differences ELSE c.last_differences END,
	next_time = CASE WHEN @ended THEN greatest(c.next_time, c.begin_time + @between::interval) ELSE c.next_time END
WHERE c.aggregate_type = @aggregate_type AND c.claim = @claim;

-- name: RecordComparison :exec
-- Records a comparison by command as a pass, and revokes the present claim. After differences the next pass begins as
-- soon as possible: it waits longer for late events.
INSERT INTO video_catalog_read.comparisons AS c (
	aggregate_type,
	claim,
	next_time,
	begin_time,
	after_id,
	last_time,
	last_compared,
	last_differences
)
VALUES (
	@aggregate_type,
	1,
	CASE WHEN @differences::bigint = 0 THEN now() + @between::interval ELSE now() END,
	now(),
	'00000000-0000-0000-0000-000000000000',
	now(),
	@compared,
	@differences
)
ON CONFLICT (aggregate_type) DO UPDATE
SET
	claim = c.claim + 1,
	next_time = excluded.next_time,
	begin_time = excluded.begin_time,
	after_id = excluded.after_id,
	compared = 0,
	differences = 0,
	last_time = excluded.last_time,
	last_compared = excluded.last_compared,
	last_differences = excluded.last_differences;

-- name: RestartComparison :exec
-- Begins a new pass as soon as possible, because the projection was repaired. It revokes the present claim.
UPDATE video_catalog_read.comparisons
SET
	claim = claim + 1,
	next_time = now(),
	after_id = '00000000-0000-0000-0000-000000000000',
	compared = 0,
	differences = 0
WHERE aggregate_type = @aggregate_type;

-- name: MeasureComparisons :many
-- Returns the number of differences: the greater one of the last complete pass and the present pass.
SELECT aggregate_type, greatest(last_differences, differences)::bigint AS differences
FROM video_catalog_read.comparisons
ORDER BY aggregate_type;

-- name: ListPendingAggregates :many
-- Returns which of the given aggregates have an event that is not known to be in Pub/Sub. It reads all pending events
-- once.
SELECT p.aggregate_id
FROM video_catalog.outbox_pending p
WHERE p.aggregate_type = @aggregate_type AND p.aggregate_id = ANY(@aggregate_ids::text[])
UNION
SELECT d.aggregate_id
FROM video_catalog.outbox_deferred d
WHERE d.aggregate_type = @aggregate_type AND d.aggregate_id = ANY(@aggregate_ids::text[]);

-- name: InsertQueryAudit :exec
-- Appends an action of an operator to the audit of the query side.
INSERT INTO video_catalog_read.audit (
	action_id,
	actor,
	via,
	action,
	filter,
	reason,
	items,
	before,
	after
)
VALUES (
	@action_id,
	@actor,
	@via,
	@action,
	@filter,
	@reason,
	@items,
	@before,
	@after
);
