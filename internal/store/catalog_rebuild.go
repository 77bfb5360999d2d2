package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// CatalogProjection is the table of the catalog, for NewRebuild.
const CatalogProjection = "video_projection"

// catalogRow is a row of the catalog. Its fields are the columns that an owner knows.
type catalogRow struct {
	VideoID      uuid.UUID  `json:"video_id"`
	Title        string     `json:"title"`
	Description  string     `json:"description"`
	ReleaseYear  int32      `json:"release_year"`
	DurationMs   int64      `json:"duration_ms"`
	LanguageCode string     `json:"language_code"`
	Tags         []string   `json:"tags"`
	Visible      bool       `json:"visible"`
	Deleted      bool       `json:"deleted"`
	Version      int64      `json:"version"`
	PublishTime  *time.Time `json:"publish_time"`
	UpdateTime   time.Time  `json:"update_time"`
	Search       string     `json:"search"`
}

// CatalogRows returns entries in the form of RebuildRows.
func CatalogRows(entries []domain.Entry) (json.RawMessage, error) {
	rows := make([]catalogRow, len(entries)) // no entries are [], not null
	for i, e := range entries {
		rows[i] = catalogRow{
			VideoID: e.VideoID, Title: e.Title, Description: e.Description, ReleaseYear: e.ReleaseYear, DurationMs: e.Duration.Milliseconds(),
			LanguageCode: e.LanguageCode, Tags: append([]string{}, e.Tags...), Visible: e.Visible, Deleted: e.Deleted, Version: e.Version,
			PublishTime: optional(e.PublishTime), UpdateTime: e.UpdateTime, Search: searchOf(e),
		}
	}
	text, err := json.Marshal(rows)
	if err != nil {
		return nil, fmt.Errorf("rows of the catalog: %w", err)
	}
	return text, nil
}

// FindEntries returns the existing entries among ids.
func (c *Catalog) FindEntries(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]domain.Entry, error) {
	rows, err := c.queries.GetProjections(ctx, ids)
	if err != nil {
		return nil, wrap(err, "find %d entries", len(ids))
	}
	found := make(map[uuid.UUID]domain.Entry, len(rows))
	for _, row := range rows {
		found[row.VideoID] = entryOf(sqlcgen.GetProjectionRow(row))
	}
	return found, nil
}
