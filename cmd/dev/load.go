package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
)

// usageLoad is the help for --load.
const usageLoad = `  --load FILE  load videos through the gRPC API: one per line, as JSON with the fields title, description,
               release_year, duration, language_code, tags. The whole file is checked before anything starts.
               A line that is there twice, or was loaded within the last day, creates nothing again.
               If a cmd/dev runs with the state folder, they are loaded into that one, and this one ends.
               With --exit, the exit code is 1 if a video is missing.
`

// tryAPI returns commands that use the API.
func tryAPI(host, grpcurl string) []string {
	return []string{
		`V=$(curl -s ` + host + `/v1/videos -d '{"title":"The Gopher","releaseYear":2009}' | grep -o 'videos/[0-9a-f-]*'); echo $V`,
		`curl -s -X POST "` + host + `/v1/${V}:publish"`,
		grpcurl + ` -plaintext -d '{"name":"catalogEntries/'${V#*/}'","min_version":2}' ` + host + ` catalog.v1.CatalogService/GetCatalogEntry`,
		`curl -s '` + host + `/v1/catalogEntries:search?query=gopher'`,
		`curl -sN ` + host + `/v1/catalogEntries:watch`,
	}
}

const (
	loaders     = 8                // commands in flight
	callTimeout = 30 * time.Second // of one command
	// stallTimeout is how long load waits without any progress before it gives
	// up.
	stallTimeout = 30 * time.Second
)

// input is a line of a file of videos.
type input struct {
	line      int
	requestID string
	video     *videov1.Video
}

// lineIDs is the namespace of the request ids (RFC 9562, section 5.5). A line
// has the same id in every run, so loading it again creates nothing.
var lineIDs = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://example.com/videocatalog/cmd/dev/load"))

// readVideos reads and checks a file of videos; without a path it returns none.
// Equal lines are returned once. The error has the first mistake, as path:line.
func readVideos(path string) ([]input, error) {
	if path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(path) //nolint:gosec // the path is the user's
	if err != nil {
		return nil, fmt.Errorf("--load: %w", err)
	}
	var inputs []input
	var first error
	mistakes, number := 0, 0
	seen := make(map[string]bool)
	for line := range bytes.Lines(content) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		video, err := parseVideo(fmt.Sprintf("%s:%d", path, number), line)
		if err != nil {
			if mistakes++; mistakes == 1 {
				first = err
			}
			continue
		}
		if !seen[string(line)] {
			seen[string(line)] = true
			inputs = append(inputs, input{line: number, requestID: uuid.NewSHA1(lineIDs, line).String(), video: video})
		}
	}
	if first != nil {
		return nil, fmt.Errorf("%w (lines with mistakes: %d): nothing was loaded", first, mistakes)
	}
	if len(inputs) == 0 {
		return nil, fmt.Errorf("--load: %s has no videos", path)
	}
	return inputs, nil
}

// protobufError matches what protobuf puts before its message: a prefix, a
// random space and the position.
var protobufError = regexp.MustCompile(`^proto:[\s\x{a0}]+(?:syntax error )?(?:\(line \d+:(\d+)\):[\s\x{a0}]+)?`)

// parseVideo parses a video and checks it by the rules in api/proto. Fields
// that the server sets are rejected. An error begins with place, and with the
// column if it is known.
func parseVideo(place string, line []byte) (*videov1.Video, error) {
	video := new(videov1.Video)
	if err := protojson.Unmarshal(line, video); err != nil {
		text := err.Error()
		if found := protobufError.FindStringSubmatch(text); found != nil {
			text = strings.TrimPrefix(text, found[0])
			place = strings.TrimSuffix(place+":"+found[1], ":")
		}
		return nil, fmt.Errorf("%s: %s", place, text)
	}
	var readOnly protoreflect.Name
	video.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !slices.Contains(domain.AllFields(), domain.Field(field.Name())) {
			readOnly = field.Name()
		}
		return readOnly == ""
	})
	if readOnly != "" {
		return nil, fmt.Errorf("%s: %s: is set by the server", place, readOnly)
	}
	if strings.TrimSpace(video.GetTitle()) == "" {
		return nil, fmt.Errorf("%s: title: must not be empty", place)
	}
	err := protovalidate.Validate(video)
	if invalid, ok := errors.AsType[*protovalidate.ValidationError](err); ok {
		violation := invalid.Violations[0].Proto
		return nil, fmt.Errorf("%s: %s: %s", place, protovalidate.FieldPathString(violation.GetField()), violation.GetMessage())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	return video, nil
}

// loadOrJoin loads videos into the stack, which start has started, or not, with the error
// err. If another stack runs with the state folder, it loads them there, and has joined.
func (s *stack) loadOrJoin(ctx context.Context, err error, videos []input) (joined bool, _ error) {
	if joined = errors.Is(err, errInUse) && s.joins(); joined {
		err = s.join(ctx)
	}
	if err != nil {
		return joined, err
	}
	err = s.load(ctx, videos)
	if err != nil && !s.exit && !joined && ctx.Err() == nil {
		s.screen.warn(red, err.Error())
		err = nil
	}
	return joined, err
}

// load creates and publishes videos through the API, 8 at a time, and waits
// until they are in the catalog. A video that fails does not stop the others.
func (s *stack) load(ctx context.Context, inputs []input) error {
	if len(inputs) == 0 {
		return nil
	}
	conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer conn.Close()
	l := &loader{stack: s, client: videov1.NewVideoServiceClient(conn), inputs: inputs, start: time.Now()}
	var sending sync.WaitGroup
	var next atomic.Int64
	for range loaders {
		sending.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(inputs)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				l.send(ctx, inputs[i])
			}
		})
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sending.Wait()
		l.accepted = time.Since(l.start)
	}()
	last, err := l.follow(ctx, sent)
	<-sent
	s.screen.update("")
	if err != nil {
		return err
	}
	return l.report(ctx, last)
}

// loader loads videos. It is safe for concurrent use.
type loader struct {
	*stack
	client   videov1.VideoServiceClient
	inputs   []input
	start    time.Time
	accepted time.Duration // from start to the last response; read it after everything is sent

	mu      sync.Mutex
	created int      // existing videos, new or not
	events  int      // events that this run has caused
	videos  []loaded // published videos, which must reach the catalog
	failed  []error
}

// loaded is a published video.
type loaded struct {
	id         uuid.UUID
	version    int64
	updateTime time.Time
	isNew      bool // created by this run, not an earlier one
	changed    bool // published by this run
}

// send creates and publishes one video. It can be repeated: a request id
// creates only one video, and a published video is not published again.
func (l *loader) send(ctx context.Context, in input) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	created, err := l.client.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: in.video, RequestId: in.requestID})
	if err != nil {
		l.fail(in, "create", err)
		return
	}
	isNew := !created.GetCreateTime().AsTime().Before(l.start.Truncate(time.Millisecond)) // the server runs on this machine, with the same clock
	l.count(isNew)
	published, err := l.client.PublishVideo(ctx, &videov1.PublishVideoRequest{Name: created.GetName()})
	if err != nil {
		l.fail(in, "publish", err)
		return
	}
	id, err := uuid.Parse(strings.TrimPrefix(published.GetName(), "videos/"))
	if err != nil {
		l.fail(in, "read name", err)
		return
	}
	l.add(loaded{
		id: id, version: published.GetVersion(), updateTime: published.GetUpdateTime().AsTime(),
		isNew: isNew, changed: created.GetState() != videov1.Video_STATE_PUBLISHED,
	})
}

// count counts an existing video.
func (l *loader) count(isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.created++
	if isNew {
		l.events++
	}
}

// add records a published video.
func (l *loader) add(video loaded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.videos = append(l.videos, video)
	if video.changed {
		l.events++
	}
}

func (l *loader) fail(in input, verb string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, fmt.Errorf("%s:%d: %s: %s", l.file, in.line, verb, status.Convert(err).Message()))
}

// sample has the progress of the videos at one moment.
type sample struct {
	created   int // videos
	waiting   int // events in the outbox
	published int // events that were sent to Pub/Sub
	projected int // videos in the catalog
	expected  int // videos that should be in the catalog
}

func (s sample) String() string {
	return fmt.Sprintf("created %d → outbox %d → published %d events → projected %d", s.created, s.waiting, s.published, s.projected)
}

// follow shows the progress until all videos are in the catalog, or until
// nothing has changed for stallTimeout. It returns the last sample.
func (l *loader) follow(ctx context.Context, sent <-chan struct{}) (last sample, err error) {
	moved, shown, pause := l.start, l.start, 50*time.Millisecond
	for all := false; ; {
		select {
		case <-ctx.Done():
			return last, context.Cause(ctx)
		case <-time.After(pause):
		}
		select {
		case <-sent:
			all = true
		default:
		}
		began := time.Now()
		now, err := l.sample(ctx)
		if err != nil {
			return last, err
		}
		pause = max(pause, 5*time.Since(began)) // so that sampling stays a small part of the load
		if now != last {
			moved, last = time.Now(), now
		}
		if all && (now.projected == now.expected || time.Since(moved) > stallTimeout) {
			return now, nil
		}
		l.screen.update("  " + l.bar(now) + " " + l.progress(now))
		if l.screen.terminal == nil && time.Since(shown) > 2*time.Second {
			shown = time.Now()
			l.screen.print("  " + l.progress(now))
		}
	}
}

// sample reads the progress from the database.
func (l *loader) sample(ctx context.Context) (sample, error) {
	ids, versions, _, now := l.snapshot(func(loaded) bool { return true })
	err := l.conn.QueryRow(ctx, `
		WITH loaded AS (SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS l (id, version))
		SELECT
			(SELECT count(*) FROM video_catalog.outbox_pending o JOIN loaded ON o.aggregate_id = loaded.id::text),
			(SELECT count(*) FROM video_catalog_read.video_projection p JOIN loaded ON p.video_id = loaded.id AND p.version >= loaded.version)`,
		ids, versions).Scan(&now.waiting, &now.projected)
	if err != nil {
		return now, fmt.Errorf("ask where the videos are: %w", err)
	}
	now.published = max(0, now.published-now.waiting)
	return now, nil
}

// snapshot returns some videos as columns, and a sample that assumes that every
// event has been published.
func (l *loader) snapshot(wanted func(loaded) bool) (ids []uuid.UUID, versions []int64, times []time.Time, now sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, video := range l.videos {
		if wanted(video) {
			ids, versions, times = append(ids, video.id), append(versions, video.version), append(times, video.updateTime)
		}
	}
	return ids, versions, times, sample{created: l.created, published: l.events, expected: len(l.videos)}
}

func (l *loader) progress(now sample) string { return fmt.Sprintf("%s of %d", now, len(l.inputs)) }

// bar returns a progress bar: one half shows accepted videos, the other half
// those in the catalog.
func (l *loader) bar(now sample) string {
	const length = 20
	full := length * (now.created + now.projected) / (2 * len(l.inputs))
	return strings.Repeat("█", full) + strings.Repeat("░", length-full)
}

// report prints the result, and returns an error if a video is missing.
func (l *loader) report(ctx context.Context, last sample) error {
	took := time.Since(l.start)
	rate := func(n int, d time.Duration) string {
		return fmt.Sprintf("in %.1f s, %.0f/s", d.Seconds(), float64(n)/d.Seconds())
	}
	ids, versions, times, _ := l.snapshot(func(video loaded) bool { return video.changed })
	isNew, _, _, _ := l.snapshot(func(video loaded) bool { return video.isNew })

	l.screen.row("✓", "loaded", fmt.Sprintf("%s: %d videos are in the catalog, %d of them are new", filepath.Base(l.file), last.projected, len(isNew)))
	l.screen.row(" ", "accepted", fmt.Sprintf("%d commands %s", 2*len(l.inputs), rate(2*len(l.inputs), l.accepted)))
	if len(ids) > 0 && last.projected == last.expected {
		l.screen.row(" ", "projected", fmt.Sprintf("%d events %s", last.published, rate(last.published, took)))
		median, slowest, err := l.latency(ctx, ids, versions, times)
		if err != nil {
			return err
		}
		l.screen.row(" ", "latency", fmt.Sprintf("from commit to catalog: p50 %.0f ms, slowest %.0f ms", 1000*median, 1000*slowest))
	}

	const most = 5
	for _, err := range l.failed[:min(most, len(l.failed))] {
		l.screen.warn(red, err.Error())
	}
	var missing []string
	if n := len(l.failed); n > 0 {
		missing = append(missing, fmt.Sprintf("%d lines were refused", n))
	}
	if n := last.expected - last.projected; n > 0 {
		missing = append(missing, fmt.Sprintf("%d videos did not come into the catalog (%d events wait in the outbox)", n, last.waiting))
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: find the reason in %s", strings.Join(missing, ", "), l.short(l.log()))
	}
	return nil
}

// latency returns the time from the publishing command to the catalog, in
// seconds. Videos that have changed since then are left out.
func (l *loader) latency(ctx context.Context, ids []uuid.UUID, versions []int64, times []time.Time) (median, slowest float64, err error) {
	err = l.conn.QueryRow(ctx, `
		SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY took), 0), coalesce(max(took), 0)
		FROM unnest($1::uuid[], $2::bigint[], $3::timestamptz[]) AS loaded (id, version, update_time)
		JOIN video_catalog_read.video_projection p ON p.video_id = loaded.id AND p.version = loaded.version
		CROSS JOIN LATERAL (SELECT extract(epoch FROM p.updated_at - loaded.update_time)::float8 AS took) AS t`,
		ids, versions, times).Scan(&median, &slowest)
	if err != nil {
		err = fmt.Errorf("ask how long the videos took: %w", err)
	}
	return median, slowest, err
}
