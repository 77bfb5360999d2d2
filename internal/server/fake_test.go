package server

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// fakeStore is both stores in memory. It applies the real decisions and
// projects their events, so that a test sees over the API what domain decides.
type fakeStore struct {
	// before, if set, is called first in every method, with its name.
	before func(ctx context.Context, method string) error
	begun  atomic.Int64 // reads of changes; counted by a test's before

	mu        sync.Mutex
	videos    map[uuid.UUID]domain.Video
	requests  map[uuid.UUID]fakeRequest
	entries   map[uuid.UUID]domain.Change
	position  uint64
	database  string
	changed   chan struct{}
	paused    bool // no event is projected
	otherSide bool // another process projects: nothing is announced here
	held      bool // changes are held back
	waiting   []domain.VideoEvent
	events    []domain.VideoEvent // all there ever were
	reads     int                 // of the catalog
}

type fakeRequest struct {
	fingerprint []byte
	video       uuid.UUID
}

// withStore runs a test in parallel, with a store of its own, in a bubble of synctest.
func withStore(t *testing.T, test func(t *testing.T, store *fakeStore)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newFakeStore()) })
}

func newFakeStore() *fakeStore {
	return &fakeStore{
		videos:   make(map[uuid.UUID]domain.Video),
		requests: make(map[uuid.UUID]fakeRequest),
		entries:  make(map[uuid.UUID]domain.Change),
		changed:  make(chan struct{}),
		database: "one",
	}
}

func (s *fakeStore) enter(ctx context.Context, method string) error {
	s.mu.Lock()
	before := s.before // a test may set it while a watch reads
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, method); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *fakeStore) CreateVideo(ctx context.Context, requestID uuid.UUID, fingerprint []byte, event *domain.VideoEvent) (domain.Video, error) {
	if err := s.enter(ctx, "CreateVideo"); err != nil {
		return domain.Video{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, ok := s.requests[requestID]; ok && requestID != uuid.Nil {
		if !bytes.Equal(first.fingerprint, fingerprint) {
			return domain.Video{}, problem.Errorf(problem.Exists, "the request id was used to create another video")
		}
		return s.videos[first.video], nil
	}
	s.requests[requestID] = fakeRequest{fingerprint, event.Video.ID}
	s.record(*event)
	return event.Video, nil
}

func (s *fakeStore) CreateVideos(ctx context.Context, requestIDs []uuid.UUID, fingerprints [][]byte, events []*domain.VideoEvent) (all []domain.Video, item int, err error) {
	for i, e := range events {
		v, err := s.CreateVideo(ctx, requestIDs[i], fingerprints[i], e)
		if err != nil {
			return nil, i, err
		}
		all = append(all, v)
	}
	return all, -1, nil
}

func (s *fakeStore) GetVideos(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]domain.Video, error) {
	found := make(map[uuid.UUID]domain.Video)
	for _, id := range ids {
		if v, err := s.GetVideo(ctx, id); err == nil {
			found[id] = v
		}
	}
	return found, ctx.Err()
}

func (s *fakeStore) ChangeVideo(ctx context.Context, id uuid.UUID, decide domain.VideoDecision) (domain.Video, error) {
	if err := s.enter(ctx, "ChangeVideo"); err != nil {
		return domain.Video{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.videos[id]
	if !ok {
		return domain.Video{}, problem.Errorf(problem.NotFound, "video %q does not exist", id)
	}
	event, err := decide(v)
	if event == nil || err != nil {
		return v, err
	}
	s.record(*event)
	return event.Video, nil
}

func (s *fakeStore) record(event domain.VideoEvent) {
	s.videos[event.Video.ID] = event.Video
	s.events = append(s.events, event)
	s.waiting = append(s.waiting, event)
	if !s.paused {
		s.projectWaiting()
	}
}

func (s *fakeStore) projectWaiting() {
	for _, event := range s.waiting {
		s.position++
		s.entries[event.Video.ID] = domain.Change{Entry: domain.EntryOf(event.Video), Position: domain.Position{Transaction: s.position, VideoID: event.Video.ID}}
	}
	s.waiting = nil
	if !s.otherSide {
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// pauseProjection stops the projection; resumeProjection catches up.
func (s *fakeStore) pauseProjection() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
}

func (s *fakeStore) resumeProjection() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = false
	s.projectWaiting()
}

func (s *fakeStore) allEvents() []domain.VideoEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

func (s *fakeStore) readCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *fakeStore) GetVideo(ctx context.Context, id uuid.UUID) (domain.Video, error) {
	if err := s.enter(ctx, "GetVideo"); err != nil {
		return domain.Video{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.videos[id]
	if !ok || v.Purged() {
		return v, problem.Errorf(problem.NotFound, "video %q does not exist", id)
	}
	return v, nil
}

func (s *fakeStore) ListVideos(ctx context.Context, q domain.VideoQuery) ([]domain.Video, bool, error) {
	if err := s.enter(ctx, "ListVideos"); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	order := func(a, b domain.Video) int {
		c := cmp.Or(a.CreateTime.Compare(b.CreateTime), bytes.Compare(a.ID[:], b.ID[:]))
		if q.OldestFirst {
			return c
		}
		return -c
	}
	var found []domain.Video
	for _, v := range s.videos {
		isAfter := q.After == nil || order(v, domain.Video{ID: q.After.ID, CreateTime: q.After.CreateTime}) > 0
		if isAfter && (q.ShowPurged || !v.Purged() && (q.ShowDeleted || !v.Deleted())) && (q.State == "" || v.State == q.State) &&
			(q.LanguageCode == "" || v.LanguageCode == q.LanguageCode) {
			found = append(found, v)
		}
	}
	slices.SortFunc(found, order)
	return found[:min(len(found), q.Limit)], len(found) > q.Limit, nil
}

func (s *fakeStore) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *fakeStore) GetEntry(ctx context.Context, id uuid.UUID) (domain.Entry, error) {
	if err := s.enter(ctx, "GetEntry"); err != nil {
		return domain.Entry{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	change, ok := s.entries[id]
	if !ok {
		return domain.Entry{}, problem.Errorf(problem.NotFound, "catalog entry %q does not exist", id)
	}
	return change.Entry, nil
}

func (s *fakeStore) ListEntries(ctx context.Context, q domain.EntryQuery) ([]domain.Entry, bool, error) {
	if err := s.enter(ctx, "ListEntries"); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	order := func(a, b domain.Entry) int {
		if q.ByTitle {
			return cmp.Or(strings.Compare(a.Title, b.Title), bytes.Compare(a.VideoID[:], b.VideoID[:]))
		}
		return -cmp.Or(a.PublishTime.Compare(b.PublishTime), bytes.Compare(a.VideoID[:], b.VideoID[:]))
	}
	var found []domain.Entry
	for _, change := range s.entries {
		e := change.Entry
		isAfter := q.After == nil ||
			order(e, domain.Entry{VideoID: q.After.VideoID, PublishTime: q.After.PublishTime, VideoDetails: domain.VideoDetails{Title: q.After.Title}}) > 0
		hasTags := !slices.ContainsFunc(q.Tags, func(tag string) bool { return !slices.Contains(e.Tags, tag) })
		if isAfter && hasTags && e.Visible && (q.LanguageCode == "" || e.LanguageCode == q.LanguageCode) &&
			(q.ReleaseYear == 0 || e.ReleaseYear == q.ReleaseYear) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, order)
	return found[:min(len(found), q.Limit)], len(found) > q.Limit, nil
}

// SearchEntries ranks by how often the words are in the title.
func (s *fakeStore) SearchEntries(ctx context.Context, q domain.SearchQuery) ([]domain.Match, bool, error) {
	if err := s.enter(ctx, "SearchEntries"); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	order := func(a, b domain.Match) int {
		return -cmp.Or(cmp.Compare(a.Rank, b.Rank), bytes.Compare(a.VideoID[:], b.VideoID[:]))
	}
	var found []domain.Match
	for _, change := range s.entries {
		m := domain.Match{Entry: change.Entry, Rank: float32(strings.Count(change.Title, q.Words)) / 3}
		isAfter := q.After == nil || order(m, domain.Match{Entry: domain.Entry{VideoID: q.After.VideoID}, Rank: q.After.Rank}) > 0
		if m.Visible && m.Rank > 0 && isAfter {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, order)
	return found[:min(len(found), q.Limit)], len(found) > q.Limit, nil
}

func (s *fakeStore) ListChanges(ctx context.Context, after domain.Position, limit int) (domain.ChangePage, error) {
	if err := s.enter(ctx, "ListChanges"); err != nil {
		return domain.ChangePage{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	page := domain.ChangePage{Held: s.held, Restarted: after != domain.Position{} && after.Database != s.database}
	if page.Restarted {
		after = domain.Position{}
	}
	for _, change := range s.entries {
		if change.Position.Transaction > after.Transaction {
			change.Position.Database = s.database
			page.Changes = append(page.Changes, change)
		}
	}
	slices.SortFunc(page.Changes, func(a, b domain.Change) int { return cmp.Compare(a.Position.Transaction, b.Position.Transaction) })
	page.More = len(page.Changes) > limit
	page.Changes = page.Changes[:min(len(page.Changes), limit)]
	page.Next = domain.Position{Database: s.database, Transaction: after.Transaction, VideoID: after.VideoID}
	if n := len(page.Changes); n > 0 {
		page.Next = page.Changes[n-1].Position
	}
	return page, nil
}
