package repair

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg/pgtest"
)

// orders makes the tables of an entity, as cmd/entity does, in two databases with different time zones.
func (s *sides) orders() entity {
	s.Helper()
	const columns = `total_cents bigint NOT NULL, weight double precision, tags text[] NOT NULL, "end" timestamptz, lines jsonb NOT NULL, photo bytea NOT NULL,
		state text NOT NULL, version bigint NOT NULL, create_time timestamptz NOT NULL, update_time timestamptz NOT NULL, delete_time timestamptz`
	for _, side := range []struct {
		pool        *pgxpool.Pool
		zone, table string
	}{
		{s.commands, "Asia/Tokyo", "video_catalog.orders (id uuid PRIMARY KEY, "},
		{s.queries, "America/Lima", "video_catalog_read.order_projection (order_id uuid PRIMARY KEY, event_id uuid NOT NULL, "},
	} {
		zone := "ALTER DATABASE " + pgx.Identifier{side.pool.Config().ConnConfig.Database}.Sanitize() + " SET TimeZone = '" + side.zone + "'; "
		pgtest.Execute(s, side.pool, zone+"CREATE TABLE "+side.table+columns+")")
		side.pool.Reset()
	}
	return entityOf("order", "orders", "order_id", s.commands, s.queries)
}

// order writes an order of version 3, and an entry that is equal.
func (s *sides) order() uuid.UUID {
	s.Helper()
	id := uuid.Must(uuid.NewV7())
	const values = `8900000000000000001, 0.1, '{a,"b c"}', '2026-03-01 12:00:00.000001+09', '[{"title": "Ran"}]', '\x00ff', 'placed', 3, '2026-01-01 00:00+00', '2026-02-02 00:00+00', NULL)`
	s.exec(s.commands, "INSERT INTO video_catalog.orders VALUES ($1, "+values, id)
	s.exec(s.queries, "INSERT INTO video_catalog_read.order_projection VALUES ($1, gen_random_uuid(), "+values, id)
	return id
}

// The view of an entity is compared with its table column by column, and repaired, also if the
// databases have different time zones.
func TestEntityIsComparedAndRepaired(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	orders := s.orders()
	for range 3 {
		s.order()
	}
	if got := s.compareBy(orders, aShortWait); len(got.differences) > 0 || got.rows != 3 {
		t.Fatalf("compare() = %+v, want three rows that are equal", got)
	}
	var want []difference
	corrupt := func(how kind, ownerVersion, version int64, fields []string, pool *pgxpool.Pool, sql string) {
		id := s.order()
		s.exec(pool, sql, id)
		want = append(want, difference{Type: "order", ID: id, Kind: how, OwnerVersion: ownerVersion, Version: version, Fields: fields})
	}
	const set, where = "UPDATE video_catalog_read.order_projection SET ", " WHERE order_id = $1"
	for column, value := range map[string]string{
		"total_cents": "8900000000000000002", "weight": "0.2", "tags": "'{}'", `"end"`: "NULL", "lines": "'[]'", "photo": "''", "state": "'draft'", "delete_time": "now()",
	} {
		corrupt(different, 3, 3, []string{strings.Trim(column, `"`)}, s.queries, set+column+" = "+value+where)
	}
	corrupt(behind, 3, 2, nil, s.queries, set+"version = 2"+where)
	corrupt(ahead, 3, 9, nil, s.queries, set+"version = 9"+where)
	corrupt(missing, 3, 0, nil, s.queries, "DELETE FROM video_catalog_read.order_projection"+where)
	corrupt(extra, 0, 3, nil, s.commands, "DELETE FROM video_catalog.orders WHERE id = $1")

	got := s.compareBy(orders, aShortWait)
	slices.SortFunc(want, func(a, b difference) int { return compareIDs(a.ID, b.ID) })
	pgtest.Same(t, "compare()", want, got.differences)
	s.compared = orders
	if result := s.repair(); result.Done != int64(len(want)) || result.Failures > 0 {
		t.Errorf("repair() = %+v, want %d repaired", result, len(want))
	}
	if again := s.compareBy(orders, aShortWait); len(again.differences) > 0 {
		t.Errorf("compare() after the repair = %+v, want no difference", again.differences)
	}
	pgtest.WantCount(t, s.queries, len(want), "entries that are deleted, or have the event id of a repair", "SELECT count(*) FROM video_catalog_read.order_projection WHERE delete_time IS NOT NULL OR event_id = $1", uuid.Nil)
}

// A repair does not overwrite a missing entry that a projector writes meanwhile. The lock of the test
// holds the repair between its reading and its writing.
func TestRepairYieldsToTheEventOfAMissingEntry(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.compared = s.orders()
	id := s.order()
	s.exec(s.queries, "UPDATE video_catalog_read.order_projection SET order_id = gen_random_uuid()")
	held := s.hold("LOCK TABLE video_catalog_read.order_projection IN SHARE MODE")
	repairing := make(chan repaired, 1)
	go func() { repairing <- s.repair(id) }()
	s.untilBlocked()
	pgtest.Execute(t, held, "UPDATE video_catalog_read.order_projection SET order_id = $1, version = 4", id)
	must(t, held.Commit(t.Context()))
	<-repairing
	pgtest.WantCount(t, s.queries, 4, "version of the entry, which is that of the event", "SELECT version FROM video_catalog_read.order_projection WHERE order_id = $1", id)
}
