package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/transport"
)

func entryName(v *videov1.Video) string {
	return "catalogEntries/" + strings.TrimPrefix(v.GetName(), "videos/")
}

// A caller that passes the version from a command as min_version reads its own
// write, however far behind the projection is.
func TestGetCatalogEntryWaitsForAVersion(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{})
	v := mustCreate(t, c, film())
	r.store.pauseProjection()
	published := mustPublish(t, c, v)
	if _, err := c.catalog.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: entryName(v)}); status.Code(err) != codes.NotFound {
		t.Errorf("without min_version: %v, want NotFound at once", err)
	}
	before := r.store.readCount()
	go func() {
		for r.store.readCount() < before+2 { // it waits by now
			time.Sleep(time.Millisecond)
		}
		r.store.resumeProjection()
	}()
	entry, err := c.catalog.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: entryName(v), MinVersion: published.GetVersion()})
	if err != nil || entry.GetVersion() != published.GetVersion() {
		t.Errorf("with min_version: %v, %v, want version %d", entry, err, published.GetVersion())
	}
}

// The error of a call that waited in vain has the version of the entry.
func TestGetCatalogEntryGivesUpWaiting(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{}, func(d *deps) { d.catalogConfig.MaxWait = 300 * time.Millisecond })
	v := mustCreate(t, c, film())
	_, err := c.catalog.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: entryName(v), MinVersion: 2})
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "version 1") {
		t.Errorf("of a video: %v, want DeadlineExceeded that says version 1", err)
	}
	_, err = c.catalog.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + uuid.NewString(), MinVersion: 1})
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "version 0") {
		t.Errorf("of a video nobody knows: %v, want DeadlineExceeded that says version 0", err)
	}
	if log := r.log.String(); log != "" {
		t.Errorf("log = %s, want nothing", log)
	}
}

// A call waits for nine tenths of its deadline, so the error has a tenth of it to
// arrive.
func TestGetCatalogEntryGivesUpBeforeItsCaller(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		v := seed(t, store, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := testCatalogService(store).GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: catalogEntries + v.ID.String(), MinVersion: 2})
		if took := time.Since(start); took != 900*time.Millisecond || err == nil || !strings.Contains(err.Error(), "version 1") {
			t.Errorf("after %s: %v, want an error after 900ms that says version 1", took, err)
		}
	})
}

func testCatalogService(store *fakeStore) *catalogService {
	return newCatalogService(CatalogConfig{DrainWait: 2 * time.Second}, store, store)
}

func seed(t *testing.T, store *fakeStore, published bool) domain.Video {
	t.Helper()
	stamp := domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()}
	event, err := domain.CreateVideo(uuid.Must(uuid.NewV7()), domain.VideoDetails{Title: "x"}, stamp)
	must(t, err)
	v, err := store.CreateVideo(t.Context(), uuid.Nil, nil, event)
	if err == nil && published {
		v, err = store.ChangeVideo(t.Context(), v.ID, domain.PublishVideo(domain.AnyVersion, stamp))
	}
	must(t, err)
	return v
}

// A waiting call sees a change by this process at once, and a change by another
// process soon. It reads seldom, whether the projection is busy or quiet.
func TestGetCatalogEntryLooksSoonAndSeldom(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		otherSide bool          // another process projects
		noise     time.Duration // how often something else changes; 0: never
		after     time.Duration // when the version comes
		within    time.Duration // how long after that the call may end
		reads     int           // at most
	}{
		"this process":         {false, 0, 3 * time.Second, 5 * time.Millisecond, 20},
		"another process":      {true, 0, 3 * time.Second, 250 * time.Millisecond, 20},
		"at once":              {false, 0, time.Millisecond, 5 * time.Millisecond, 3},
		"while others change":  {false, time.Millisecond, time.Second, 5 * time.Millisecond, 210},
		"another one, at once": {true, 0, time.Millisecond, 20 * time.Millisecond, 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				store.otherSide = tt.otherSide
				v := seed(t, store, false)
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					for tt.noise > 0 {
						select {
						case <-stop:
							return
						case <-time.After(tt.noise):
							store.mu.Lock()
							store.projectWaiting()
							store.mu.Unlock()
						}
					}
				}()
				time.AfterFunc(tt.after, func() {
					_, _ = store.ChangeVideo(context.Background(), v.ID, domain.PublishVideo(domain.AnyVersion, domain.Stamp{Time: time.Now()}))
				})
				began := time.Now()
				entry, err := testCatalogService(store).GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: catalogEntries + v.ID.String(), MinVersion: 2})
				if err != nil || entry.GetVersion() != 2 {
					t.Errorf("entry = %v, %v, want version 2", entry, err)
				}
				if got := time.Since(began) - tt.after; got > tt.within {
					t.Errorf("answered %v after the version came, want within %v", got, tt.within)
				}
				if got := store.readCount(); got > tt.reads {
					t.Errorf("%d reads, want at most %d", got, tt.reads)
				}
			})
		})
	}
}

// A change between the read and the wait is not missed: otherwise the call would
// wait until the next poll.
func TestGetCatalogEntryMissesNoChange(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		v := seed(t, store, false)
		reads := 0
		service := testCatalogService(store)
		service.store = readHook{store, func() {
			if reads++; reads == 2 { // the first in awaitVersion
				_, _ = store.ChangeVideo(context.Background(), v.ID, domain.PublishVideo(domain.AnyVersion, domain.Stamp{Time: time.Now()}))
			}
		}}
		began := time.Now()
		_, err := service.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: catalogEntries + v.ID.String(), MinVersion: 2})
		if took := time.Since(began); err != nil || took > awaitGap {
			t.Errorf("answered %v after %v, want nil within %v", err, took, awaitGap)
		}
	})
}

// readHook calls a function after every read of an entry.
type readHook struct {
	CatalogStore
	after func()
}

func (h readHook) GetEntry(ctx context.Context, id uuid.UUID) (domain.Entry, error) {
	entry, err := h.CatalogStore.GetEntry(ctx, id)
	h.after()
	return entry, err
}

// When the server stops, a call waits for DrainWait at most.
func TestGetCatalogEntryWaitsLessWhenDraining(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		published bool
		want      error
		after     time.Duration
	}{
		"in vain":      {false, transport.ErrDraining, 3 * time.Second},
		"with success": {true, nil, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				v := seed(t, store, false)
				service := testCatalogService(store)
				draining := make(chan struct{})
				service.draining = func(context.Context) <-chan struct{} { return draining }
				time.AfterFunc(time.Second, func() { close(draining) })
				if tt.published {
					time.AfterFunc(tt.after, func() {
						_, _ = store.ChangeVideo(context.Background(), v.ID, domain.PublishVideo(domain.AnyVersion, domain.Stamp{Time: time.Now()}))
					})
				}
				began := time.Now()
				_, err := service.GetCatalogEntry(t.Context(), &catalogv1.GetCatalogEntryRequest{Name: catalogEntries + v.ID.String(), MinVersion: 2})
				if took := time.Since(began).Round(100 * time.Millisecond); !errors.Is(err, tt.want) || took != tt.after {
					t.Errorf("answered %v after %v, want %v after %v", err, took, tt.want, tt.after)
				}
			})
		})
	}
}
