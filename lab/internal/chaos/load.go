package chaos

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// load is the work of clients: commands on a few hundred videos over gRPC and
// REST, with request ids and etags, and retries of lost attempts. One video is
// changed most often. The seed decides the commands of each client, whatever
// their results are. It does not decide which videos exist at that time.
type load struct {
	apis    []*process
	clients int
	rate    float64 // commands per second, all clients together
	seed    uint64
	// patience is how long a client waits for its own write in the catalog.
	patience time.Duration
	problem  func(Rule, string, ...any)

	numbers atomic.Int64 // number of the newest command
	faults  atomic.Bool  // a fault was injected: from now on, results may be lost
	purging atomic.Bool  // deleted videos are purged, and not undeleted

	mu       sync.Mutex
	videos   []*known        // guarded by mu
	answers  []Answer        // guarded by mu
	reads    []Read          // guarded by mu
	codes    map[string]int  // guarded by mu: attempts by code
	unread   map[string]int  // guarded by mu: failed reads and streams by code
	odd      []Odd           // guarded by mu
	purged   map[string]bool // guarded by mu: names of videos that were purged
	attempts *json.Encoder   // guarded by mu: writes failed attempts and final results, one line each
}

// known is what the clients know of a video.
type known struct {
	name    string
	version int64
	deleted bool
}

// fewVideos is the number of videos that clients create quickly. After that
// they create only few more.
const fewVideos = 300

func (l *load) run(ctx context.Context) {
	var clients sync.WaitGroup
	for i := range uint64(l.clients) { //nolint:gosec // a few
		clients.Go(func() {
			c := newClient(l, i+1)
			c.run(ctx, c.command)
		})
	}
	clients.Wait()
}

func (l *load) pick(r *rand.Rand) (known, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.videos) == 0 || len(l.videos) < fewVideos && r.IntN(4) == 0 || r.IntN(100) == 0 {
		return known{}, false
	}
	if r.IntN(10) == 0 {
		return *l.videos[0], true // the video that is changed most often
	}
	return *l.videos[r.IntN(len(l.videos))], true
}

// learn records a video that a client received.
func (l *load) learn(v *videov1.Video) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.purged[v.GetName()] {
		return
	}
	for _, k := range l.videos {
		if k.name == v.GetName() {
			if v.GetVersion() > k.version {
				k.version, k.deleted = v.GetVersion(), v.GetDeleteTime() != nil
			}
			return
		}
	}
	if len(l.videos) < 2*fewVideos { // clients do not change further ones
		l.videos = append(l.videos, &known{v.GetName(), v.GetVersion(), v.GetDeleteTime() != nil})
	}
}

// forget removes a video that was purged.
func (l *load) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.purged == nil {
		l.purged = map[string]bool{}
	}
	l.purged[name] = true
	l.videos = slices.DeleteFunc(l.videos, func(k *known) bool { return k.name == name })
}

func (l *load) attempted(command int64, r request, where string, took time.Duration, code codes.Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.codes[code.String()]++
	if code == codes.OK {
		return // the caller records the result
	}
	if odd(r, code) || lost(code) && !l.faults.Load() {
		l.odd = append(l.odd, Odd{time.Now(), command, videoID(r.name), where, code})
	}
	// A write error is ignored: this file is for a person, and the checker does
	// not use it.
	_ = l.attempts.Encode(map[string]any{
		"at": time.Now().Format(time.RFC3339Nano), "command": command, "kind": r.kind, "to": where, "ms": took.Milliseconds(), "code": code.String(),
	})
}

func (l *load) answered(a Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.At = time.Now()
	l.answers = append(l.answers, a)
	_ = l.attempts.Encode(map[string]any{
		"at": a.At.Format(time.RFC3339Nano), "answer": a.Command, "kind": a.Kind, "outcome": a.Outcome, "video": a.Video, "version": a.Version, "expected": a.Expected,
	})
}

// failedToRead records a read or a stream that failed.
func (l *load) failedToRead(command int64, where string, code codes.Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unread[code.String()]++
	// Before the first fault, a catalog that is late for a moment is only slow.
	if late := code == codes.DeadlineExceeded || code == codes.Canceled; !late && (code != codes.Unavailable || !l.faults.Load()) {
		l.odd = append(l.odd, Odd{At: time.Now(), Command: command, Where: where, Code: code})
	}
}

func (l *load) read(r Read) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads = append(l.reads, r)
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.answers)
}

type client struct {
	load   *load
	number uint64
	made   uint64     // number of commands
	luck   *rand.Rand // for each attempt: process, protocol, pause
}

func newClient(l *load, number uint64) *client {
	return &client{load: l, number: number, luck: rand.New(rand.NewPCG(l.seed, number))}
}

// run sends commands one after the other until ctx ends. The pauses between them
// are random. With equal pauses, all clients would send at the same time, and a
// publisher that polls in between would find nothing, again and again.
func (c *client) run(ctx context.Context, command func(context.Context)) {
	draw := rand.New(rand.NewPCG(c.load.seed, c.number<<32)) // not luck: how often luck is used depends on the results of commands
	mean := float64(c.load.clients) / c.load.rate * float64(time.Second)
	for due := time.Now(); ctx.Err() == nil; {
		due = due.Add(time.Duration(draw.ExpFloat64() * mean))
		if late := time.Since(due); late > time.Second {
			due = time.Now() // the commands of an outage are not sent later
		} else if late < 0 {
			sleep(ctx, -late)
		}
		command(ctx)
	}
}

// request is a command, independent of the protocol.
type request struct {
	kind      string
	video     *videov1.Video // for create and update
	name      string
	etag      string
	requestID string
	read      bool // read its own write from the catalog after it
}

// The kinds of commands.
const (
	kindCreate    = "create"
	kindUpdate    = "update"
	kindPublish   = "publish"
	kindUnpublish = "unpublish"
	kindDelete    = "delete"
	kindUndelete  = "undelete"
	kindPurge     = "purge"
)

// command sends one command until it has a result, and records what the client
// then knows.
func (c *client) command(ctx context.Context) {
	r, answer := c.next()
	c.decide(ctx, &answer, func() (*videov1.Video, codes.Code, bool) { return c.send(ctx, answer.Command, r) })
	c.load.answered(answer)
	if answer.Outcome == Acknowledged && r.read {
		c.readOwnWrite(ctx, answer)
	}
}

// next draws the next command. Each command has its own random source, so that
// it does not depend on how many numbers the commands before it have used.
func (c *client) next() (request, Answer) {
	c.made++
	script := rand.New(rand.NewPCG(c.load.seed, c.number<<32|c.made))
	answer := Answer{Command: c.load.numbers.Add(1)}
	r := request{kind: kindCreate, requestID: drawUUID(script), read: script.IntN(10) == 0}
	if target, exists := c.load.pick(script); exists {
		r = request{kind: c.load.drawKind(script, target), name: target.name, read: r.read}
		// A purge of a purged video succeeds with any etag, so the checker could not judge the etag.
		if script.IntN(3) == 0 && r.kind != kindPurge {
			r.etag, answer.Expected = strconv.Quote(strconv.FormatInt(target.version, 10)), target.version
		}
		answer.Video = videoID(target.name)
	}
	if r.kind == kindCreate || r.kind == kindUpdate {
		r.video = drawVideo(script, answer.Command)
	}
	answer.Kind = r.kind
	return r, answer
}

func (l *load) drawKind(r *rand.Rand, k known) string {
	switch n := r.IntN(100); {
	case k.deleted && n < 80 && l.purging.Load():
		return kindPurge
	case k.deleted && n < 80:
		return kindUndelete
	case n < 60:
		return kindUpdate
	case n < 78:
		return kindPublish
	case n < 90:
		return kindUnpublish
	case n < 98:
		return kindDelete
	default:
		return kindUndelete
	}
}

// purge has clients purge deleted videos until it is called with false. It returns how many
// were purged so far.
func (l *load) purge(on bool) (purged int) {
	l.purging.Store(on)
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.purged)
}

// decide sends a command until it has a result, and sets what is then known. A
// refusal after a lost attempt proves nothing, because the lost attempt may be
// its cause.
func (c *client) decide(ctx context.Context, answer *Answer, send func() (v *videov1.Video, code codes.Code, sent bool)) {
	const attempts = 8
	for attempt := range attempts {
		start := time.Now()
		v, code, sent := send()
		switch {
		case code == codes.OK:
			if answer.Kind == kindPurge {
				c.load.forget(v.GetName())
			} else {
				c.load.learn(v)
			}
			if !fits(answer.Kind, v) {
				c.load.problem(CommandLost, "command %d (%s) is acknowledged with version %d of video %s, which does not show it", answer.Command, answer.Kind, v.GetVersion(), v.GetName())
			}
			answer.Outcome, answer.Video, answer.Version, answer.State = Acknowledged, videoID(v.GetName()), v.GetVersion(), stateOfAnswer(v).digest()
			if answer.Lost > 0 {
				answer.Expected = 0 // a lost attempt may have made the change, and others came after it
			}
			return
		case !lost(code):
			answer.refused()
			return
		}
		if sent {
			if answer.Lost++; answer.Lost == 1 {
				answer.Since = start
			}
		}
		pause := min(500*time.Millisecond, 20*time.Millisecond<<attempt)
		if !sleep(ctx, pause/2+time.Duration(c.luck.Int64N(int64(pause)))) {
			break
		}
	}
	answer.refused()
}

// fits reports whether a video has the state that a kind of command sets. The
// checker compares what create and update wrote.
func fits(kind string, v *videov1.Video) bool {
	published, deleted := v.GetState() == videov1.Video_STATE_PUBLISHED, v.GetDeleteTime() != nil
	switch kind {
	case kindPublish:
		return published
	case kindUnpublish:
		return !published
	case kindDelete:
		return deleted
	case kindUndelete:
		return !deleted
	case kindPurge:
		return deleted && v.GetTitle() == "" && !published
	default:
		return true
	}
}

// lost reports whether a code leaves the effect of the command unknown.
func lost(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

// odd reports whether a code is unexpected: neither a refusal that the state of
// the video can explain, nor a code that allows a retry.
func odd(r request, code codes.Code) bool {
	switch code {
	case codes.OK, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	case codes.Aborted: // changed by others meanwhile
		return r.etag == ""
	case codes.FailedPrecondition: // deleted
		return r.kind == kindCreate || r.kind == kindDelete || r.kind == kindUndelete
	case codes.NotFound: // deleted already
		return r.kind != kindDelete
	case codes.AlreadyExists: // not deleted
		return r.kind != kindUndelete
	default:
		return true
	}
}

const attemptTimeout = 3 * time.Second

// send makes one attempt, at a random process and over a random protocol. sent
// is false if the process does not run.
func (c *client) send(ctx context.Context, number int64, r request) (v *videov1.Video, code codes.Code, sent bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout) // the end of the load does not cancel an attempt
	defer cancel()
	api := c.load.apis[c.luck.IntN(len(c.load.apis))]
	rest := c.luck.IntN(2) == 0
	conn, addr, ok := api.reach()
	if !ok {
		return nil, codes.Unavailable, false
	}
	start := time.Now()
	var err error
	where := "gRPC " + api.name
	if rest {
		where = "REST " + api.name
		v, err = overREST(ctx, addr, r)
	} else {
		v, err = overGRPC(ctx, videov1.NewVideoServiceClient(conn), r)
	}
	code = status.Code(err)
	c.load.attempted(number, r, where, time.Since(start), code)
	return v, code, true
}

func drawVideo(r *rand.Rand, number int64) *videov1.Video {
	languages := []string{"", "en", "de", "pt-BR"}
	tags := []string{"drama", "comedy", "noir", `quo"te`, "back\\slash", "ünïcode"}
	r.Shuffle(len(tags), func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
	return &videov1.Video{
		Title:        titleOf(number),
		Description:  strings.Repeat("A description. ", r.IntN(20)),
		ReleaseYear:  1900 + int32(r.IntN(120)), //nolint:gosec // small
		Duration:     durationpb.New(time.Duration(r.IntN(10_000_000)) * time.Millisecond),
		LanguageCode: languages[r.IntN(len(languages))],
		Tags:         tags[:r.IntN(4)],
	}
}

func drawUUID(r *rand.Rand) string {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(r.IntN(256)) //nolint:gosec // fits
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

func videoID(name string) uuid.UUID {
	id, err := uuid.Parse(strings.TrimPrefix(name, "videos/"))
	if err != nil {
		return uuid.Nil
	}
	return id
}

// anyVideo returns the id of a video that clients change. It is often the one
// that is changed most.
func (l *load) anyVideo(r *rand.Rand) (id string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.videos) == 0 {
		return "", false
	}
	v := l.videos[0]
	if r.IntN(3) > 0 {
		v = pick(r, l.videos)
	}
	return videoID(v.name).String(), true
}
