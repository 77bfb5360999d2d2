package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/transport"
)

type watchStream = grpc.ServerStreamingClient[catalogv1.WatchCatalogEntriesResponse]

// next returns the next message in words: +title, -name, restarted, or beat.
func next(t *testing.T, stream watchStream) (text, token string) {
	t.Helper()
	response, err := stream.Recv()
	if err != nil {
		t.Fatalf("Recv() = %v", err)
	}
	return inWords(response), response.GetResumeToken()
}

func inWords(response *catalogv1.WatchCatalogEntriesResponse) string {
	switch change := response.GetChange().(type) {
	case *catalogv1.WatchCatalogEntriesResponse_Updated:
		return "+" + change.Updated.GetTitle()
	case *catalogv1.WatchCatalogEntriesResponse_Removed:
		return "-" + change.Removed
	case *catalogv1.WatchCatalogEntriesResponse_Restarted:
		return "restarted"
	}
	return "beat"
}

func watchFrom(t *testing.T, c client, token string) watchStream {
	t.Helper()
	stream, err := c.catalog.WatchCatalogEntries(t.Context(), &catalogv1.WatchCatalogEntriesRequest{ResumeToken: token})
	must(t, err)
	return stream
}

// A watch sends the visible entries, then the changes. With the token of its last
// message, the next watch continues there.
func TestWatchTellsStateAndChanges(t *testing.T) {
	t.Parallel()
	_, c := serve(t, transport.Config{})
	mustCreate(t, c, &videov1.Video{Title: "a draft"})
	hide := func(v *videov1.Video) {
		t.Helper()
		_, err := c.videos.UnpublishVideo(t.Context(), &videov1.UnpublishVideoRequest{Name: v.GetName()})
		must(t, err)
	}
	hide(mustPublish(t, c, mustCreate(t, c, &videov1.Video{Title: "hidden"})))
	a := mustPublish(t, c, mustCreate(t, c, &videov1.Video{Title: "a"}))
	b := mustPublish(t, c, mustCreate(t, c, &videov1.Video{Title: "b"}))
	hide(mustPublish(t, c, mustCreate(t, c, &videov1.Video{Title: "hidden too"})))

	stream := watchFrom(t, c, "")
	var token string
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			var text string
			text, token = next(t, stream)
			got = append(got, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("messages (-want +got):\n%s", diff)
		}
	}
	expect("+a", "+b", "beat")
	if _, err := c.videos.UpdateVideo(t.Context(), &videov1.UpdateVideoRequest{
		Video: &videov1.Video{Name: a.GetName(), Title: "a2"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"title"}},
	}); err != nil {
		t.Fatal(err)
	}
	expect("+a2")
	_, err := c.videos.DeleteVideo(t.Context(), &videov1.DeleteVideoRequest{Name: b.GetName()})
	must(t, err)
	expect("-" + entryName(b))

	hide(a)
	mustPublish(t, c, mustCreate(t, c, &videov1.Video{Title: "c"}))
	stream = watchFrom(t, c, token)
	expect("-"+entryName(a), "+c", "beat")
}

// A resume token must come from a watch.
func TestWatchRefusesForeignTokens(t *testing.T) {
	t.Parallel()
	_, c := serve(t, transport.Config{})
	for range 2 {
		mustCreate(t, c, film())
	}
	list, err := c.videos.ListVideos(t.Context(), &videov1.ListVideosRequest{PageSize: 1})
	must(t, err)
	for _, token := range []string{"x", "AAAA", list.GetNextPageToken(), strings.Repeat("A", 2001)} {
		_, err := watchFrom(t, c, token).Recv()
		if got := violations(err); status.Code(err) != codes.InvalidArgument || !slices.Equal(got, []string{"resume_token"}) {
			t.Errorf("token %q: %v, want InvalidArgument about resume_token", token, err)
		}
		if tooLong := strings.Contains(status.Convert(err).Message(), "2000"); tooLong != (len(token) > 2000) {
			t.Errorf("token of length %d: %v, want the rules of the contract to refuse long ones", len(token), err)
		}
	}
}

// fakeStream is the server's side of a watch in a bubble.
type fakeStream struct {
	grpc.ServerStream
	ctx    context.Context
	began  time.Time
	sent   []string
	token  string // the last
	times  []time.Duration
	onSend func(n int)
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func (s *fakeStream) Send(response *catalogv1.WatchCatalogEntriesResponse) error {
	s.sent = append(s.sent, inWords(response))
	s.token = response.GetResumeToken()
	s.times = append(s.times, time.Since(s.began))
	if s.onSend != nil {
		s.onSend(len(s.sent))
	}
	return nil
}

// watchFor runs a watch for a time.
func watchFor(t *testing.T, store *fakeStore, d time.Duration, onSend func(n int)) *fakeStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	stream := &fakeStream{ctx: ctx, began: time.Now(), onSend: onSend}
	if err := testCatalogService(store).WatchCatalogEntries(&catalogv1.WatchCatalogEntriesRequest{}, stream); ctx.Err() == nil || err == nil {
		t.Errorf("WatchCatalogEntries() = %v, want the error of its context", err)
	}
	return stream
}

// A watch without changes sends a heartbeat every 15 s, and reads about once a second.
func TestWatchGivesSignsOfLife(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		stream := watchFor(t, store, time.Minute, nil)
		if got := len(stream.sent); got < 4 || got > 5 {
			t.Errorf("%d messages in a minute at %v, want 4 or 5: one at once, one about every 15 s", got, stream.times)
		}
		if got := store.readCount(); got > 70 {
			t.Errorf("%d reads in a minute, want about 60", got)
		}
	})
}

// While changes are held back, no watch says that its caller has received everything.
func TestWatchOfHeldChangesIsNotComplete(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		seed(t, store, true)
		store.held = true
		time.AfterFunc(20*time.Second, func() {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.held = false
		})
		stream := watchFor(t, store, 30*time.Second, nil)
		if diff := cmp.Diff([]string{"+x", "beat"}, stream.sent); diff != "" || stream.times[1] < 20*time.Second || stream.times[1] > 21*time.Second {
			t.Errorf("messages at %v, want the beat when nothing is held back, at 20 s (-want +got):\n%s", stream.times, diff)
		}
	})
}

// Nothing is read for a caller who has left.
func TestWatchOfNobodyReadsNothing(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		watchFor(t, store, 0, nil)
		synctest.Wait()
		if got := store.readCount(); got != 0 {
			t.Errorf("%d reads, want none", got)
		}
	})
}

// A change is sent soon, also if another process made it, or if it could not be
// read when it was announced. Many changes do not cause many reads.
func TestWatchLooksSoonAndSeldom(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		otherSide bool          // another process makes the change
		early     bool          // the change is announced before it can be read
		within    time.Duration // of the change at 10 s
	}{
		"changes of this process":         {false, false, watchGap},
		"changes of another process":      {true, false, time.Second},
		"announced before it can be read": {true, true, 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				store.otherSide = tt.otherSide && !tt.early
				time.AfterFunc(10*time.Second, func() {
					if tt.early {
						store.mu.Lock()
						store.projectWaiting() // only announces
						store.otherSide = true
						store.mu.Unlock()
						time.Sleep(100 * time.Millisecond)
					}
					seed(t, store, true)
				})
				stream := watchFor(t, store, 12*time.Second, nil)
				if got := stream.times[len(stream.times)-1]; got < 10*time.Second || got > 10*time.Second+tt.within {
					t.Errorf("messages at %v, want the last within %v of the change at 10 s", stream.times, tt.within)
				}
			})
		})
	}
	t.Run("many changes", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := newFakeStore()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range 5000 {
					time.Sleep(time.Millisecond)
					store.mu.Lock()
					store.projectWaiting()
					store.mu.Unlock()
				}
			}()
			watchFor(t, store, 5*time.Second, nil)
			<-done
			if got := store.readCount(); got > 101 {
				t.Errorf("%d reads in 5 s, want at most one in %v", got, watchGap)
			}
		})
	})
}

// watchTogether runs watches of one service until the end of the test, which must
// run in a bubble of synctest.
func watchTogether(t *testing.T, store *fakeStore, read time.Duration) (watch func() *fakeStream) {
	t.Helper()
	store.before = func(_ context.Context, method string) error {
		if method == "ListChanges" {
			store.begun.Add(1)
			time.Sleep(read)
		}
		return nil
	}
	service := testCatalogService(store)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		time.Sleep(read) // for reads that nobody waits for any longer
	})
	return func() *fakeStream {
		stream := &fakeStream{ctx: ctx, began: time.Now()}
		go func() {
			if err := service.WatchCatalogEntries(&catalogv1.WatchCatalogEntriesRequest{}, stream); ctx.Err() == nil {
				t.Errorf("WatchCatalogEntries() = %v", err)
			}
		}()
		return stream
	}
}

// Watches that are woken by the same change share a read.
func TestWatchesReadTogether(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		draft := seed(t, store, false)
		watch := watchTogether(t, store, time.Millisecond)
		streams := make([]*fakeStream, 100)
		for i := range streams {
			streams[i] = watch()
		}
		time.Sleep(10 * time.Second)
		before := store.begun.Load()
		// Only one change: of two changes, each could wake some of the watches.
		_, err := store.ChangeVideo(t.Context(), draft.ID, domain.PublishVideo(domain.AnyVersion, domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()}))
		must(t, err)
		time.Sleep(watchGap + 2*time.Millisecond)
		synctest.Wait()
		if got := store.begun.Load() - before; got < 1 || got > 3 {
			t.Errorf("%d watches made %d reads of a change, want 1 to 3", len(streams), got)
		}
		for i, stream := range streams {
			if got := stream.sent[len(stream.sent)-1]; got != "+x" {
				t.Errorf("the last message of watch %d is %q, want the change", i, got)
			}
		}
	})
}

// A watch that begins, or waits for a later change, does not share an earlier
// read, whose page may lack the change.
func TestWatchReadsNoOlderPage(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		watch := watchTogether(t, store, time.Second)
		expect := func(at string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := store.begun.Load(); got != want {
				t.Errorf("%s: %d reads have begun, want %d", at, got, want)
			}
		}
		watch() // reads from 0 s to 1 s, and from 1.05 s to 2.05 s
		time.Sleep(500 * time.Millisecond)
		watch() // from 0.5 s to 1.5 s, and would join the other at 1.55 s
		expect("two that begin", 2)
		time.Sleep(1020 * time.Millisecond)
		expect("the first, again", 3)
		seed(t, store, true)
		expect("the second, for a change", 4)
	})
}

// A failed read ends no watch if a later read soon succeeds. Otherwise the watches
// end at different times.
func TestWatchesSurviveAFailedRead(t *testing.T) {
	t.Parallel()
	const watches, lasting = 100, 10 * time.Second
	for failures, wantEnded := range map[int64]bool{1: false, 1000: true} {
		synctest.Test(t, func(t *testing.T) {
			store := newFakeStore()
			store.before = func(context.Context, string) error {
				time.Sleep(time.Millisecond)
				if n := store.begun.Add(1); n > watches && n <= watches+failures { // after the first read of each watch
					return problem.Errorf(problem.Unavailable, "no connection")
				}
				return nil
			}
			service := testCatalogService(store)
			ctx, cancel := context.WithTimeout(t.Context(), lasting)
			defer cancel()
			began, ends := time.Now(), make(chan time.Duration)
			for range watches {
				go func() {
					_ = service.WatchCatalogEntries(&catalogv1.WatchCatalogEntriesRequest{}, &fakeStream{ctx: ctx, began: began}) // any error
					ends <- time.Since(began)
				}()
			}
			first, last := lasting, time.Duration(0)
			for range watches {
				end := <-ends
				first, last = min(first, end), max(last, end)
			}
			if ended := first < lasting; ended != wantEnded || ended && last-first < watchPoll/2 {
				t.Errorf("after %d failed reads the watches ended from %s to %s", failures, first, last)
			}
			time.Sleep(time.Second) // for a read that nobody waits for any longer
		})
	}
}

// An entry that was sent, and is hidden while the first pages are still being
// read, is removed. A hidden entry that was never sent gets no message.
func TestWatchRemovesWhatItSentBefore(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		var first domain.Video
		for i := range watchPage + 10 {
			if v := seed(t, store, true); i == 0 {
				first = v
			}
		}
		seed(t, store, false)
		hide := func(n int) {
			if n == 1 {
				_, _ = store.ChangeVideo(context.Background(), first.ID, domain.UnpublishVideo(domain.AnyVersion, domain.Stamp{EventID: uuid.New(), Time: time.Now()}))
			}
		}
		stream := watchFor(t, store, time.Second, hide)
		var removed []string
		for _, text := range stream.sent {
			if strings.HasPrefix(text, "-") {
				removed = append(removed, text)
			}
		}
		same(t, "removed", []string{"-" + catalogEntries + first.ID.String()}, removed)
		if got, want := len(stream.sent), watchPage+10+1+1; got != want || stream.sent[got-1] != "beat" || stream.times[got-1] > 0 {
			t.Errorf("%d messages up to %s at %v, want %d at once: the entries, the removal and, last, a sign of life",
				got, stream.sent[got-1], stream.times[got-1], want)
		}
	})
}

// A database that does not respond ends a watch, which would otherwise hold a
// connection of the pool.
func TestWatchEndsWhenTheDatabaseIsSilent(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		store.before = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		stream := &fakeStream{ctx: t.Context(), began: time.Now()}
		err := testCatalogService(store).WatchCatalogEntries(&catalogv1.WatchCatalogEntriesRequest{}, stream)
		if got := time.Since(stream.began); !isKind(err, problem.Unavailable) || got != watchRead {
			t.Errorf("WatchCatalogEntries() = %v after %s, want Unavailable after %s", err, got, watchRead)
		}
	})
}

// watchOn runs a watch from a token on, for ten seconds, and returns its messages and its last token.
func watchOn(t *testing.T, service *catalogService, token string) (sent []string, last string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream := &fakeStream{ctx: ctx, began: time.Now()}
	_ = service.WatchCatalogEntries(&catalogv1.WatchCatalogEntriesRequest{ResumeToken: token}, stream) // ends with ctx
	return stream.sent, stream.token
}

// A watch with a token of another database restarts, and a watch whose database
// is replaced restarts, too: it says so, sends all entries, and continues from there.
func TestWatchBeginsAgainInAnotherDatabase(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		seed(t, store, true)
		service := testCatalogService(store)
		replace := func(database string) {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.database = database
		}
		check := func(name string, got []string, want ...string) {
			t.Helper()
			same(t, fmt.Sprintf("%s: messages", name), want, got)
		}
		time.AfterFunc(5*time.Second, func() { replace("two") })
		sent, token := watchOn(t, service, "")
		check("a stream that lives on", sent, "+x", "beat", "restarted", "+x")
		sent, token = watchOn(t, service, token)
		check("its token", sent, "beat")
		replace("three")
		sent, token = watchOn(t, service, token)
		check("the token of before", sent, "restarted", "+x", "beat")
		sent, _ = watchOn(t, service, token)
		check("the token of after", sent, "beat")
	})
}

// A watch with a token that is too old restarts, because an entry that was removed since
// then may have left no tombstone. Each heartbeat has a new token.
func TestWatchBeginsAgainAfterAMonth(t *testing.T) {
	withStore(t, func(t *testing.T, store *fakeStore) {
		seed(t, store, true)
		service := testCatalogService(store)
		_, token := watchOn(t, service, "")
		for _, test := range []struct {
			pause time.Duration
			want  []string
		}{
			{ResumeTokenAge - time.Hour, []string{"beat"}},
			{ResumeTokenAge - time.Hour, []string{"beat"}}, // the token is of the last beat
			{ResumeTokenAge + time.Hour, []string{"restarted", "+x", "beat"}},
			{0, []string{"beat"}},
		} {
			time.Sleep(test.pause)
			var sent []string
			sent, token = watchOn(t, service, token)
			same(t, fmt.Sprintf("messages after %s", test.pause), test.want, sent)
		}
	})
}

// A repair may turn a visible entry back into a draft, so the watch removes the entry.
func TestWatchRemovesWhatARepairTookBack(t *testing.T) {
	t.Parallel()
	w := &watch{}
	change := domain.Change{Entry: domain.Entry{VideoID: uuid.New(), Version: 1}}
	if got := w.responseTo(change); got != nil {
		t.Errorf("a draft just made = %v, want nothing", got)
	}
	change.Rebuilt = true
	if got, want := w.responseTo(change), catalogEntries+change.VideoID.String(); got.GetRemoved() != want {
		t.Errorf("a draft that a repair wrote = %v, want %s removed", got, want)
	}
}

func isKind(err error, kind problem.Kind) bool {
	known, ok := errors.AsType[*problem.Error](err)
	return ok && known.Kind == kind
}
