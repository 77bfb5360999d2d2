package repair

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/admin"
)

// all returns the projections of this service that can be compared. Each has a file of its own.
// commands is nil in a process that uses only the query side.
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
	// repair gives entries the state of their owner, and appends the entry to the audit, in one
	// transaction. It returns how many entries it has written, and the ids of entries that it has
	// not, because they were changed at the same time. The other entries no longer differ.
	repair(ctx context.Context, ids []uuid.UUID, e admin.Entry) (repaired int, changed []uuid.UUID, err error)
	// moveFuture repairs some rows whose transaction id is in the future of a replaced database.
	// It reports whether there may be more.
	moveFuture(ctx context.Context) (more bool, err error)
}
