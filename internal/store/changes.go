package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// maxChangeBytes limits the text of a page of changes. A page ends with the
// entry that reaches it.
const maxChangeBytes = 64 << 10

// ListChanges returns at most maxRows changes after a position, in the order of
// their transactions. Of several changes of one entry it returns only the last.
// A change appears only after all older transactions in the database server
// have ended, so that no change is ever skipped. Until then the page is Held.
//
// If the position is of another database, or its transaction has not begun
// here, the result is the first page, marked Restarted.
func (c *Catalog) ListChanges(ctx context.Context, after domain.Position, maxRows int) (domain.ChangePage, error) {
	page, valid, err := c.readChanges(ctx, after, maxRows)
	if err == nil && !valid {
		page, _, err = c.readChanges(ctx, domain.Position{}, maxRows)
		page.Restarted = true
	}
	return page, pg.Wrap(err, "list changes")
}

// readChanges reads a page and the identity of the database in one round trip.
// valid reports whether the position belongs to that database. Both statements
// run on one connection, which does not survive a failover or a restore, so
// they see the same database.
func (c *Catalog) readChanges(ctx context.Context, after domain.Position, maxRows int) (page domain.ChangePage, valid bool, err error) {
	conn, err := pg.Acquire(ctx, c.pool)
	if err != nil {
		return page, false, err
	}
	defer conn.Release()
	var database sqlcgen.GetChangesDatabaseRow
	var rows []sqlcgen.ListProjectionChangesRow
	var batch pgx.Batch
	pg.SetTenant(ctx, &batch)
	// First: what it does not see as held back, the other statement sees as a change.
	batch.Queue(sqlcgen.GetChangesDatabase, after.Transaction).QueryRow(func(row pgx.Row) error {
		return row.Scan(&database.Identity, &database.Begun, &database.Held)
	})
	p := pg.NewPage(c.pool, maxRows)
	p.Bytes = maxChangeBytes
	batch.Queue(sqlcgen.ListProjectionChanges, after.Transaction, after.VideoID, p.MaxRows()).Query(func(found pgx.Rows) error {
		rows, err = pgx.CollectRows(p.Cut(found), pgx.RowToStructByPos[sqlcgen.ListProjectionChangesRow])
		return err
	})
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return page, false, err
	}
	page.Next = domain.Position{Database: database.Identity, Transaction: after.Transaction, VideoID: after.VideoID}
	page.More, page.Held = p.More, database.Held
	page.Changes = pg.MapSlice(rows, func(row sqlcgen.ListProjectionChangesRow) domain.Change {
		page.Next = domain.Position{Database: database.Identity, Transaction: row.ChangeXid, VideoID: row.VideoID}
		return domain.Change{
			Entry: entryOf(sqlcgen.GetProjectionRow{
				VideoID: row.VideoID, Title: row.Title, Description: row.Description, ReleaseYear: row.ReleaseYear, DurationMs: row.DurationMs,
				LanguageCode: row.LanguageCode, Tags: row.Tags, Visible: row.Visible, Deleted: row.Deleted, Version: row.Version,
				PublishTime: row.PublishTime, UpdateTime: row.UpdateTime, CreateUser: row.CreateUser, UpdateUser: row.UpdateUser,
			}),
			Position: page.Next, Rebuilt: row.Rebuilt,
		}
	})
	return page, after == domain.Position{} || database.Begun && after.Database == database.Identity, nil
}
