package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	gax "github.com/googleapis/gax-go/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store"
)

// helpRebuild is the help for the command.
const helpRebuild = `  server rebuild [FLAGS] HOST:PORT     make the catalog what the VideoService there has; https://HOST for TLS
         --dry-run                     count what differs, and change no entry
         --restart                     start over, and do not resume a rebuild that was interrupted
         --id-token                    call with an ID token of Google, of the service account that runs this
         --audience AUDIENCE           of that token; default: https://HOST
         --token-file FILE             call with the ID token in this file, which is read for every call
`

// rebuild makes the catalog equal to the videos that a VideoService returns. It fills a
// shadow of the catalog beside the live one, compares the two, and swaps them in one
// transaction. It calls the owner and does not read the owner's tables. With --dry-run it
// drops the shadow after the comparison.
//
// The projector may run meanwhile. For a new catalog it must: the subscription must exist
// before the first page is read, or events in between are missed. After a crash or an
// interruption the next rebuild resumes this one. The databases are recorded as known at
// the end only.
func rebuild(ctx context.Context, cfg config, args []string, stdout, stderr io.Writer) (err error) {
	source, err := parseRebuild(args)
	if err != nil {
		return usageError(err)
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	conn, err := source.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", source.address, err)
	}
	defer conn.Close()
	// Read first, so that a failover during the rebuild is noticed, and not recorded as
	// known. What was filled before a failover is worth nothing after it.
	commands, queries := store.NewOutbox(database.commands.own), store.NewInbox(database.queries.own)
	owner, err := commands.Database(ctx)
	if err != nil {
		return err
	}
	projection, err := queries.Database(ctx)
	if err != nil {
		return err
	}
	r := &rebuilder{
		catalog: store.NewCatalog(database.queries.own), shadow: store.NewRebuild(database.queries.own, store.CatalogProjection),
		owner: videov1.NewVideoServiceClient(conn), source: source, stdout: stdout, stderr: stderr,
	}
	know := func(ctx context.Context) error {
		return errors.Join(commands.KnowDatabase(ctx, owner.Live), queries.KnowDatabase(ctx, projection.Live))
	}
	if err := r.run(ctx, owner.Live+" "+projection.Live, know); err != nil || source.dryRun {
		return err
	}
	_, err = fmt.Fprintf(stdout, "rebuilt %d entries, lowered %d, removed %d\n", r.listed, r.lowered, r.removed)
	return err
}

// rebuilder compares the catalog with its owner, and makes it equal.
type rebuilder struct {
	catalog        *store.Catalog
	shadow         *store.Rebuild
	owner          videov1.VideoServiceClient
	source         rebuildSource
	stdout, stderr io.Writer
	reached        atomic.Bool // the owner was reached once, so a call that finds it unavailable is tried again

	listed           int64 // entries that the owner has listed
	lowered, removed int
}

const (
	// checkRows is how many entries are compared in one statement.
	checkRows = 10_000
	// swapRows is how many changes the swap copies itself, while the projector waits.
	swapRows = 1_000
	// readCalls is how many calls read single entries of the owner at the same time.
	readCalls = 8
	// lockPause is how long readers and writers go on before the next try for the lock.
	lockPause = 3 * time.Second
)

// run goes through the phases of a rebuild, or through those that are left of one that was
// interrupted. origin identifies the databases. repaired is called when the catalog is equal
// to its owner, and not with --dry-run.
func (r *rebuilder) run(ctx context.Context, origin string, repaired func(context.Context) error) (err error) {
	var state store.RebuildState
	begin := func() (err error) {
		state, err = r.shadow.Begin(ctx, origin, r.source.restart)
		return err
	}
	if err := r.unlocked(ctx, begin, func(context.Context) error { return nil }); err != nil {
		return err
	}
	defer func() {
		if err != nil { // so that the next one need not wait for the end of the lease
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			err = errors.Join(err, r.shadow.Release(ctx))
		}
	}()
	r.listed = state.Entries
	if state.Resumed {
		fmt.Fprintf(r.stderr, "rebuild %d is resumed: %s, after %d entries\n", state.Generation, state.Phase, state.Entries)
	}
	if state.Phase == store.PhaseRepeat && r.source.dryRun {
		return errors.New("a rebuild was interrupted after the swap: finish it first, without --dry-run")
	}
	var steps []func(context.Context) error
	if state.Phase == store.PhaseFill {
		steps = append(steps, func(ctx context.Context) error { return r.fill(ctx, state) })
	}
	if state.Phase != store.PhaseRepeat {
		steps = append(steps, r.check)
		if !r.source.dryRun {
			steps = append(steps, r.swap)
		}
	}
	if !r.source.dryRun {
		steps = append(steps, r.repeat, repaired)
	}
	steps = append(steps, func(ctx context.Context) error {
		return r.unlocked(ctx, func() error { return r.shadow.End(ctx) }, r.shadow.Hold)
	})
	for _, do := range steps {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fill writes the list of the owner into the shadow, page by page.
func (r *rebuilder) fill(ctx context.Context, state store.RebuildState) error {
	request := &videov1.ListVideosRequest{PageSize: 1000, OrderBy: "create_time", ShowDeleted: true, ShowPurged: true, PageToken: state.Position}
	progress := newProgress(r.stderr, "entries", state.Entries)
	for more := true; more; {
		response, err := call(ctx, r, r.owner.ListVideos, request)
		if err != nil {
			return fmt.Errorf("list videos after %d: %w%s", r.listed, err, r.source.refused(err))
		}
		entries := make([]domain.Entry, len(response.GetVideos()))
		for i, video := range response.GetVideos() {
			if entries[i], err = entryOf(video); err != nil {
				return err
			}
		}
		rows, err := store.CatalogRows(entries)
		if err != nil {
			return err
		}
		request.PageToken = response.GetNextPageToken()
		more = request.GetPageToken() != ""
		if err := r.shadow.Write(ctx, store.RebuildRows{JSON: rows, Position: &request.PageToken}); err != nil {
			return err
		}
		r.listed += int64(len(entries))
		progress.show(r.listed, state.Estimate)
	}
	return nil
}

// check brings the shadow up to date, compares it with the live catalog, and reads the owner
// about entries that are ahead of its list or not in it.
func (r *rebuilder) check(ctx context.Context) error {
	if err := r.catchUp(ctx); err != nil {
		return err
	}
	var missing, behind, different int64
	var after *string
	for more := true; more; {
		c, err := r.shadow.Compare(ctx, after, checkRows)
		if err != nil {
			return err
		}
		if err := r.settle(ctx, c.Ask); err != nil {
			return err
		}
		missing, behind, different = missing+c.Missing, behind+c.Behind, different+c.Different
		after, more = &c.LastKey, c.Keys == checkRows
	}
	_, err := fmt.Fprintf(r.stdout, "compared %d entries: missing %d, behind %d, different %d, ahead %d, removed %d\n",
		r.listed, missing, behind, different, r.lowered, r.removed)
	return err
}

// catchUp copies what events have changed meanwhile, until few changes are left.
func (r *rebuilder) catchUp(ctx context.Context) error {
	for {
		keys, unlisted, err := r.shadow.CatchUp(ctx, checkRows)
		if err != nil {
			return err
		}
		if err := r.settle(ctx, unlisted); err != nil || keys < swapRows {
			return err
		}
	}
}

// swap makes the shadow the live catalog.
func (r *rebuilder) swap(ctx context.Context) error {
	for {
		if err := r.catchUp(ctx); err != nil {
			return err
		}
		var swapped bool
		var unlisted []string
		err := r.unlocked(ctx, func() (err error) {
			swapped, unlisted, err = r.shadow.Swap(ctx, swapRows)
			return err
		}, r.shadow.Hold)
		if err != nil || swapped {
			return err
		}
		if err := r.settle(ctx, unlisted); err != nil {
			return err
		}
	}
}

// repeat reads lowered entries of the owner once more: the old catalog may have taken an
// event of the owner for too old, after the first read. Then it shows the entries that
// have changed to watches.
func (r *rebuilder) repeat(ctx context.Context) error {
	for after := int64(0); ; {
		keys, last, err := r.shadow.Lowered(ctx, after, swapRows)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		pairs, err := r.compareWithOwner(ctx, keys)
		if err != nil {
			return err
		}
		var entries, purged []domain.Entry
		for _, a := range pairs {
			switch {
			case a.found:
				entries = append(entries, a.entry)
			case !a.was.Deleted || a.was.Title != "": // the old catalog may have taken the purge for too old, too
				purged = append(purged, tombstoneOf(a.was))
			}
		}
		if err := errors.Join(r.write(ctx, entries, store.RebuildRows{}), r.write(ctx, purged, store.RebuildRows{Overwrite: true})); err != nil {
			return err
		}
		after = last
	}
	for {
		n, err := r.catalog.MoveFutureChanges(ctx, futureRows)
		if err != nil || n < futureRows { // what is locked now is moved by the server: see registration.repair
			return err
		}
		if err := r.shadow.Hold(ctx); err != nil {
			return err
		}
	}
}

// settle reads entries of the owner that are ahead of the owner's list or not in it, and
// writes the result into the shadow. A version is published before it is projected, and
// the owner's versions only grow. So if the owner is behind an entry that was read before,
// the owner has lost a change. The entry is then lowered to the owner's state. If the owner
// does not have the video, a tombstone with the same version replaces the entry and keeps
// late events out.
func (r *rebuilder) settle(ctx context.Context, keys []string) error {
	for len(keys) > 0 {
		some := keys[:min(len(keys), swapRows)]
		keys = keys[len(some):]
		pairs, err := r.compareWithOwner(ctx, some)
		if err != nil {
			return err
		}
		var entries []domain.Entry
		rows := store.RebuildRows{Overwrite: true}
		for _, a := range pairs {
			switch {
			case !a.found: // the tombstone has no content, because the owner may have purged it
				a.entry = tombstoneOf(a.was)
				if !a.was.Deleted {
					r.removed++
				}
			case a.entry.Version < a.was.Version:
				rows.Lowered = append(rows.Lowered, a.entry.VideoID.String())
				r.lowered++
			}
			entries = append(entries, a.entry)
		}
		if err := r.write(ctx, entries, rows); err != nil {
			return err
		}
	}
	return nil
}

// tombstoneOf returns what is left of an entry that the owner does not have.
func tombstoneOf(was domain.Entry) domain.Entry {
	return domain.Entry{VideoID: was.VideoID, Version: was.Version, Deleted: true, UpdateTime: was.UpdateTime}
}

// pair is an entry of the live catalog, and that of the owner, which was read later.
type pair struct {
	was   domain.Entry // in the live catalog
	entry domain.Entry // of the owner
	found bool         // the owner has the video
}

// compareWithOwner reads entries of the live catalog, and then those of the owner. It leaves
// out those that the live catalog does not have.
func (r *rebuilder) compareWithOwner(ctx context.Context, keys []string) ([]pair, error) {
	ids := make([]uuid.UUID, len(keys))
	for i, key := range keys {
		var err error
		if ids[i], err = uuid.Parse(key); err != nil {
			return nil, fmt.Errorf("key of an entry %q: %w", key, err)
		}
	}
	was, err := r.catalog.FindEntries(ctx, ids)
	if err != nil {
		return nil, err
	}
	pairs := make([]pair, 0, len(was))
	for _, entry := range was {
		pairs = append(pairs, pair{was: entry})
	}
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(readCalls)
	for i := range pairs {
		reads.Go(func() error {
			id := pairs[i].was.VideoID
			video, err := call(ctx, r, r.owner.GetVideo, &videov1.GetVideoRequest{Name: "videos/" + id.String()})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			if err != nil {
				return fmt.Errorf("get video %s: %w%s", id, err, r.source.refused(err))
			}
			pairs[i].found = true
			pairs[i].entry, err = entryOf(video)
			return err
		})
	}
	return pairs, reads.Wait()
}

// write writes entries in the way of rows.
func (r *rebuilder) write(ctx context.Context, entries []domain.Entry, rows store.RebuildRows) (err error) {
	if len(entries) == 0 {
		return nil
	}
	if rows.JSON, err = store.CatalogRows(entries); err != nil {
		return err
	}
	return r.shadow.Write(ctx, rows)
}

// unlocked does something that needs a lock of the live catalog, until it gets the lock. In
// the pauses it calls hold.
func (r *rebuilder) unlocked(ctx context.Context, do func() error, hold func(context.Context) error) error {
	for {
		err := do()
		if !errors.Is(err, store.ErrLocked) {
			return err
		}
		fmt.Fprintln(r.stderr, "waiting for a transaction that has the catalog in use, for example a backup")
		if !sleep(ctx, lockPause) {
			return ctx.Err()
		}
		if err := hold(ctx); err != nil {
			return err
		}
	}
}

// retryTimeout is how long one call may take, with all its retries.
const retryTimeout = time.Minute

// call calls the owner. It tries again while the owner limits the rate of this caller and,
// once the owner was reached, while it is unavailable. The retries of gRPC are not
// enough: they stop after the header of a response, which the server sends before a status.
func call[Q, A any](ctx context.Context, r *rebuilder, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (response A, err error) {
	busy := []codes.Code{codes.ResourceExhausted}
	if r.reached.Load() {
		busy = append(busy, codes.Unavailable)
	}
	retry := func() gax.Retryer {
		return gax.OnCodes(busy, gax.Backoff{Initial: time.Second, Max: 5 * time.Second, Multiplier: 2})
	}
	err = gax.Invoke(ctx, func(ctx context.Context, _ gax.CallSettings) error {
		response, err = method(ctx, request)
		return err
	}, gax.WithRetry(retry), gax.WithTimeout(retryTimeout))
	if err == nil {
		r.reached.Store(true)
	}
	return response, err
}

func entryOf(v *videov1.Video) (domain.Entry, error) {
	id, err := uuid.Parse(strings.TrimPrefix(v.GetName(), "videos/"))
	if err != nil {
		return domain.Entry{}, fmt.Errorf("video name %q: %w", v.GetName(), err)
	}
	video := domain.Video{
		ID: id,
		Details: domain.Details{
			Title: v.GetTitle(), Description: v.GetDescription(), ReleaseYear: v.GetReleaseYear(),
			Duration: v.GetDuration().AsDuration(), LanguageCode: v.GetLanguageCode(), Tags: v.GetTags(),
		},
		State: domain.Draft, Version: v.GetVersion(), UpdateTime: v.GetUpdateTime().AsTime(),
	}
	if v.GetState() == videov1.Video_STATE_PUBLISHED {
		video.State = domain.Published
		video.PublishTime = v.GetPublishTime().AsTime()
	}
	if v.GetDeleteTime() != nil {
		video.DeleteTime = v.GetDeleteTime().AsTime()
	}
	return domain.EntryOf(video), nil
}
