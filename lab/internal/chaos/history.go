package chaos

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// History is everything that the checker judges: what clients were told, what
// was on the topic, what is in the database, and which faults there were. It
// is recorded while nobody knows what is right, and read when all is over.
type History struct {
	Answers      []Answer
	Sightings    []Sighting           // of the checker's own subscription, in the order of their arrival
	Publications map[string]time.Time // by message id: when the broker took it
	Acks         []Ack                // of the projectors, in order
	Faults       []FaultRecord
	Reads        []Read     // of the catalog, after a write
	Copies       []*Copy    // of the catalog, as watchers have it at the end
	Trespasses   []Trespass // against who holds a lane
	Odd          []Odd      // answers that only some faults explain
	Stalls       []Stall    // of the machine
	Database     Database
	// Problems are what the lab saw itself: a process that ended unasked, a
	// connection that stayed open.
	Problems []Violation
	Limits   Limits
}

// Limits are the promises that depend on the settings of the run.
type Limits struct {
	Lease       time.Duration // how long a lane waits for a dead publisher
	Takeover    time.Duration // until all that waited when a publisher died is published
	FirstResult time.Duration // until the first event is published after an outage
	Catalog     time.Duration // until the first one is in the catalog after an outage
	Back        time.Duration // until every process works again after a measured fault, but one of the clock of the database
	// Clock is until all that waited when the clock of the database was set right
	// is published, and every process works: what looks like a lease of up to twice
	// the length is waited for.
	Clock time.Duration
}

// Outcome is what a client knows about its command.
type Outcome int

// What a client can know.
const (
	Acknowledged Outcome = iota + 1 // it took effect, or had nothing to change
	Failed                          // it took no effect
	Unknown                         // an answer was lost
)

// Answer is what a client was told at last, after all its retries.
type Answer struct {
	At       time.Time // when it came
	Command  int64     // its number; Create and Update write it into the title
	Kind     string
	Outcome  Outcome
	Video    uuid.UUID // if known
	Version  int64     // as answered
	State    uint64    // digest of the video as answered
	Expected int64     // the version that its etag stood for; 0: it had none
	Lost     int       // attempts whose answers were: each may have taken effect
	Since    time.Time // when the first of these was sent
}

// refused is what a client knows whose last attempt had no effect.
func (a *Answer) refused() {
	a.Outcome = Failed
	if a.Lost > 0 {
		a.Outcome = Unknown
	}
}

// Odd is an attempt, a read or a stream that was answered with a code that says
// nothing to a client: not that the command is refused, nor that it may be sent
// again; or, before there were faults, that it may.
type Odd struct {
	At      time.Time
	Command int64 // 0: of a stream
	Where   string
	Code    codes.Code
}

// again tells whether it says that the attempt may be made again.
func (o Odd) again() bool {
	return o.Code == codes.Unavailable || o.Code == codes.DeadlineExceeded || o.Code == codes.Canceled
}

// Stall is a time in which the machine did not run the lab, which is the broker
// too. What was on its way may be published once more.
type Stall struct {
	From, Until time.Time
	MayRepeat   int
}

// Sighting is a message that came from the topic; the same message may come
// again.
type Sighting struct {
	MessageID string
	Event     uuid.UUID
	Video     uuid.UUID
	Version   int64
	Content   uint64 // digest of key, attributes and payload
}

// Ack is when the broker took a message, and when it took its ack.
type Ack struct{ Published, At time.Time }

// FaultRecord is a fault that was injected.
type FaultRecord struct {
	Kind   string    `json:"kind"`
	Target string    `json:"target,omitempty"`
	Struck time.Time `json:"struck"` // its effect began
	Ended  time.Time `json:"ended"`  // its cause was gone
	// Alone: no other fault was in force from shortly before it until the next.
	Alone bool `json:"alone"`
	// MayRepeat is how many events may be published twice because of it: what
	// its victims can have had in hand.
	MayRepeat int `json:"may_repeat"`
	// Unsettled is how many events were pending in what its victims held, if that
	// was counted.
	Unsettled int `json:"unsettled,omitempty"`
	// Clock is how far the clock of the process was ahead that its events have
	// their times from.
	Clock time.Duration `json:"clock_ns,omitempty"`
	// MayFail: because of it an API process may answer what a client can make
	// nothing of, such as Internal.
	MayFail bool `json:"may_fail,omitempty"`
	// Missing is why it did not happen as it should have. It may have done other
	// harm, but does not count as injected.
	Missing string `json:"missing,omitempty"`
	// GoesOn: the victim serves clients and goes on with what it had under way. So
	// only what clients had been told of by then waits to be published.
	GoesOn bool `json:"goes_on,omitempty"`
	// Recovery says what its recovery is measured from.
	Recovery Recovery `json:"recovery,omitempty"`
	// Back is when every process worked again after its end, where that is
	// measured, and LastBack what was done last.
	Back     time.Duration `json:"back_ns,omitempty"`
	LastBack string        `json:"last_back,omitempty"`

	// What the checker finds out.
	Repeated     int           `json:"repeated"`         // if it was alone: events that were published before it, and again until the next fault
	FirstPublish time.Duration `json:"first_publish_ns"` // the first event that the broker took afterwards
	FirstConsume time.Duration `json:"first_consume_ns"` // the first ack of an event that the broker took afterwards
	Takeover     time.Duration `json:"takeover_ns"`      // until all that waited then was published
}

// Recovery says how a fault is recovered from.
type Recovery string

// What is measured.
const (
	NoRecovery Recovery = ""         // it does not stop the publishers
	Takeover   Recovery = "takeover" // another publisher has to take over, from the moment it struck
	Outage     Recovery = "outage"   // all have to go on, from the moment it ended
	ClockSet   Recovery = "clock"    // leases were given by another clock, from the moment it ended
	Catalog    Recovery = "catalog"  // with an outage: the projectors have to go on, too
	Back       Recovery = "back"     // with each of them, or alone: all processes have to go on
)

// Database is both sides of the service at the end.
type Database struct {
	Videos     []VideoRow
	Events     []EventRow
	Projection map[uuid.UUID]string // the row as text
	Catalog    map[uuid.UUID]Entry  // what it shows of the rows that are visible
	Inbox      map[uuid.UUID]bool
	// What should be nothing once all is quiet.
	Pending, Quarantined int
	Blocked, Leased      []string
}

// VideoRow is a row of video_catalog.videos.
type VideoRow struct {
	ID      uuid.UUID
	Version int64
	State   uint64 // digest
	Catalog string // the row that the projection must have, as text
}

// EventRow is a row of video_catalog.outbox.
type EventRow struct {
	ID         uuid.UUID
	Video      uuid.UUID
	Version    int64
	Type       string
	Content    uint64 // digest of the message that it must become
	State      uint64 // digest of the video that it carries
	Command    int64  // the number in the title; 0: none
	Entry      uint64 // digest of what the catalog must show of it; 0: nothing
	OccurredAt time.Time
}

// state is a video, whoever tells about it.
type state struct {
	title, description             string
	year                           int32
	durationMs                     int64
	language                       string
	tags                           []string
	published                      bool
	version                        int64
	created, updated, shown, ended int64 // ms; 0: never
}

func (s state) digest() uint64 {
	return digest(fmt.Sprintf("%q %q %d %d %q %q %t %d %d %d %d %d", s.title, s.description, s.year, s.durationMs, s.language, s.tags,
		s.published, s.version, s.created, s.updated, s.shown, s.ended))
}

func digest(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint64(sum[:8])
}

// stateOfAnswer reads the answer of the API.
func stateOfAnswer(v *videov1.Video) state {
	s := state{
		title: v.GetTitle(), description: v.GetDescription(), year: v.GetReleaseYear(), durationMs: v.GetDuration().AsDuration().Milliseconds(),
		language: v.GetLanguageCode(), tags: v.GetTags(), published: v.GetState() == videov1.Video_STATE_PUBLISHED, version: v.GetVersion(),
		created: v.GetCreateTime().AsTime().UnixMilli(), updated: v.GetUpdateTime().AsTime().UnixMilli(),
	}
	if v.GetPublishTime() != nil {
		s.shown = v.GetPublishTime().AsTime().UnixMilli()
	}
	if v.GetDeleteTime() != nil {
		s.ended = v.GetDeleteTime().AsTime().UnixMilli()
	}
	return s
}

// stateOfEvent reads the payload of an event.
func stateOfEvent(e *videov1.VideoEvent) state {
	v := e.GetVideo()
	return state{
		title: v.GetTitle(), description: v.GetDescription(), year: v.GetReleaseYear(), durationMs: v.GetDurationMs(),
		language: v.GetLanguageCode(), tags: v.GetTags(), published: v.GetState() == videov1.VideoEvent_STATE_PUBLISHED, version: e.GetVersion(),
		created: v.GetCreateTimeMs(), updated: v.GetUpdateTimeMs(), shown: v.GetPublishTimeMs(), ended: v.GetDeleteTimeMs(),
	}
}

// contentOf is the digest of a message. Attributes that the client library adds
// for itself are none of the contract.
func contentOf(key string, attributes map[string]string, data []byte) uint64 {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %x", key, data)
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if !strings.HasPrefix(name, "googclient_") {
			fmt.Fprintf(&b, " %q=%q", name, attributes[name])
		}
	}
	return digest(b.String())
}

// titleOf is the title that a command writes; commandOf reads its number back.
func titleOf(command int64) string { return "command " + strconv.FormatInt(command, 10) }

func commandOf(title string) int64 {
	number, found := strings.CutPrefix(title, "command ")
	n, err := strconv.ParseInt(number, 10, 64)
	if !found || err != nil {
		return 0
	}
	return n
}
