package chaos

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
)

// Entry is an entry of the catalog, as a client received it.
type Entry struct {
	Version int64
	Content uint64 // digest of all its fields
}

// Copy is the catalog as a watcher has it, built only from the changes that it
// received.
type Copy struct {
	Watcher string
	Entries map[uuid.UUID]Entry
	Told    map[Told]bool `json:"-"` // all entries that it received
	Changes int           // number of changes
	Breaks  int           // number of streams that ended, for any reason
	Fresh   int           // number of starts without any data
	Back    []WentBack    // changes to an older version than one before
	newest  map[uuid.UUID]int64
	gone    map[uuid.UUID]bool // removed videos: their next version must be newer
}

// Told is an entry that a watcher received.
type Told struct {
	Video uuid.UUID
	Entry
}

// WentBack is an entry that was received in an older version after a newer one, or
// in the same version after it was removed.
type WentBack struct {
	Video    uuid.UUID
	From, To int64
}

func newCopy(watcher string) *Copy {
	return &Copy{Watcher: watcher, Entries: map[uuid.UUID]Entry{}, Told: map[Told]bool{}, newest: map[uuid.UUID]int64{}, gone: map[uuid.UUID]bool{}}
}

// forget removes all entries, for a start from the beginning. It keeps the newest
// versions, because the catalog must never go back to an older one.
func (c *Copy) forget() {
	clear(c.Entries)
	c.Fresh++
}

func (c *Copy) updated(video uuid.UUID, e Entry) {
	if e.Version < c.newest[video] || c.gone[video] && e.Version == c.newest[video] {
		c.Back = append(c.Back, WentBack{video, c.newest[video], e.Version})
	}
	delete(c.gone, video)
	c.newest[video] = max(c.newest[video], e.Version)
	c.Entries[video] = e
	c.Told[Told{video, e}] = true
	c.Changes++
}

func (c *Copy) removed(video uuid.UUID) {
	delete(c.Entries, video)
	c.gone[video] = true
	c.Changes++
}

// differs returns how many entries differ from those in want.
func (c *Copy) differs(want map[uuid.UUID]Entry) int {
	n := 0
	for id, e := range want {
		if c.Entries[id] != e {
			n++
		}
	}
	for id := range c.Entries {
		if _, ok := want[id]; !ok {
			n++
		}
	}
	return n
}

// stateOfEntry converts an entry of the catalog to a state.
func stateOfEntry(e *catalogv1.CatalogEntry) state {
	return state{
		title: e.GetTitle(), description: e.GetDescription(), year: e.GetReleaseYear(), durationMs: e.GetDuration().AsDuration().Milliseconds(),
		language: e.GetLanguageCode(), tags: e.GetTags(), version: e.GetVersion(), published: true,
		shown: e.GetPublishTime().AsTime().UnixMilli(), updated: e.GetUpdateTime().AsTime().UnixMilli(),
	}
}

// entry returns what the catalog must show of a published video.
func (s state) entry() state {
	s.created, s.ended = 0, 0
	return s
}

// watcher is a client of WatchCatalogEntries. When its stream breaks, it resumes
// at any process. At random it also ends the stream itself. Some watchers
// sometimes start from the beginning, which repairs a lost change. The others keep
// every mistake to the end.
type watcher struct {
	name       string
	freshOneIn int           // one in so many of its streams starts without data; 0: only the first
	longest    time.Duration // maximum duration of a stream
	apis       []*process
	rand       *rand.Rand // used only by the goroutine that runs it
	token      string     // used only by the goroutine that runs it
	problem    func(Rule, string, ...any)
	failed     func(command int64, where string, code codes.Code) // called for a stream that failed

	mu   sync.Mutex
	copy *Copy // guarded by mu
}

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		if conn, _, ok := pick(w.rand, w.apis).reach(); ok {
			w.stream(ctx, conn)
		}
		sleep(ctx, between(w.rand, 10*time.Millisecond, 200*time.Millisecond))
	}
}

// stream watches over one stream, until it ends or the watcher ends it.
func (w *watcher) stream(ctx context.Context, conn grpc.ClientConnInterface) {
	until := time.Now().Add(between(w.rand, time.Second, w.longest))
	enough, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if w.token == "" || w.freshOneIn > 0 && w.rand.IntN(w.freshOneIn) == 0 {
		w.token = ""
		w.locked((*Copy).forget)
	}
	stream, err := catalogv1.NewCatalogServiceClient(conn).WatchCatalogEntries(enough, &catalogv1.WatchCatalogEntriesRequest{ResumeToken: w.token})
	for err == nil {
		var m *catalogv1.WatchCatalogEntriesResponse
		if m, err = stream.Recv(); err == nil {
			w.take(m)
		}
	}
	w.locked(func(c *Copy) { c.Breaks++ })
	switch code := status.Code(err); {
	case !lost(code):
		w.problem(WatchRefused, "%s: a stream ended with %s: %v", w.name, code, err)
	case ctx.Err() == nil && time.Now().Before(until): // otherwise the watcher has ended the stream
		w.failed(0, w.name, code)
	}
}

// newWatchers returns three watchers. The first sometimes starts from the
// beginning, the others never after their first stream. The third never ends a
// stream itself.
func newWatchers(seed uint64, apis []*process, problem func(Rule, string, ...any), failed func(int64, string, codes.Code)) []*watcher {
	watchers := []*watcher{{freshOneIn: 10, longest: 10 * time.Second}, {longest: 10 * time.Second}, {longest: 24 * time.Hour}}
	for i, w := range watchers {
		w.name = fmt.Sprintf("watcher-%d", i+1)
		w.apis, w.problem, w.failed, w.copy = apis, problem, failed, newCopy(w.name)
		w.rand = rand.New(rand.NewPCG(seed, math.MaxUint64-uint64(i)))
	}
	return watchers
}

// take applies a change, and only then keeps its token. A client that stores both
// together does the same.
func (w *watcher) take(m *catalogv1.WatchCatalogEntriesResponse) {
	w.locked(func(c *Copy) {
		switch change := m.GetChange().(type) {
		case *catalogv1.WatchCatalogEntriesResponse_Updated:
			c.updated(entryID(change.Updated.GetName()), Entry{change.Updated.GetVersion(), stateOfEntry(change.Updated).digest()})
		case *catalogv1.WatchCatalogEntriesResponse_Removed:
			c.removed(entryID(change.Removed))
		case *catalogv1.WatchCatalogEntriesResponse_Restarted:
			c.forget()
		}
	})
	w.token = m.GetResumeToken()
}

func (w *watcher) locked(f func(*Copy)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.copy)
}

func entryID(name string) uuid.UUID {
	return videoID("videos/" + strings.TrimPrefix(name, "catalogEntries/"))
}

// Read is an entry that a client read from the catalog in a given version or a
// newer one.
type Read struct {
	At      time.Time // when the client received it
	Command int64     // number of the command that created the version
	Video   uuid.UUID
	Asked   int64
	Shown   Entry
	Hidden  bool // the catalog returned that there is no entry
}

// readOwnWrite reads an entry after the client's own write. The server waits until
// the catalog has that version. A timeout is only counted. A deleted or hidden video
// has no entry.
func (c *client) readOwnWrite(ctx context.Context, answer Answer) {
	conn, _, ok := c.load.apis[c.luck.IntN(len(c.load.apis))].reach()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.load.patience)
	defer cancel()
	request := &catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + answer.Video.String(), MinVersion: answer.Version}
	entry, err := catalogv1.NewCatalogServiceClient(conn).GetCatalogEntry(ctx, request)
	for status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil { // the server waits for 10 s at most
		entry, err = catalogv1.NewCatalogServiceClient(conn).GetCatalogEntry(ctx, request)
	}
	switch code := status.Code(err); {
	case err == nil:
		c.load.read(Read{At: time.Now(), Command: answer.Command, Video: answer.Video, Asked: answer.Version, Shown: Entry{entry.GetVersion(), stateOfEntry(entry).digest()}})
	case code == codes.NotFound:
		c.load.read(Read{At: time.Now(), Command: answer.Command, Video: answer.Video, Asked: answer.Version, Hidden: true})
	case !lost(code):
		c.load.problem(ReadRefused, "version %d of video %s: %v", answer.Version, answer.Video, err)
	default:
		c.load.failedToRead(answer.Command, "GetCatalogEntry", code)
	}
}
