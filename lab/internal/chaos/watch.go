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

// Entry is an entry of the catalog as somebody was shown it.
type Entry struct {
	Version int64
	Content uint64 // digest of all that is shown
}

// Copy is the catalog as a watcher believes it to be, made of nothing but the
// changes that it was told.
type Copy struct {
	Watcher string
	Entries map[uuid.UUID]Entry
	Told    map[Told]bool `json:"-"` // all entries that it was shown
	Changes int           // that it was told
	Breaks  int           // of its stream, after which it went on
	Fresh   int           // times that it began with nothing
	Back    []WentBack    // changes that were older than one before
	newest  map[uuid.UUID]int64
	gone    map[uuid.UUID]bool // removed since: what is shown next must be newer
}

// Told is an entry that a watcher was shown.
type Told struct {
	Video uuid.UUID
	Entry
}

// WentBack is an entry that was shown in an older version after a newer one, or
// in the same one after it was removed.
type WentBack struct {
	Video    uuid.UUID
	From, To int64
}

func newCopy(watcher string) *Copy {
	return &Copy{Watcher: watcher, Entries: map[uuid.UUID]Entry{}, Told: map[Told]bool{}, newest: map[uuid.UUID]int64{}, gone: map[uuid.UUID]bool{}}
}

// forget begins anew, with all entries there are. What was the newest version
// is not forgotten: the catalog must not go back for anybody.
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

// differs returns how many entries are not as they should be.
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

// stateOfEntry reads what the catalog shows of a video.
func stateOfEntry(e *catalogv1.CatalogEntry) state {
	return state{
		title: e.GetTitle(), description: e.GetDescription(), year: e.GetReleaseYear(), durationMs: e.GetDuration().AsDuration().Milliseconds(),
		language: e.GetLanguageCode(), tags: e.GetTags(), version: e.GetVersion(), published: true,
		shown: e.GetPublishTime().AsTime().UnixMilli(), updated: e.GetUpdateTime().AsTime().UnixMilli(),
	}
}

// entry is what the catalog must show of a video that is published.
func (s state) entry() state {
	s.created, s.ended = 0, 0
	return s
}

// watcher is a client of WatchCatalogEntries that goes on where it was when
// its stream breaks, at whatever instance is there, and now and then leaves by
// itself. Some begin with nothing now and then, which would make good what they
// have missed; those that do not keep every mistake to the end.
type watcher struct {
	freshOneIn int           // of its streams, one in so many begins with nothing; 0: the first only
	longest    time.Duration // of a stream that does not break
	apis       []*process
	rand       *rand.Rand // of the goroutine that runs it
	token      string     // likewise
	problem    func(Rule, string, ...any)
	failed     func(command int64, where string, code codes.Code) // of the load

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

// stream is one call. It ends with the stream, or when the watcher has had
// enough of it.
func (w *watcher) stream(ctx context.Context, conn grpc.ClientConnInterface) {
	until := time.Now().Add(between(w.rand, time.Second, w.longest))
	enough, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if w.startsAfresh() {
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
		w.problem(WatchRefused, "%s: a stream ended with %s: %v", w.name(), code, err)
	case ctx.Err() == nil && time.Now().Before(until): // else it has ended it itself
		w.failed(0, w.name(), code)
	}
}

func (w *watcher) startsAfresh() bool {
	return w.token == "" || w.freshOneIn > 0 && w.rand.IntN(w.freshOneIn) == 0
}

// newWatchers makes one that begins with nothing now and then, one that never
// does again, and one that never does and whose stream is broken by faults only,
// or when the server ends it.
func newWatchers(seed uint64, apis []*process, problem func(Rule, string, ...any), failed func(int64, string, codes.Code)) []*watcher {
	watchers := []*watcher{{freshOneIn: 10, longest: 10 * time.Second}, {longest: 10 * time.Second}, {longest: 24 * time.Hour}}
	for i, w := range watchers {
		w.apis, w.problem, w.failed, w.copy = apis, problem, failed, newCopy(fmt.Sprintf("watcher-%d", i+1))
		w.rand = rand.New(rand.NewPCG(seed, math.MaxUint64-uint64(i)))
	}
	return watchers
}

// take applies a change. Its token is kept only with it, as a client does that
// stores both together.
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

func (w *watcher) name() (name string) {
	w.locked(func(c *Copy) { name = c.Watcher })
	return name
}

func entryID(name string) uuid.UUID {
	return videoID("videos/" + strings.TrimPrefix(name, "catalogEntries/"))
}

// Read is an entry that a client was shown when it asked for a version of it.
type Read struct {
	At      time.Time // when the answer came
	Command int64     // that made the version
	Video   uuid.UUID
	Asked   int64
	Shown   Entry
	Hidden  bool // it was told that there is none
}

// readOwnWrite waits until the catalog has seen a write, as a client may. That
// it takes too long once there are faults is counted, and no harm; of a deleted or
// hidden video there is no entry.
func (c *client) readOwnWrite(ctx context.Context, answer Answer) {
	conn, _, ok := c.load.apis[c.luck.IntN(len(c.load.apis))].reach()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	entry, err := catalogv1.NewCatalogServiceClient(conn).GetCatalogEntry(ctx, &catalogv1.GetCatalogEntryRequest{
		Name: "catalogEntries/" + answer.Video.String(), MinVersion: answer.Version,
	})
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
