package repair

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
)

// table is a table of an aggregate type, with an id and a version. Its SQL calls the row r.
type table struct {
	pool      *pgxpool.Pool
	name, key string
	row       string // the row as jsonb, as both sides have it
	deleted   string // whether readers do not see it
	tombstone string // whether only its id and version are left, until it is pruned
}

// row is a row of a table. Its version is 0 if it does not exist.
type row struct {
	ID                 uuid.UUID
	Version            int64
	Content            json.RawMessage
	Deleted, Tombstone bool
}

// find returns the existing rows. In a transaction, it locks them until its end.
func (t table) find(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]row, error) {
	lock := ""
	if tx != nil {
		lock = "FOR UPDATE"
	}
	// One lookup per id: the plan of = ANY may be from when the table was empty. It would scan the
	// whole table until ANALYZE.
	text := `
		SELECT r.{key}, r.version, {row}, {deleted}, {tombstone}
		FROM (SELECT unnest($1::uuid[]) AS wanted ORDER BY 1) w
		CROSS JOIN LATERAL (SELECT * FROM {table} t WHERE t.{key} = wanted LIMIT 1 ` + lock + `) r`
	rows, err := query(ctx, t, tx, pgx.RowToStructByPos[row], text, ids)
	found := make(map[uuid.UUID]row, len(rows))
	for _, r := range rows {
		found[r.ID] = r
	}
	return found, err
}

// tableSide implements side. If whole is true, it has the tombstones of its table.
type tableSide struct {
	table

	whole bool
}

func (s tableSide) bound(ctx context.Context, after uuid.UUID, maxRows int) (uuid.UUID, error) {
	ids, err := query(ctx, s.table, nil, pgx.RowTo[uuid.UUID], "SELECT {key} FROM {table} WHERE {key} > $1 ORDER BY 1 LIMIT 1 OFFSET $2", after, maxRows-1)
	return append(ids, uuid.Max)[0], err
}

func (s tableSide) digest(ctx context.Context, after, upTo uuid.UUID, each bool) ([]digest, error) {
	return query(ctx, s.table, nil, pgx.RowToStructByPos[digest], `
		SELECT CASE WHEN $3 THEN r.{key} ELSE $2 END, count(*), sum(jsonb_hash_extended({row}, 0))::text
		FROM {table} r
		WHERE r.{key} > $1 AND r.{key} <= $2 AND ($4 OR NOT ({tombstone}))
		GROUP BY 1`, after, upTo, each, s.whole)
}

// sql returns a statement with the names and expressions of the table.
func (t table) sql(text string) string {
	return strings.NewReplacer("{table}", t.name, "{key}", t.key, "{row}", t.row, "{deleted}", t.deleted, "{tombstone}", t.tombstone).Replace(text)
}

// query runs a statement of a table in tx; if tx is nil, in a transaction of its own. The time zone is
// UTC in it, because jsonb has times as text.
func query[T any](ctx context.Context, t table, tx *pg.Tx, scan pgx.RowToFunc[T], text string, args ...any) (rows []T, err error) {
	run := func(ctx context.Context, tx *pg.Tx) error {
		queue(ctx, tx, "SET LOCAL TimeZone = 'UTC'")
		found, err := tx.Query(ctx, t.sql(text), args...)
		if err == nil {
			rows, err = pgx.CollectRows(found, scan)
		}
		return err
	}
	if tx == nil {
		err = pg.InTx(ctx, t.pool, "repair.Query", run)
	} else {
		err = run(ctx, tx)
	}
	return rows, pg.Wrap(err, "read %s", t.name)
}

// queue queues a statement that sqlc did not make.
func queue(ctx context.Context, tx *pg.Tx, sql string, args ...any) {
	_, err := tx.Exec(ctx, sql, args...)
	tx.Queue(err)
}
