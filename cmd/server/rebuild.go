package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	gax "github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store"
)

// helpRebuild is the help for the command.
const helpRebuild = `  server rebuild [FLAGS] HOST:PORT     make the catalog what the VideoService there has; https://HOST for TLS
         --dry-run                     write nothing, and count what differs
         --id-token                    call with an ID token of Google, of the service account that runs this
         --audience AUDIENCE           of that token; default: https://HOST
         --token-file FILE             call with the ID token in this file, which is read for every call
`

// rebuild makes the catalog equal to the videos that a VideoService returns. It fills a new
// catalog, or repairs a damaged one. It calls the owner and does not read the owner's
// tables. With --dry-run it writes nothing and counts the differences.
//
// The projector may run meanwhile. For a new catalog it must: the subscription must exist
// before the first page is read, or events in between are missed. Entries may come from
// both, and the version of each row makes that harmless. After a crash the rows that were
// written are right, but the databases are not yet recorded as known: run it again.
func rebuild(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	source, err := parseRebuild(args)
	if err != nil {
		return err
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
	catalog := store.NewCatalog(database.queries.own)
	r := &rebuilder{catalog: catalog, source: source, owner: videov1.NewVideoServiceClient(conn), listed: make(map[uuid.UUID]bool)}
	if source.dryRun {
		if err := r.run(ctx, r.compare); err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "compared %d entries: missing %d, behind %d, different %d, ahead %d, removed %d\n",
			len(r.listed), r.missing, r.behind, r.different, r.lowered, r.removed)
		return err
	}
	// Read first, so that a failover during the rebuild is noticed, and not recorded as
	// known.
	commands, queries := store.NewOutbox(database.commands.own), store.NewInbox(database.queries.own)
	owner, err := commands.Database(ctx)
	if err != nil {
		return err
	}
	projection, err := queries.Database(ctx)
	if err != nil {
		return err
	}
	if err := r.run(ctx, r.write); err != nil {
		return err
	}
	if err := errors.Join(commands.KnowDatabase(ctx, owner.Live), queries.KnowDatabase(ctx, projection.Live)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "rebuilt %d entries, lowered %d, removed %d\n", len(r.listed), r.lowered, r.removed)
	return err
}

// rebuilder compares the catalog with its owner, and makes it equal.
type rebuilder struct {
	catalog *store.Catalog
	owner   videov1.VideoServiceClient
	source  rebuildSource
	reached bool // the owner has answered once, so a call that finds it unavailable is tried again
	// listed has every id that the owner has listed. Each takes 16 bytes and its share of
	// the map.
	listed map[uuid.UUID]bool

	missing, behind, different int // of --dry-run
	lowered, removed           int
}

// run goes through the list of the owner, and then through the entries of the catalog that
// are not in the list.
func (r *rebuilder) run(ctx context.Context, page func(context.Context, []domain.Entry) error) error {
	request := &videov1.ListVideosRequest{PageSize: 1000, OrderBy: "create_time", ShowDeleted: true}
	for more := true; more; {
		response, err := call(ctx, r, r.owner.ListVideos, request)
		if err != nil {
			return fmt.Errorf("list videos after %d: %w%s", len(r.listed), err, r.source.refused(err))
		}
		entries := make([]domain.Entry, len(response.GetVideos()))
		for i, video := range response.GetVideos() {
			if entries[i], err = entryOf(video); err != nil {
				return err
			}
			r.listed[entries[i].VideoID] = true
		}
		if err := page(ctx, entries); err != nil {
			return err
		}
		request.PageToken = response.GetNextPageToken()
		more = request.GetPageToken() != ""
	}
	var after uuid.UUID
	for {
		ids, err := r.catalog.ListEntryIDs(ctx, after, idRows)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			if after = id; r.listed[id] {
				continue
			}
			if err := r.settle(ctx, id); err != nil {
				return err
			}
		}
	}
}

// idRows is how many ids of the catalog are read at a time.
const idRows = 10_000

// write writes a page of the owner's list. If the catalog is ahead of an entry, either the
// page is older, or the owner has lost changes that the catalog has. settle finds out
// which.
func (r *rebuilder) write(ctx context.Context, entries []domain.Entry) error {
	ahead, err := r.catalog.RebuildEntries(ctx, entries)
	if err != nil {
		return err
	}
	for _, id := range ahead {
		if err := r.settle(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// compare counts how the catalog differs from a page of the owner's list. An event that is
// still on its way counts as missing or behind, too.
func (r *rebuilder) compare(ctx context.Context, entries []domain.Entry) error {
	ids := make([]uuid.UUID, len(entries))
	for i, entry := range entries {
		ids[i] = entry.VideoID
	}
	found, err := r.catalog.FindEntries(ctx, ids)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		switch got, ok := found[entry.VideoID]; {
		case !ok:
			r.missing++
		case got.Version < entry.Version:
			r.behind++
		case got.Version > entry.Version:
			if err := r.settle(ctx, entry.VideoID); err != nil {
				return err
			}
		case !same(got.Entry, entry):
			r.different++
		}
	}
	return nil
}

// settle asks the owner about one entry that is ahead of the owner's list or not in it. A
// version is published before it is projected, and the owner's versions only grow. So if
// the owner is behind an entry that was read before, the owner has lost a change. The entry
// is then lowered to the owner's state. If the owner does not have the video, a tombstone
// with the same version replaces the entry and keeps late events out.
func (r *rebuilder) settle(ctx context.Context, id uuid.UUID) error {
	for {
		found, err := r.catalog.FindEntries(ctx, []uuid.UUID{id})
		if err != nil {
			return err
		}
		was, ok := found[id]
		if !ok {
			return nil // the row was deleted meanwhile
		}
		video, err := call(ctx, r, r.owner.GetVideo, &videov1.GetVideoRequest{Name: "videos/" + id.String()})
		var entry domain.Entry
		count := &r.lowered
		switch {
		case status.Code(err) == codes.NotFound:
			entry = domain.Entry{VideoID: id, Version: was.Version, Deleted: true, UpdateTime: was.UpdateTime}
			count = &r.removed
			if was.Deleted {
				return nil
			}
		case err != nil:
			return fmt.Errorf("get video %s: %w%s", id, err, r.source.refused(err))
		default:
			if entry, err = entryOf(video); err != nil {
				return err
			}
			if entry.Version >= was.Version { // the list is older than this answer
				return r.renew(ctx, entry)
			}
		}
		done := r.source.dryRun
		if !done {
			if done, err = r.catalog.LowerEntry(ctx, entry, was.Position); err != nil {
				return err
			}
		}
		if done {
			*count++
			return nil
		}
	}
}

// renew writes an entry that the owner has changed since its list was read.
func (r *rebuilder) renew(ctx context.Context, entry domain.Entry) error {
	if r.source.dryRun {
		return nil
	}
	_, err := r.catalog.RebuildEntries(ctx, []domain.Entry{entry}) // if the catalog is ahead now, a later event has come
	return err
}

// same reports whether two entries have the same content.
func same(a, b domain.Entry) bool {
	return a.Title == b.Title && a.Description == b.Description && a.ReleaseYear == b.ReleaseYear && a.Duration == b.Duration &&
		a.LanguageCode == b.LanguageCode && slices.Equal(a.Tags, b.Tags) && a.Visible == b.Visible && a.Deleted == b.Deleted &&
		a.PublishTime.Equal(b.PublishTime) && a.UpdateTime.Equal(b.UpdateTime)
}

// retryTimeout is how long one call may take, with all its retries.
const retryTimeout = time.Minute

// call calls the owner. It tries again while the owner limits the rate of this caller and,
// once the owner has answered a call, while it is unavailable. The retries of gRPC are not
// enough: they stop after the header of a response, which the server sends before a status.
func call[Q, A any](ctx context.Context, r *rebuilder, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (response A, err error) {
	busy := []codes.Code{codes.ResourceExhausted}
	if r.reached {
		busy = append(busy, codes.Unavailable)
	}
	retry := func() gax.Retryer {
		return gax.OnCodes(busy, gax.Backoff{Initial: time.Second, Max: 5 * time.Second, Multiplier: 2})
	}
	err = gax.Invoke(ctx, func(ctx context.Context, _ gax.CallSettings) error {
		response, err = method(ctx, request)
		return err
	}, gax.WithRetry(retry), gax.WithTimeout(retryTimeout))
	r.reached = r.reached || err == nil
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
