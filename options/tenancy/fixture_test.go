package tenancy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/tenant"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

// letters makes a table of tenants, with the policies that cmd/entity --tenant gives to its tables. No entity has a digit in its plural.
const letters = `
	CREATE ROLE %[1]s_owner; CREATE ROLE %[1]s_loops LOGIN IN ROLE video_catalog_rw, video_catalog_read_rw;
	CREATE ROLE %[1]s_calls LOGIN IN ROLE video_catalog_calls, video_catalog_read_calls;
	CREATE TABLE video_catalog.letters_1 (tenant_id text NOT NULL CHECK (tenant_id <> ''), id uuid PRIMARY KEY, note text NOT NULL, create_time timestamptz NOT NULL DEFAULT now());
	CREATE INDEX ON video_catalog.letters_1 (tenant_id, create_time, id);
	ALTER TABLE video_catalog.letters_1 ENABLE ROW LEVEL SECURITY; ALTER TABLE video_catalog.letters_1 FORCE ROW LEVEL SECURITY;
	CREATE POLICY calls ON video_catalog.letters_1 TO video_catalog_calls USING (tenant_id = current_setting('app.tenant', true));
	CREATE POLICY loops ON video_catalog.letters_1 TO video_catalog_rw, support_ro USING (true);
	CREATE POLICY owner ON video_catalog.letters_1 TO %[1]s_owner USING (true);
	GRANT SELECT, INSERT, UPDATE ON video_catalog.letters_1 TO video_catalog_calls, video_catalog_rw;
	ALTER TABLE video_catalog.letters_1 OWNER TO %[1]s_owner`

// fixture is a database with letters.
type fixture struct {
	name         string // begins the names of its users, because users belong to the whole server
	admin        *pgxpool.Pool
	loops, calls *pgxpool.Pool
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{admin: pgtest.Pool(t, 4)}
	f.name = f.admin.Config().ConnConfig.Database
	pgtest.Execute(t, f.admin, fmt.Sprintf(letters, f.name))
	f.loops, f.calls = pgtest.Open(t, f.url(f.name+"_loops"), 8), pgtest.Open(t, f.url(f.name+"_calls"), 8)
	return f
}

// url returns the URL of the database for a user.
func (f *fixture) url(user string) string {
	return f.admin.Config().ConnString() + "&user=" + user
}

// write writes a letter, as a store would.
func write(ctx context.Context, pool *pgxpool.Pool, of, note string) (uuid.UUID, error) {
	id := uuid.Must(uuid.NewV7())
	side := pg.NewCommandSide(pool, "letter", nil)
	return side.Create(ctx, "write", uuid.Nil, nil, id, record(of, id, note))
}

func record(of string, id uuid.UUID, note string) func(ctx context.Context, tx *pg.Tx) error {
	return recordIn("letters_1", of, id, note)
}

func recordIn(table, of string, id uuid.UUID, note string) func(ctx context.Context, tx *pg.Tx) error {
	return func(ctx context.Context, tx *pg.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO video_catalog."+table+" (tenant_id, id, note) VALUES ($1, $2, $3)", of, id, note)
		tx.Queue(err)
		pg.AppendEvent(ctx, tx, envelope.Message{
			ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id.String(), Type: "Written", Version: 1, SchemaVersion: 1,
			Payload: []byte(note), OccurredAt: time.Now(),
		})
		return nil
	}
}

const page = "SELECT tenant_id FROM video_catalog.letters_1 ORDER BY create_time, id LIMIT 20"

// owners returns the tenants of the rows of a query.
func owners(ctx context.Context, on pg.DB, sql string, args ...any) (string, error) {
	rows, err := on.Query(ctx, sql, args...)
	if err != nil {
		return "", err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(found, " "), err
}

// acme is the context of a call of a tenant.
func acme(t testing.TB) context.Context { t.Helper(); return tenant.With(t.Context(), "acme") }
