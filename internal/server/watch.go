package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/googleapis/gax-go/v2"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/tenant"
)

// A watch reads changes at most once per watchGap. A change can be announced
// before it is readable, while an older transaction is still open (see
// ListChanges in the store). So the watch reads again soon after a change.
// Without changes the interval doubles up to watchPoll.
const (
	watchPage      = 100
	watchGap       = 50 * time.Millisecond
	watchPoll      = time.Second
	watchHeartbeat = 15 * time.Second
	// watchRead is the longest time of one read. Without it, a long stream
	// could hold a pooled connection while the database is unavailable.
	watchRead = 5 * time.Second
)

// WatchCatalogEntries streams changes until an error, or until the caller or
// the server cancels its context.
func (s *catalogService) WatchCatalogEntries(request *catalogv1.WatchCatalogEntriesRequest, stream grpc.ServerStreamingServer[catalogv1.WatchCatalogEntriesResponse]) error {
	w, err := newWatch(request, s, stream)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	var heartbeat time.Time // of the next heartbeat, which waits until the caller has all changes
	poll := watchGap
	for ctx.Err() == nil {
		changed := s.changes.Changed() // before the read, so that no change is missed
		started := time.Now()
		held, err := w.catchUp(changed)
		if err != nil {
			return err
		}
		if !held && !time.Now().Before(heartbeat) {
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
		_ = gax.Sleep(ctx, watchGap-time.Since(started))
	}
	return ctx.Err()
}

// watch is one stream of changes. It belongs to one goroutine.
type watch struct {
	service  *catalogService
	stream   grpc.ServerStreamingServer[catalogv1.WatchCatalogEntriesResponse]
	tokens   aip.Tokens
	position domain.Position // of the last change sent
	// fresh: no entry has been sent, so the caller has none to remove.
	fresh bool
	begun bool // the first read is done or in progress
	// expired: the token was too old, so the stream starts over.
	expired bool
}

// ResumeTokenAge is how long a resume token is valid. No watch needs to know of an entry that
// was removed longer ago, so its tombstone may be deleted.
const ResumeTokenAge = 30 * 24 * time.Hour

// TombstoneRetention returns how long the tombstone of a purged video stays. For that long a late event, a
// quarantined event, or a client that resumes a watch may bring the content of the video back. inbox is how
// long inboxes remember events.
func TombstoneRetention(inbox time.Duration) time.Duration { return 2*inbox + ResumeTokenAge }

// resumeToken is the content of a resume token. A token of an earlier build has no time.
type resumeToken struct {
	domain.Position
	Time time.Time // when it was sent
}

func newWatch(request *catalogv1.WatchCatalogEntriesRequest, service *catalogService, stream grpc.ServerStreamingServer[catalogv1.WatchCatalogEntriesResponse]) (*watch, error) {
	w := &watch{service: service, stream: stream, tokens: aip.NewTokens(request, "resume_token"), fresh: true}
	var err error
	if token := request.GetResumeToken(); token != "" {
		w.fresh = false
		var sent resumeToken
		err = w.tokens.Decode(token, &sent)
		if w.expired = !sent.Time.IsZero() && time.Since(sent.Time) > ResumeTokenAge; !w.expired {
			w.position = sent.Position
		}
	}
	return w, err
}

// catchUp sends all changes after the position. They include every change that
// was announced before changed was taken, but for those that are held back.
func (w *watch) catchUp(changed <-chan struct{}) (held bool, err error) {
	for {
		page, err := w.look(changed)
		if err != nil {
			return false, err
		}
		if page.Restarted || w.expired {
			w.expired = false
			if err := w.restart(page.Next.Database); err != nil {
				return false, err
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
				return false, err
			}
			sent = true
		}
		// fresh is cleared only after the whole page, because an entry appears
		// once per page. A hidden entry on the first page was never sent. On a
		// later page it may have been sent before.
		w.fresh = w.fresh && !sent
		w.position = page.Next
		if !page.More {
			return page.Held, nil
		}
	}
}

// restart tells the client to start over, from the beginning of a database.
func (w *watch) restart(database string) error {
	w.position, w.fresh = domain.Position{Database: database}, true
	return w.send(&catalogv1.WatchCatalogEntriesResponse{Change: &catalogv1.WatchCatalogEntriesResponse_Restarted{Restarted: true}})
}

// look reads the next page. If a shared read fails quickly, it reads once more
// after a random pause of up to a second. So a lost connection does not end all
// watches, and an unavailable database does not end them all at once.
func (w *watch) look(changed <-chan struct{}) (domain.ChangePage, error) {
	started := time.Now()
	read := w.read(changed)
	if ctx := w.stream.Context(); read.Err != nil && read.Shared && time.Since(started) < watchPoll && ctx.Err() == nil {
		_ = gax.Sleep(ctx, rand.N(watchPoll))
		read = w.read(changed)
	}
	page, _ := read.Val.(domain.ChangePage)
	return page, read.Err
}

// read reads a page, and returns problem.Unavailable if that takes too long.
// Watches that wait for the same change share one read, because a change can
// wake hundreds of them. A watch that waits for a later change does not share
// an older read, whose page may lack that change. The first read of a watch is
// never shared, because its caller may already know of a newer change.
func (w *watch) read(changed <-chan struct{}) singleflight.Result {
	ctx, position := w.stream.Context(), w.position
	page := fmt.Sprintf("%p %v %s", changed, position, tenant.Of(ctx))
	if !w.begun {
		page = fmt.Sprint("first of ", w.service.begun.Add(1))
		w.begun = true
	}
	reading := w.service.looks.DoChan(page, func() (_ any, err error) {
		defer func() { err = orPanic(err, recover()) }()                          // otherwise a panic in this goroutine would end the process
		defer runtime.KeepAlive(changed)                                          // otherwise a new channel could get its address, which is part of the key
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), watchRead) // the read is shared by other watches
		defer cancel()
		found, err := w.service.store.ListChanges(ctx, position, watchPage)
		if err != nil && ctx.Err() != nil {
			err = &problem.Error{Kind: problem.Unavailable, Message: "the catalog did not respond in time: call again", Err: err}
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

// responseTo returns the response for a change, or nil if the caller does not
// need it.
func (w *watch) responseTo(change domain.Change) *catalogv1.WatchCatalogEntriesResponse {
	switch {
	case change.Visible:
		return &catalogv1.WatchCatalogEntriesResponse{Change: &catalogv1.WatchCatalogEntriesResponse_Updated{Updated: entryToProto(change.Entry)}}
	case w.fresh || change.Version == 1 && !change.Rebuilt: // a new draft, which no caller can have received
		return nil
	default:
		return &catalogv1.WatchCatalogEntriesResponse{Change: &catalogv1.WatchCatalogEntriesResponse_Removed{Removed: catalogEntries + change.VideoID.String()}}
	}
}

// send sends a response with the token to resume after it.
func (w *watch) send(response *catalogv1.WatchCatalogEntriesResponse) error {
	var err error
	if response.ResumeToken, err = w.tokens.Encode(resumeToken{Position: w.position, Time: time.Now()}); err != nil {
		return err
	}
	return w.stream.Send(response)
}
