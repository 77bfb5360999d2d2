package store

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// Playlists is the command side of playlists.
type Playlists struct {
	pool     *pgxpool.Pool
	queries  *sqlcgen.Queries
	onCommit func(envelope.Aggregate)
}

// NewPlaylists returns the command side of a pool. onCommit is called after a commit.
func NewPlaylists(pool *pgxpool.Pool, onCommit func(envelope.Aggregate)) *Playlists {
	return &Playlists{pool: pool, queries: queriesOver(pool), onCommit: onCommit}
}

// CreatePlaylist stores the first event of a playlist.
func (s *Playlists) CreatePlaylist(ctx context.Context, created *domain.PlaylistEvent) (domain.Playlist, error) {
	err := inTx(ctx, s.pool, "store.CreatePlaylist", func(ctx context.Context, q *sqlcgen.Queries) error {
		return recordPlaylist(ctx, q, created)
	})
	s.committed(created.Playlist.ID, err)
	return created.Playlist, wrap(err, "create playlist %s", created.Playlist.ID)
}

// ChangePlaylist applies a decision to a playlist under the lock of its row.
func (s *Playlists) ChangePlaylist(ctx context.Context, id uuid.UUID, decide domain.PlaylistDecision) (domain.Playlist, error) {
	var playlist domain.Playlist
	changed := false
	err := inTx(ctx, s.pool, "store.ChangePlaylist", func(ctx context.Context, q *sqlcgen.Queries) error {
		row, err := q.LockPlaylist(ctx, id)
		if err != nil {
			return notFound(err, id)
		}
		playlist = playlistOf(row)
		made, err := decide(playlist)
		if made == nil || err != nil {
			return err
		}
		playlist, changed = made.Playlist, true
		return recordPlaylist(ctx, q, made)
	})
	if changed {
		s.committed(id, err)
	}
	return playlist, wrap(err, "change playlist %s", id)
}

// GetPlaylist returns a playlist that is not deleted, or problem.NotFound.
func (s *Playlists) GetPlaylist(ctx context.Context, id uuid.UUID) (domain.Playlist, error) {
	row, err := s.queries.GetPlaylist(ctx, id)
	if err != nil {
		return domain.Playlist{}, wrap(notFound(err, id), "get playlist %s", id)
	}
	if row.DeleteTime != nil {
		return domain.Playlist{}, problem.Errorf(problem.NotFound, "playlist %q is deleted", id)
	}
	return playlistOf(row), nil
}

// recordPlaylist writes a playlist and its event. No other code writes playlists.
func recordPlaylist(ctx context.Context, q *sqlcgen.Queries, e *domain.PlaylistEvent) error {
	message, err := event.EncodePlaylist(e)
	if err != nil {
		return err
	}
	p := e.Playlist
	if p.Version == 1 {
		err = q.InsertPlaylist(ctx, sqlcgen.InsertPlaylistParams{
			ID: p.ID, Title: p.Title, VideoIds: notNil(p.VideoIDs), Version: p.Version,
			CreateTime: p.CreateTime, UpdateTime: p.UpdateTime, DeleteTime: optional(p.DeleteTime),
		})
	} else {
		err = q.UpdatePlaylist(ctx, sqlcgen.UpdatePlaylistParams{
			ID: p.ID, Title: p.Title, VideoIds: notNil(p.VideoIDs), Version: p.Version,
			UpdateTime: p.UpdateTime, DeleteTime: optional(p.DeleteTime),
		})
	}
	if err != nil {
		return err
	}
	return appendEvent(ctx, q, message)
}

func (s *Playlists) committed(id uuid.UUID, err error) {
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
		s.onCommit(envelope.Aggregate{Type: event.AggregatePlaylist, ID: id.String()})
	}
}

func notFound(err error, id uuid.UUID) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return problem.Errorf(problem.NotFound, "playlist %q does not exist", id)
	}
	return err
}

func playlistOf(row sqlcgen.VideoCatalogPlaylist) domain.Playlist {
	p := domain.Playlist{
		ID: row.ID, Title: row.Title, VideoIDs: row.VideoIds, Version: row.Version,
		CreateTime: row.CreateTime.UTC(), UpdateTime: row.UpdateTime.UTC(),
	}
	if row.DeleteTime != nil {
		p.DeleteTime = row.DeleteTime.UTC()
	}
	return p
}

// PlaylistViews is the query side of playlists.
type PlaylistViews struct {
	queries *sqlcgen.Queries
	inbox   *Inbox
}

// NewPlaylistViews returns the query side of a pool.
func NewPlaylistViews(pool *pgxpool.Pool) *PlaylistViews {
	return &PlaylistViews{queries: queriesOver(pool), inbox: NewInbox(pool)}
}

// Project applies events for a consumer in one transaction. Rows are locked in the order of
// their ids, so that two batches cannot deadlock. fresh is sorted in place: apply reads the
// outcomes in its order.
func (v *PlaylistViews) Project(ctx context.Context, consumerName string, events []domain.PlaylistEvent) ([]envelope.Outcome, error) {
	ids := mapSlice(events, func(e domain.PlaylistEvent) uuid.UUID { return e.ID })
	return v.inbox.apply(ctx, consumerName, ids, func(ctx context.Context, q *sqlcgen.Queries, fresh []int) ([]envelope.Outcome, error) {
		slices.SortStableFunc(fresh, func(a, b int) int {
			return bytes.Compare(events[a].Playlist.ID[:], events[b].Playlist.ID[:])
		})
		outcomes := make([]envelope.Outcome, len(fresh))
		for n, i := range fresh {
			p := events[i].Playlist
			before, err := q.ProjectPlaylist(ctx, sqlcgen.ProjectPlaylistParams{
				PlaylistID: p.ID, Title: p.Title, VideoIds: notNil(p.VideoIDs), Deleted: !p.DeleteTime.IsZero(), Version: p.Version,
			})
			switch {
			case err != nil:
				return nil, err
			case p.Version <= before:
				outcomes[n] = envelope.Stale
			case p.Version == before+1:
				outcomes[n] = envelope.Applied
			default:
				outcomes[n] = envelope.AppliedAfterGap
			}
		}
		return outcomes, nil
	})
}

// GetPlaylist returns the state that the events of a playlist made, or problem.NotFound.
func (v *PlaylistViews) GetPlaylist(ctx context.Context, id uuid.UUID) (domain.Playlist, error) {
	row, err := v.queries.GetPlaylistProjection(ctx, id)
	if err == nil && row.Deleted {
		err = pgx.ErrNoRows
	}
	if err != nil {
		return domain.Playlist{}, wrap(notFound(err, id), "get view of playlist %s", id)
	}
	return domain.Playlist{ID: row.PlaylistID, Title: row.Title, VideoIDs: row.VideoIds, Version: row.Version}, nil
}
