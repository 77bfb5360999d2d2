package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/tenant"
	"example.com/videocatalog/internal/transport"
)

// Calls that wait for the same entry share one reader. Each call waits for its own
// version and no longer than its deadline. The last call to leave stops the reader.
func TestWaitsOfOneEntryShareAReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const calls = 100
		store := newFakeStore()
		store.otherSide = true
		v := seed(t, store, false)
		service := testCatalogService(store)
		service.waits = newWaits(4 * calls)
		request := &catalogv1.GetCatalogEntryRequest{Name: catalogEntries + v.ID.String(), MinVersion: 2}
		var waiting sync.WaitGroup
		began := time.Now()
		for n := range calls {
			waiting.Go(func() {
				time.Sleep(time.Duration(n) * time.Millisecond)
				if n%2 == 1 { // leaves early
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := service.GetCatalogEntry(ctx, request); err == nil {
						t.Error("a call that waits for a second only = nil, want an error")
					}
					return
				}
				if entry, err := service.GetCatalogEntry(t.Context(), request); err != nil || entry.GetVersion() != 2 {
					t.Errorf("GetCatalogEntry() = %v, %v, want version 2", entry, err)
				}
			})
		}
		time.Sleep(3 * time.Second)
		_, err := store.ChangeVideo(t.Context(), v.ID, domain.PublishVideo(domain.AnyVersion, domain.Stamp{Time: time.Now()}))
		must(t, err)
		waiting.Wait()
		if took := time.Since(began); took > 3*time.Second+awaitPollMax {
			t.Errorf("the calls waited for %v, want to the change after 3 s", took)
		}
		// One read per call when the version comes, and the reads of one reader.
		if got := store.readCount() - calls; got > 60 {
			t.Errorf("%d reads for %d calls that wait together, want as for one", got, calls)
		}
		if len(service.waits.readers) != 0 || service.waits.all != 0 || len(service.waits.taken) != 0 {
			t.Errorf("left behind: %d readers, %d places, of %d callers", len(service.waits.readers), service.waits.all, len(service.waits.taken))
		}
	})
}

// Calls of two tenants share no reader, whose result the other tenant may not see.
func TestTenantsShareNoRead(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		v := seed(t, store, false)
		service := testCatalogService(store)
		request := &catalogv1.GetCatalogEntryRequest{Name: catalogEntries + v.ID.String(), MinVersion: 2}
		var waiting sync.WaitGroup
		for _, of := range []string{"acme", "other", "acme"} {
			waiting.Go(func() {
				ctx, cancel := context.WithTimeout(tenant.With(t.Context(), of), time.Second)
				defer cancel()
				_, _ = service.GetCatalogEntry(ctx, request) // the version never comes
			})
		}
		synctest.Wait()
		service.waits.mu.Lock()
		if got := len(service.waits.readers); got != 2 {
			t.Errorf("%d readers of one entry for two tenants, want one each", got)
		}
		service.waits.mu.Unlock()
		waiting.Wait()
	})
}

// An entry that cannot be read fails the calls that wait for it, and no later call.
func TestWaitsEndWhenTheEntryCannotBeRead(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		v := seed(t, store, false)
		service := testCatalogService(store)
		request := &catalogv1.GetCatalogEntryRequest{Name: catalogEntries + v.ID.String(), MinVersion: 2}
		failure := errors.New("no connection")
		results := make(chan error)
		for range 2 {
			go func() {
				_, err := service.GetCatalogEntry(t.Context(), request)
				results <- err
			}()
		}
		synctest.Wait()
		store.mu.Lock()
		store.before = func(context.Context, string) error { return failure }
		store.mu.Unlock()
		for range 2 {
			if err := <-results; !errors.Is(err, failure) {
				t.Errorf("a call that waits = %v, want %v", err, failure)
			}
		}
		store.mu.Lock()
		store.before = nil
		store.mu.Unlock()
		if _, err := service.GetCatalogEntry(t.Context(), request); !isKind(err, late) {
			t.Errorf("a call after it = %v, want it to wait", err)
		}
	})
}

// longWaits lets eight calls wait until the test ends them.
func longWaits(d *deps) { d.catalogConfig = CatalogConfig{MaxWaiting: 8, MaxWait: time.Hour} }

// The number of calls that wait is limited, in total and per caller. A call that
// does not have to wait does not count.
func TestWaitsHavePlaces(t *testing.T) {
	t.Parallel()
	r, c := serve(t, transport.Config{CallTimeout: 2 * time.Hour}, longWaits)
	r.mu.Lock()
	r.admit = func(ctx context.Context, _ string) (string, error) {
		return fmt.Sprint(metadata.ValueFromIncomingContext(ctx, "authorization")), nil
	}
	r.mu.Unlock()
	v := mustCreate(t, c, film())
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	wait := func(caller string) error {
		_, err := c.catalog.GetCatalogEntry(metadata.AppendToOutgoingContext(ctx, "authorization", caller), &catalogv1.GetCatalogEntryRequest{Name: entryName(v), MinVersion: 2})
		return err
	}
	hold := func(caller string, all int) {
		t.Helper()
		ended := make(chan error, 1)
		waiting.Go(func() { ended <- wait(caller) }) // ended by cancel
		for {
			w := r.catalog.waits
			w.mu.Lock()
			now := w.all
			w.mu.Unlock()
			if now == all {
				return
			}
			select {
			case err := <-ended:
				t.Fatalf("call %d that waits, of %s = %v, want it to wait", all, caller, err)
			case <-time.After(time.Millisecond):
			}
		}
	}
	hold("a", 1)
	hold("a", 2)
	if err := wait("a"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third call of one caller that waits = %v, want ResourceExhausted", err)
	}
	for n := range 6 {
		hold(fmt.Sprint("b", n/2), 3+n)
	}
	if err := wait("c"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a ninth call that waits = %v, want ResourceExhausted", err)
	}
	if _, err := c.catalog.GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{Name: entryName(v), MinVersion: 1}); status.Code(err) != codes.NotFound {
		t.Errorf("a call that has nothing to wait for = %v, want NotFound: a draft", err)
	}
}
