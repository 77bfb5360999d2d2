package server

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/types/known/durationpb"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/transport"
)

// catalogEntries is the prefix of resource names.
const catalogEntries = "catalogEntries/"

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
	// changes of hidden entries. Of several changes of one entry it returns only
	// the last. For a position that is not valid in its database it returns the
	// first page, marked Restarted.
	ListChanges(ctx context.Context, after domain.Position, limit int) (domain.ChangePage, error)
}

// Changes announces changes of the catalog.
type Changes interface {
	// Changed returns a channel that is closed at the next change of the
	// catalog by this process. Other processes also change the catalog, so
	// callers must poll too.
	Changed() <-chan struct{}
}

// CatalogConfig has the settings of CatalogService. The zero value works.
type CatalogConfig struct {
	// MaxWait is the longest time that GetCatalogEntry waits for a version. It
	// waits for at most nine tenths of the time of its call. Default: 10 s.
	MaxWait time.Duration
	// MaxWaiting is the largest number of calls that wait for a version at the
	// same time. One caller may have a quarter of them. More are rejected with
	// RESOURCE_EXHAUSTED. Default: 250.
	MaxWaiting int
	// DrainWait is how long calls still wait for a version when the server
	// begins to stop. It must be less than transport.Config.DrainTimeout. Default:
	// 2.25 s.
	DrainWait time.Duration
}

// withDefaults returns the config with each zero value replaced by its default.
func (c CatalogConfig) withDefaults() CatalogConfig {
	c.MaxWait = cmp.Or(c.MaxWait, 10*time.Second)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 250)
	c.DrainWait = cmp.Or(c.DrainWait, 2250*time.Millisecond)
	return c
}

// Catalog returns CatalogService, the queries.
func Catalog(cfg CatalogConfig, store CatalogStore, changes Changes) transport.Service {
	return catalogOf(newCatalogService(cfg, store, changes))
}

func catalogOf(handler *catalogService) transport.Service {
	return transport.Service{
		Desc: &catalogv1.CatalogService_ServiceDesc, Side: transport.SideQueries,
		Handler: handler, Wait: handler.waits.running.Wait,
		Gateway: catalogv1.RegisterCatalogServiceHandler,
	}
}

func newCatalogService(cfg CatalogConfig, store CatalogStore, changes Changes) *catalogService {
	cfg = cfg.withDefaults()
	return &catalogService{
		cfg: cfg, store: store, changes: changes, waits: newWaits(cfg.MaxWaiting),
		callerOf: transport.Caller, draining: transport.Draining,
	}
}

// catalogService implements the queries.
type catalogService struct {
	catalogv1.UnimplementedCatalogServiceServer
	cfg      CatalogConfig
	store    CatalogStore
	changes  Changes
	looks    singleflight.Group // shared reads of watches
	begun    atomic.Int64       // number of watches that have begun to read
	waits    *waits
	callerOf func(context.Context) string          // identifies the caller of a call
	draining func(context.Context) <-chan struct{} // closed when the server begins to stop
}

func (s *catalogService) GetCatalogEntry(ctx context.Context, request *catalogv1.GetCatalogEntryRequest) (*catalogv1.CatalogEntry, error) {
	id, err := aip.ParseName("name", catalogEntries, request.GetName())
	if err != nil {
		return nil, err
	}
	entry, err := s.look(ctx, id)
	if want := request.GetMinVersion(); err == nil && entry.Version < want {
		entry, err = s.awaitVersion(ctx, id, want)
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

func (s *catalogService) ListCatalogEntries(ctx context.Context, request *catalogv1.ListCatalogEntriesRequest) (*catalogv1.ListCatalogEntriesResponse, error) {
	var query domain.EntryQuery
	if err := filterEntries(request.GetFilter(), &query); err != nil {
		return nil, err
	}
	if err := orderEntries(request.GetOrderBy(), &query); err != nil {
		return nil, err
	}
	cursor := func(e domain.Entry) domain.EntryCursor {
		if query.ByTitle {
			return domain.EntryCursor{Title: e.Title, VideoID: e.VideoID}
		}
		return domain.EntryCursor{PublishTime: e.PublishTime, VideoID: e.VideoID}
	}
	page, next, err := aip.List(request, entryToProto, cursor, func(after *domain.EntryCursor, limit int) ([]domain.Entry, bool, error) {
		query.After, query.Limit = after, limit
		return s.store.ListEntries(ctx, query)
	})
	return &catalogv1.ListCatalogEntriesResponse{CatalogEntries: page, NextPageToken: next}, err
}

func (s *catalogService) SearchCatalogEntries(ctx context.Context, request *catalogv1.SearchCatalogEntriesRequest) (*catalogv1.SearchCatalogEntriesResponse, error) {
	cursor := func(m domain.Match) domain.MatchCursor { return domain.MatchCursor{Rank: m.Rank, VideoID: m.VideoID} }
	page, next, err := aip.List(request, matchToProto, cursor, func(after *domain.MatchCursor, limit int) ([]domain.Match, bool, error) {
		return s.store.SearchEntries(ctx, domain.SearchQuery{Words: request.GetQuery(), After: after, Limit: limit})
	})
	return &catalogv1.SearchCatalogEntriesResponse{CatalogEntries: page, NextPageToken: next}, err
}

func matchToProto(m domain.Match) *catalogv1.CatalogEntry { return entryToProto(m.Entry) }

func entryToProto(e domain.Entry) *catalogv1.CatalogEntry {
	return &catalogv1.CatalogEntry{
		Name:         catalogEntries + e.VideoID.String(),
		Video:        videoCollection + e.VideoID.String(),
		Title:        e.Title,
		Description:  e.Description,
		ReleaseYear:  e.ReleaseYear,
		Duration:     aip.IfSet(e.Duration, durationpb.New),
		LanguageCode: e.LanguageCode,
		Tags:         e.Tags,
		Version:      e.Version,
		PublishTime:  aip.Timestamp(e.PublishTime),
		UpdateTime:   aip.Timestamp(e.UpdateTime),
		CreateUser:   e.CreateUser,
		UpdateUser:   e.UpdateUser,
	}
}
