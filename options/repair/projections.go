package repair

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
)

// all returns the projections of this service that can be compared. cmd/entity adds a line for each
// entity that it makes. commands is nil in a process that uses only the query side.
func all(commands, queries *pgxpool.Pool) []projection {
	return []projection{
		newVideos(commands, queries),
	}
}

// projection is a projection that is compared with its owner, and repaired.
type projection interface {
	// source returns the two sides. If whole is true, it has rows that a comparison leaves out
	// because each side deletes them on its own, such as tombstones.
	source(whole bool) source
	// unknown returns those ids that neither side has.
	unknown(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error)
	// rewrite locks entries until the end of the transaction, and then reads their owners. It
	// writes the state of the owner to those that differ, over any version, and returns how they
	// differed. An entry without an owner becomes deleted.
	rewrite(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]seen, error)
	// moveFuture repairs some rows whose transaction id is in the future of a replaced database.
	// It reports whether there may be more.
	moveFuture(ctx context.Context) (more bool, err error)
}
