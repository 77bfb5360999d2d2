package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	"example.com/videocatalog/internal/domain"
)

// How a watch looks for changes. In a busy time it reads at most every
// watchGap, whatever the number of changes. A change can be announced a little
// before it can be read (while an older transaction is unfinished anywhere, see
// ListChanges in the store), so after a change it looks again soon, and then
// ever less often.
const (
	watchPage      = 100
	watchGap       = 50 * time.Millisecond
	watchPoll      = time.Second
	watchHeartbeat = 15 * time.Second
	// watchRead is how long a read may take. A stream lasts long, and one that
	// waits for a database that is gone holds a connection of the pool.
	watchRead = 5 * time.Second
)

// WatchCatalogEntries ends only with an error, or when the caller or the
// server does, which both end its context.
func (s *catalogService) WatchCatalogEntries(request *catalogv1.WatchCatalogEntriesRequest, stream grpc.ServerStreamingServer[catalogv1.WatchCatalogEntriesResponse]) error {
	w, err := newWatch(request, s, stream)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	var heartbeat time.Time // when the next is due: as soon as the caller has caught up
	poll := watchGap
	for ctx.Err() == nil {
		changed := s.changes.Changed() // before the read, or a change between the two is missed
		started := time.Now()
		if err := w.catchUp(changed); err != nil {
			return err
		}
		if !time.Now().Before(heartbeat) {
			if err := w.send(&catalogv1.WatchCatalogEntriesResponse{}); err != nil {
				return err
			}
			heartbeat = time.Now().Add(watchHeartbeat)
		}
		select {
		case <-changed:
			poll = watchGap
		case <-time.After(poll):
			poll = min(2*poll, watchPoll)
		case <-ctx.Done():
		}
		pause(ctx, watchGap-time.Since(started))
	}
	return ctx.Err()
}

// watch is one stream of changes.
type watch struct {
	service  *catalogService
	stream   grpc.ServerStreamingServer[catalogv1.WatchCatalogEntriesResponse]
	tokens   tokens
	position domain.Position // of the last change the caller has had
	// fresh: the caller has had no entry yet, so there is none to remove.
	fresh bool
	begun bool // to read
}

func newWatch(request *catalogv1.WatchCatalogEntriesRequest, service *catalogService, stream grpc.ServerStreamingServer[catalogv1.WatchCatalogEntriesResponse]) (*watch, error) {
	tokens, err := newTokens(service.seal, request, "resume_token")
	if err != nil {
		return nil, err
	}
	w := &watch{service: service, stream: stream, tokens: tokens, fresh: true}
	if token := request.GetResumeToken(); token != "" {
		w.fresh = false
		err = tokens.decode(token, &w.position)
	}
	return w, err
}

// catchUp sends all changes there are behind the position, and at least those that
// were announced before changed was taken.
func (w *watch) catchUp(changed <-chan struct{}) error {
	for {
		page, err := w.look(changed)
		if err != nil {
			return err
		}
		if page.Restarted {
			if err := w.restart(page.Next.Database); err != nil {
				return err
			}
		}
		sent := false
		for _, change := range page.Changes {
			w.position = change.Position
			response := w.responseTo(change)
			if response == nil {
				continue
			}
			if err := w.send(response); err != nil {
				return err
			}
			sent = true
		}
		// Only now, because an entry is on a page once: what is hidden on the
		// first page was not sent before, but an entry that was may be hidden by
		// the time the next page is read.
		w.fresh = w.fresh && !sent
		w.position = page.Next
		if !page.More {
			return nil
		}
	}
}

// restart begins again from the start, in another database.
func (w *watch) restart(database string) error {
	w.position, w.fresh = domain.Position{Database: database}, true
	return w.send(&catalogv1.WatchCatalogEntriesResponse{Change: &catalogv1.WatchCatalogEntriesResponse_Restarted{Restarted: true}})
}

// look reads the next page. When that fails for several watches, and soon, it is
// tried once more, after a pause of up to a second: a lost connection ends none of
// them so, and a database that is away not all at the same moment.
func (w *watch) look(changed <-chan struct{}) (domain.ChangePage, error) {
	started := time.Now()
	read := w.read(changed)
	if ctx := w.stream.Context(); read.Err != nil && read.Shared && time.Since(started) < watchPoll && ctx.Err() == nil {
		pause(ctx, rand.N(watchPoll))
		read = w.read(changed)
	}
	page, _ := read.Val.(domain.ChangePage)
	return page, read.Err
}

// read reads a page; domain.Unavailable when that takes too long. Watches that
// wait for the same change are woken together, and read together: hundreds of them
// would ask hundreds of times for the same page else. One that waits for a later
// change reads for itself, because the page of the others may be older than what
// it was woken for, and so does one that begins, whose caller may know of more.
func (w *watch) read(changed <-chan struct{}) singleflight.Result {
	ctx, position := w.stream.Context(), w.position
	page := fmt.Sprintf("%p %v", changed, position)
	if !w.begun {
		page = fmt.Sprint("first of ", w.service.begun.Add(1))
		w.begun = true
	}
	reading := w.service.looks.DoChan(page, func() (_ any, err error) {
		defer func() { err = orPanic(err, recover()) }()                          // in a goroutine of its own it would end the process
		defer runtime.KeepAlive(changed)                                          // or another could get its address, which names the page
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), watchRead) // it is not of this watch alone
		defer cancel()
		found, err := w.service.store.ListChanges(ctx, position, watchPage)
		if err != nil && ctx.Err() != nil {
			err = &domain.Error{Kind: domain.Unavailable, Message: "the catalog does not answer: call again", Err: err}
		}
		return found, err
	})
	select {
	case result := <-reading:
		return result
	case <-ctx.Done():
		return singleflight.Result{Err: ctx.Err()}
	}
}

// responseTo returns nil when the change means nothing to the caller.
func (w *watch) responseTo(change domain.Change) *catalogv1.WatchCatalogEntriesResponse {
	switch {
	case change.Visible:
		return &catalogv1.WatchCatalogEntriesResponse{Change: &catalogv1.WatchCatalogEntriesResponse_Updated{Updated: entryToProto(change.Entry)}}
	case w.fresh || change.Version == 1 && !change.Rebuilt: // a draft just made, which nobody can have seen
		return nil
	default:
		return &catalogv1.WatchCatalogEntriesResponse{Change: &catalogv1.WatchCatalogEntriesResponse_Removed{Removed: catalogEntries + change.VideoID.String()}}
	}
}

// send also tells the caller where to go on.
func (w *watch) send(response *catalogv1.WatchCatalogEntriesResponse) error {
	var err error
	if response.ResumeToken, err = w.tokens.encode(w.position); err != nil {
		return err
	}
	return w.stream.Send(response)
}
