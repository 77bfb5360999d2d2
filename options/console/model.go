package console

import (
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
)

// CountLimit is up to how many rows a sample counts per lane, and of everything else.
const CountLimit = 10_000

// CommandSample is a measurement of the command side.
type CommandSample struct {
	Time     time.Time // by the clock of the database
	Lanes    []Lane
	Aside    Lane // the events of blocked aggregates
	Blocked  int64
	Parked   int64
	Newest   []Write       // the newest events, the newest first
	Appended int64         // events since the time that the caller named
	Over     time.Duration // the time in which they were appended; 0: not counted
	Until    time.Time     // count from here next time
}

// Pending returns the number of pending events, counted up to the limit per lane.
func (s CommandSample) Pending() (n int64) {
	for _, lane := range s.Lanes {
		n += lane.Pending
	}
	return n + s.Aside.Pending
}

// Oldest returns the age of the oldest event that may be published; 0 if there is none.
func (s CommandSample) Oldest() (oldest time.Duration) {
	for _, lane := range s.Lanes {
		oldest = max(oldest, lane.Oldest)
	}
	return oldest
}

// Lane is a lane of the outbox.
type Lane struct {
	Number      int
	Era         int64
	Token       int64 // 0: the lane is free
	Settlements int64
	LeaseLeft   time.Duration // 0: the lane is free
	Oldest      time.Duration // age of the oldest pending event; 0: there is none
	Pending     int64
}

// Write is an event of the outbox.
type Write struct {
	envelope.Aggregate
	EventID uuid.UUID
	Event   string
	Version int64
	Time    time.Time
	TraceID string
	Title   string    // of the aggregate; may be empty
	Applied time.Time // zero: not known to be applied
}

// QuerySample is a measurement of the query side.
type QuerySample struct {
	Quarantined     int64
	QuarantineBytes int64
}

// ViewSample is a measurement of a projection.
type ViewSample struct {
	Position  uint64 // describe the entries after it next time
	Entries   int64
	Estimated bool // Entries is an estimate
	Applied   int64
	P50, P99  time.Duration // from the event to the entry, of those applied
	AppliedAt time.Time     // when an entry was last written; zero: never
}

// History has the events of an aggregate.
type History struct {
	Events []Event // the newest first
	// Cut says that there may be older events, which were not read.
	Cut bool
	// Unsure says that not all pending events were read: one that looks published may be
	// pending.
	Unsure  bool
	Blocked *Blocked // nil: the aggregate is not blocked
	// RequestID is that of the command that made the aggregate; uuid.Nil: it had none, or is
	// not known any more.
	RequestID uuid.UUID
}

// State is where an event is on its way to the broker.
type State string

// The states of an event.
const (
	Pending   State = "pending"
	Published State = "published"
	SetAside  State = "set aside"
)

// Event is an event of an aggregate.
type Event struct {
	ID      uuid.UUID
	Type    string
	Version int64
	Schema  int32
	Time    time.Time
	TraceID string
	// Caller is who called the command; empty: the event has no caller, or the caller is unknown.
	Caller string
	// Cause is the event that led to this one, and First the first one of the chain. Nil:
	// there is none.
	Cause, First *Cause
	State        State
	Applied      []Applied
}

// Cause is an event that led to another one.
type Cause struct {
	envelope.Aggregate // zero: the outbox does not have the event
	EventID            uuid.UUID
	Event              string
}

// Applied says when a consumer applied an event, or reacted to it.
type Applied struct {
	Consumer string
	Time     time.Time
}

// Blocked says why an aggregate is blocked.
type Blocked struct {
	Attempts  int
	Cause     string
	NextRetry time.Time // zero: parked
	ParkedAt  time.Time // zero: not parked
}

// Message is a message in quarantine.
type Message struct {
	ID          int64
	Consumer    string
	MessageID   string
	Key         string
	Cause       string
	Attributes  map[string]string
	PublishTime time.Time
	ReceivedAt  time.Time
	Size        int64  // of a payload that was not kept
	SHA256      string // of a payload that was not kept
	Payload     []byte
	Hidden      bool // the user may not read the payload
}

// Found is an aggregate that a search has found.
type Found struct {
	ID, Title, State string
	Version          int64
}

// Comparison has the state of an aggregate on both sides, by field. The projection has the
// values that it should have for the same version.
type Comparison struct {
	Source, Projection map[string]any // nil: it does not exist there
	SourceVersion      int64
	ProjectionVersion  int64
	Created, Updated   time.Time // of the aggregate; zero if not known
	// Alone says why a side does not have it, and that this is right; empty: it is wrong.
	Alone string
}
