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

// History is everything that the checker needs: the results of clients, the
// messages of the topic, the content of the database, and the faults. It is only
// recorded during the run, and checked afterwards.
type History struct {
	Answers      []Answer
	Sightings    []Sighting           // messages of the checker's own subscription, in the order of arrival
	Publications map[string]time.Time // when the broker accepted a message, by message id
	Acks         []Ack                // of the projectors, in order
	Faults       []FaultRecord
	Reads        []Read     // of the catalog, after a write
	Copies       []*Copy    // of the catalog, as watchers have it at the end
	Trespasses   []Trespass // writes to a lane that another process holds
	Odd          []Odd      // codes that only some faults explain
	Stalls       []Stall    // of the machine
	Database     Database
	// Problems are violations that the lab found during the run, such as a process
	// that ended unexpectedly.
	Problems []Violation
	Limits   Limits
}

// Limits are the maximum times that depend on the settings of the run.
type Limits struct {
	Lease       time.Duration // how long a lane stays leased after its publisher died
	Takeover    time.Duration // until everything that was pending when a publisher died is published
	FirstResult time.Duration // until the first event is published after an outage
	Catalog     time.Duration // until the first event is in the catalog after an outage
	Back        time.Duration // until every process works again after a measured fault
	Unsaved     time.Duration // how long PostgreSQL may keep the position of a slot in memory only
}

// Outcome is what a client knows about the effect of its command.
type Outcome int

// The outcomes.
const (
	Acknowledged Outcome = iota + 1 // it took effect, or had nothing to change
	Failed                          // it took no effect
	Unknown                         // the result of an attempt was lost
)

// Answer is the final result of a command for its client, after all retries.
type Answer struct {
	At       time.Time // when the client received it
	Command  int64     // its number; Create and Update write it into the title
	Kind     string
	Outcome  Outcome
	Video    uuid.UUID // if known
	Version  int64     // of the result
	State    uint64    // digest of the video in the result
	Expected int64     // the version in its etag; 0: it had none
	Lost     int       // attempts whose results were lost: each may have taken effect
	Since    time.Time // when the first lost attempt was sent
}

// refused sets the outcome of a command that was not acknowledged.
func (a *Answer) refused() {
	a.Outcome = Failed
	if a.Lost > 0 {
		a.Outcome = Unknown
	}
}

// Odd is an attempt, a read or a stream with an unexpected code. Such a code
// neither refuses the command nor allows a retry. Before the first fault, codes
// that allow a retry are unexpected too.
type Odd struct {
	At      time.Time
	Command int64     // 0: of a stream
	Video   uuid.UUID // of the command, if it has one
	Where   string
	Code    codes.Code
}

// again reports whether the code allows a retry.
func (o Odd) again() bool {
	return o.Code == codes.Unavailable || o.Code == codes.DeadlineExceeded || o.Code == codes.Canceled
}

// Stall is a time in which the machine did not run the lab. The broker is part of
// the lab, so what was being published may be published once more.
type Stall struct {
	From, Until time.Time
	MayRepeat   int
}

// Sighting is a message from the topic. The same message may arrive again.
type Sighting struct {
	MessageID string
	Event     uuid.UUID
	Video     uuid.UUID
	Version   int64
	Content   uint64 // digest of key, attributes and payload
}

// Ack is an ack of a projector: when the broker accepted the message, and when it
// received the ack.
type Ack struct{ Published, At time.Time }

// FaultRecord is the record of an injected fault.
type FaultRecord struct {
	Kind   string    `json:"kind"`
	Target string    `json:"target,omitempty"`
	Struck time.Time `json:"struck"` // when its effect began
	Ended  time.Time `json:"ended"`  // when its cause was removed
	// Alone means that no other fault was in force, from shortly before it until
	// the next one.
	Alone bool `json:"alone"`
	// MayRepeat is how many events may be published twice because of it. These are
	// the events that its victims may have published but not settled.
	MayRepeat int `json:"may_repeat"`
	// Unsettled is how many events were pending in the lanes of its victims, if
	// that was counted.
	Unsettled int `json:"unsettled,omitempty"`
	// Clock is how far the clock of the process was ahead. It is negative if the clock was behind.
	Clock time.Duration `json:"clock_ns,omitempty"`
	// MayFail means that an API process may return codes such as Internal because
	// of it.
	MayFail bool `json:"may_fail,omitempty"`
	// Missing is why the fault did not take effect as intended. It may have had
	// other effects, but does not count as injected.
	Missing string `json:"missing,omitempty"`
	// GoesOn means that a process with the role api was frozen, and later goes on. Then Takeover
	// is only about events whose result a client had received before the fault.
	GoesOn bool `json:"goes_on,omitempty"`
	// Recovery is how its recovery is measured.
	Recovery Recovery `json:"recovery,omitempty"`
	// Back is the time from its end until every process worked again, if that is
	// measured. LastBack is the task that was done last.
	Back     time.Duration `json:"back_ns,omitempty"`
	LastBack string        `json:"last_back,omitempty"`

	// Set by the checker.
	Repeated     int           `json:"repeated"`         // if it was alone: events published before it, and again until the next fault
	FirstPublish time.Duration `json:"first_publish_ns"` // until the broker accepted the first event after it
	FirstConsume time.Duration `json:"first_consume_ns"` // until the first ack of an event that the broker accepted after it
	Takeover     time.Duration `json:"takeover_ns"`      // until everything that was pending is published
}

// Recovery is how the recovery from a fault is measured.
type Recovery string

// The kinds of recovery.
const (
	NoRecovery Recovery = ""         // not measured: publishers continue
	Takeover   Recovery = "takeover" // from the start of the fault, until another publisher has taken over
	Outage     Recovery = "outage"   // from the end of the fault, until all publishers continue
	Catalog    Recovery = "catalog"  // with Outage: until the projectors continue
	Back       Recovery = "back"     // with each of these, or alone: until all processes work
)

// Database is the final content of both schemas.
type Database struct {
	Videos     []VideoRow
	Events     []EventRow
	Projection map[uuid.UUID]string // the row as text
	Catalog    map[uuid.UUID]Entry  // what the catalog shows of the visible rows
	Inbox      map[uuid.UUID]bool   // events that were ever in the inbox
	Outbox     map[uuid.UUID]bool   // events that are still in the outbox
	// These should be empty when all events are processed.
	Pending, Quarantined  int
	Blocked, Leased, Left []string
}

// VideoRow is a row of video_catalog.videos.
type VideoRow struct {
	ID      uuid.UUID
	Version int64
	State   uint64 // digest
	Catalog string // the row that the projection must have, as text
}

// EventRow is an event that was committed, whether or not the outbox still has it.
type EventRow struct {
	ID         uuid.UUID
	Video      uuid.UUID
	Version    int64
	Type       string
	Content    uint64 // digest of the expected message
	State      uint64 // digest of the video in the event
	Command    int64  // the number in the title; 0: none
	Entry      uint64 // digest of what the catalog must show of it; 0: nothing
	Blank      bool   // it has nothing that an owner has written
	OccurredAt time.Time
}

// state is the state of a video, from any source.
type state struct {
	title, description             string
	year                           int32
	durationMs                     int64
	language                       string
	tags                           []string
	published                      bool
	version                        int64
	created, updated, shown, ended int64 // in ms; 0: never
}

func (s state) digest() uint64 {
	return digest(fmt.Sprintf("%q %q %d %d %q %q %t %d %d %d %d %d", s.title, s.description, s.year, s.durationMs, s.language, s.tags,
		s.published, s.version, s.created, s.updated, s.shown, s.ended))
}

func digest(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint64(sum[:8])
}

// stateOfAnswer converts a video of the API.
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

// stateOfEvent converts the payload of an event.
func stateOfEvent(e *videov1.VideoEvent) state {
	v := e.GetVideo()
	return state{
		title: v.GetTitle(), description: v.GetDescription(), year: v.GetReleaseYear(), durationMs: v.GetDurationMs(),
		language: v.GetLanguageCode(), tags: v.GetTags(), published: v.GetState() == videov1.VideoEvent_STATE_PUBLISHED, version: e.GetVersion(),
		created: v.GetCreateTimeMs(), updated: v.GetUpdateTimeMs(), shown: v.GetPublishTimeMs(), ended: v.GetDeleteTimeMs(),
	}
}

// blank reports whether no field is set that an owner writes.
func (s state) blank() bool {
	return s.title == "" && s.description == "" && s.year == 0 && s.durationMs == 0 && s.language == "" && len(s.tags) == 0
}

// contentOf returns the digest of a message. It ignores the attributes that the
// client library adds.
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

// titleOf returns the title that a command writes. commandOf parses the number of
// the command from it.
func titleOf(command int64) string { return "command " + strconv.FormatInt(command, 10) }

func commandOf(title string) int64 {
	number, found := strings.CutPrefix(title, "command ")
	n, err := strconv.ParseInt(number, 10, 64)
	if !found || err != nil {
		return 0
	}
	return n
}
