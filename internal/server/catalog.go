package server

import (
	"context"
	"crypto/cipher"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// CatalogStore reads the catalog. It is safe for concurrent use.
type CatalogStore interface {
	// GetEntry returns an entry, even a hidden one. It returns problem.NotFound
	// if no event of the video has arrived.
	GetEntry(ctx context.Context, id uuid.UUID) (domain.Entry, error)
	// ListEntries returns a page of the visible entries, and whether more
	// follow.
	ListEntries(ctx context.Context, query domain.EntryQuery) (entries []domain.Entry, more bool, err error)
	// SearchEntries returns a page of the visible entries that match, best
	// first, and whether more follow.
	SearchEntries(ctx context.Context, query domain.SearchQuery) (matches []domain.Match, more bool, err error)
	// ListChanges returns the changes after a position, in order, including
	// those of hidden entries. Of several changes of one entry it returns only
	// the last. For a position of another database it returns the first page,
	// marked Restarted.
	ListChanges(ctx context.Context, after domain.Position, limit int) (domain.ChangePage, error)
}

// Changes announces changes of the catalog.
type Changes interface {
	// Changed returns a channel that is closed at the next change of the
	// catalog by this process. Other processes also change the catalog, so
	// callers must poll too.
	Changed() <-chan struct{}
}

// catalogService implements the queries.
type catalogService struct {
	catalogv1.UnimplementedCatalogServiceServer
	store   CatalogStore
	changes Changes
	seal    cipher.AEAD        // encrypts tokens
	looks   singleflight.Group // shared reads of watches
	begun   atomic.Int64       // number of watches that have begun to read
	metrics *catalogMetrics
	maxWait time.Duration // longest wait of GetCatalogEntry for a version
	waits   *waits
	// callerOf identifies a caller, for the limit per caller of waits.
	callerOf func(context.Context) string
	// draining is closed when the server begins to stop. From then on
	// GetCatalogEntry waits at most drainWait.
	draining  <-chan struct{}
	drainWait time.Duration
}

func (s *catalogService) GetCatalogEntry(ctx context.Context, request *catalogv1.GetCatalogEntryRequest) (*catalogv1.CatalogEntry, error) {
	id, err := parseName("name", catalogEntries, request.GetName())
	if err != nil {
		return nil, err
	}
	entry, err := s.look(ctx, id)
	if want := request.GetMinVersion(); err == nil && want > 0 {
		s.metrics.behind(ctx, want-entry.Version)
		if entry.Version < want {
			start := time.Now()
			entry, err = s.awaitVersion(ctx, id, want)
			s.metrics.waited(ctx, time.Since(start))
		}
	}
	if err != nil {
		return nil, err
	}
	if !entry.Visible {
		return nil, problem.Errorf(problem.NotFound, "catalog entry %q does not exist", id)
	}
	return entryToProto(entry), nil
}

// look returns an entry. An entry that does not exist has version 0.
func (s *catalogService) look(ctx context.Context, id uuid.UUID) (domain.Entry, error) {
	entry, err := s.store.GetEntry(ctx, id)
	if known, ok := errors.AsType[*problem.Error](err); ok && known.Kind == problem.NotFound {
		return domain.Entry{}, nil
	}
	return entry, err
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (s *catalogService) ListCatalogEntries(ctx context.Context, request *catalogv1.ListCatalogEntriesRequest) (*catalogv1.ListCatalogEntriesResponse, error) {
	p, err := newPager[domain.EntryCursor](s.seal, request)
	if err != nil {
		return nil, err
	}
	query := domain.EntryQuery{After: p.after, Limit: p.size, MaxBytes: maxPageBytes}
	if err := filterEntries(request.GetFilter(), &query); err != nil {
		return nil, err
	}
	if err := orderEntries(request.GetOrderBy(), &query); err != nil {
		return nil, err
	}
	found, more, err := s.store.ListEntries(ctx, query)
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf(p, found, more, entryToProto, func(e domain.Entry) domain.EntryCursor {
		cursor := domain.EntryCursor{PublishTime: e.PublishTime, VideoID: e.VideoID}
		if query.ByTitle {
			cursor = domain.EntryCursor{Title: e.Title, VideoID: e.VideoID}
		}
		return cursor
	})
	return &catalogv1.ListCatalogEntriesResponse{CatalogEntries: page, NextPageToken: next}, err
}

func (s *catalogService) SearchCatalogEntries(ctx context.Context, request *catalogv1.SearchCatalogEntriesRequest) (*catalogv1.SearchCatalogEntriesResponse, error) {
	p, err := newPager[domain.MatchCursor](s.seal, request)
	if err != nil {
		return nil, err
	}
	found, more, err := s.store.SearchEntries(ctx, domain.SearchQuery{
		Words: request.GetQuery(), After: p.after, Limit: p.size, MaxBytes: maxPageBytes,
	})
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf(p, found, more, matchToProto, func(m domain.Match) domain.MatchCursor {
		return domain.MatchCursor{Rank: m.Rank, VideoID: m.VideoID}
	})
	return &catalogv1.SearchCatalogEntriesResponse{CatalogEntries: page, NextPageToken: next}, err
}

func matchToProto(m domain.Match) *catalogv1.CatalogEntry { return entryToProto(m.Entry) }
