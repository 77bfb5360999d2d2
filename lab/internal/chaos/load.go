package chaos

import (
	"context"
	"encoding/json"
	"math/rand/v2"
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

// load is what clients do: commands on a few hundred videos, one of them hot,
// over gRPC and REST, with request ids and etags, and again when an answer is
// lost. What each client wants is drawn from the seed, whatever became of its
// commands before; what there is when it wants it, and what it meets, is not.
type load struct {
	apis    []*process
	clients int
	rate    float64 // commands per second, all clients together
	seed    uint64
	problem func(Rule, string, ...any)

	numbers atomic.Int64 // of the commands

	mu       sync.Mutex
	videos   []*known       // guarded by mu
	answers  []Answer       // guarded by mu
	reads    []Read         // guarded by mu
	codes    map[string]int // guarded by mu: attempts by what they answered
	unread   map[string]int // guarded by mu: reads and streams that failed, likewise
	odd      []Odd          // guarded by mu
	faults   bool           // guarded by mu: there are some, or have been
	attempts *json.Encoder  // guarded by mu: failed attempts and final answers, one line each
}

// known is what the clients know of a video.
type known struct {
	name    string
	version int64
	deleted bool
}

// fewVideos is how many videos there are soon; from then on few are made.
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
		return *l.videos[0], true // the hot one
	}
	return *l.videos[r.IntN(len(l.videos))], true
}

// learn takes an answer into account.
func (l *load) learn(v *videov1.Video) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.videos {
		if k.name == v.GetName() {
			if v.GetVersion() > k.version {
				k.version, k.deleted = v.GetVersion(), v.GetDeleteTime() != nil
			}
			return
		}
	}
	if len(l.videos) < 2*fewVideos { // others stay as they were made
		l.videos = append(l.videos, &known{v.GetName(), v.GetVersion(), v.GetDeleteTime() != nil})
	}
}

func (l *load) attempted(command int64, r request, where string, took time.Duration, code codes.Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.codes[code.String()]++
	if code == codes.OK {
		return // the answer follows
	}
	if odd(r, code) || lost(code) && !l.faults {
		l.odd = append(l.odd, Odd{time.Now(), command, where, code})
	}
	// A disk that is full shows elsewhere; this is for a person, the checker has its own.
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

// failedToRead takes a read or a stream into account that ended with a code that
// leaves everything open.
func (l *load) failedToRead(command int64, where string, code codes.Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unread[code.String()]++
	// A catalog that is late for a moment, before there are faults, is slow and no more.
	if late := code == codes.DeadlineExceeded || code == codes.Canceled; !late && (code != codes.Unavailable || !l.faults) {
		l.odd = append(l.odd, Odd{time.Now(), command, where, code})
	}
}

// expectFaults says that from now on an answer may be lost.
func (l *load) expectFaults() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = true
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
	made   uint64     // commands
	luck   *rand.Rand // how its commands are sent, which depends on how often they are
}

func newClient(l *load, number uint64) *client {
	return &client{load: l, number: number, luck: rand.New(rand.NewPCG(l.seed, number))}
}

// run sends commands until ctx ends, one after the other. When each is due is
// drawn: clients whose commands all were due at the same intervals would send
// together, and leave all processes idle in between; then a publisher that looks
// at a multiple of these intervals finds nothing again and again.
func (c *client) run(ctx context.Context, command func(context.Context)) {
	draw := rand.New(rand.NewPCG(c.load.seed, c.number<<32)) // not of luck, which depends on what the commands meet
	mean := float64(c.load.clients) / c.load.rate * float64(time.Second)
	for due := time.Now(); ctx.Err() == nil; {
		due = due.Add(time.Duration(draw.ExpFloat64() * mean))
		if late := time.Since(due); late > time.Second {
			due = time.Now() // after an outage nobody makes up for it
		} else if late < 0 {
			sleep(ctx, -late)
		}
		command(ctx)
	}
}

// request is a command, whatever it is sent with.
type request struct {
	kind      string
	video     *videov1.Video // for create and update
	name      string
	etag      string
	requestID string
	read      bool // what it wrote, once it is acknowledged
}

// The kinds of commands.
const (
	kindCreate    = "create"
	kindUpdate    = "update"
	kindPublish   = "publish"
	kindUnpublish = "unpublish"
	kindDelete    = "delete"
	kindUndelete  = "undelete"
)

// command makes one, sends it until there is an answer, and records what a
// client may believe then.
func (c *client) command(ctx context.Context) {
	r, answer := c.next()
	c.decide(ctx, &answer, func() (*videov1.Video, codes.Code, bool) { return c.send(ctx, answer.Command, r) })
	c.load.answered(answer)
	if answer.Outcome == Acknowledged && r.read {
		c.readOwnWrite(ctx, answer)
	}
}

// next draws the next command, each from a source of its own: so the next ones
// are the same, however many draws this one takes.
func (c *client) next() (request, Answer) {
	c.made++
	script := rand.New(rand.NewPCG(c.load.seed, c.number<<32|c.made))
	answer := Answer{Command: c.load.numbers.Add(1)}
	r := request{kind: kindCreate, requestID: drawUUID(script), read: script.IntN(10) == 0}
	if target, exists := c.load.pick(script); exists {
		r = request{kind: drawKind(script, target), name: target.name, read: r.read}
		if script.IntN(3) == 0 {
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

func drawKind(r *rand.Rand, k known) string {
	switch n := r.IntN(100); {
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

// decide sends a command until it is answered, and says what is known then. A
// refusal after an attempt without an answer proves nothing: that attempt may
// be what it was refused for.
func (c *client) decide(ctx context.Context, answer *Answer, send func() (v *videov1.Video, code codes.Code, sent bool)) {
	const attempts = 8
	for attempt := range attempts {
		start := time.Now()
		v, code, sent := send()
		switch {
		case code == codes.OK:
			c.load.learn(v)
			if !fits(answer.Kind, v) {
				c.load.problem(CommandLost, "command %d (%s) is acknowledged with version %d of video %s, which does not show it", answer.Command, answer.Kind, v.GetVersion(), v.GetName())
			}
			answer.Outcome, answer.Video, answer.Version, answer.State = Acknowledged, videoID(v.GetName()), v.GetVersion(), stateOfAnswer(v).digest()
			if answer.Lost > 0 {
				answer.Expected = 0 // the attempt before may have been the change, and others came after it
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

// fits tells whether a video is as a kind of command leaves it. The checker
// looks at what create and update wrote.
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
	default:
		return true
	}
}

// lost tells whether a code leaves open what has become of the command.
func lost(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

// odd tells whether a code is neither a refusal that the state of the video can
// be the reason of, nor one of those by which a client knows to try again.
func odd(r request, code codes.Code) bool {
	switch code {
	case codes.OK, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	case codes.Aborted: // changed meanwhile
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

// send makes one attempt, at an instance and over a protocol drawn anew; not
// sent is what nobody was there for.
func (c *client) send(ctx context.Context, number int64, r request) (v *videov1.Video, code codes.Code, sent bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout) // an attempt is never given up because the load ends
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

// anyVideo returns the id of a video that clients change.
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
