package store

import (
	"context"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg"
)

// PutEntries writes entries into the catalog, over any version.
func PutEntries(ctx context.Context, c *Catalog, entries []domain.Entry) error {
	news := make(map[uuid.UUID]domain.Entry, len(entries))
	for _, entry := range entries {
		news[entry.VideoID] = entry
	}
	return pg.InTx(ctx, c.pool, "store.PutEntries", func(ctx context.Context, tx *pg.Tx) error {
		WriteEntries(ctx, tx, news)
		return nil
	})
}
