package chaos

import "time"

// Rule is a rule that the service must keep, named after its violation.
type Rule string

// The rules.
const (
	CommandLost        Rule = "acknowledged command lost"
	AnswerWrong        Rule = "answer differs from the event"
	FailedTookEffect   Rule = "failed command took effect"
	CreatedTwice       Rule = "one create made two videos"
	UpdatedTwice       Rule = "one update took effect more often than it was sent"
	EtagIgnored        Rule = "etag ignored"
	RowWithoutEvent    Rule = "row without event"
	EventWithoutRow    Rule = "event without row"
	RowDiffers         Rule = "row differs from its last event"
	VersionRepeated    Rule = "two events of one version"
	EventLost          Rule = "event never published"
	UnknownMessage     Rule = "message without event"
	MessageUnheard     Rule = "message published and not delivered"
	MessageDiffers     Rule = "message differs from its event"
	OutOfOrder         Rule = "first delivery out of order"
	EventErased        Rule = "event gone from the outbox"
	AfterPurge         Rule = "content after a purge"
	DuplicateUncaused  Rule = "duplicate that no fault explains"
	TooManyDuplicates  Rule = "more duplicates than the faults allow"
	ProjectionDiffers  Rule = "projection differs from the source"
	EventNotConsumed   Rule = "event never consumed"
	StuckPending       Rule = "event stuck in the outbox"
	StuckBlocked       Rule = "aggregate stuck"
	StuckLease         Rule = "lease stuck"
	MessageQuarantined Rule = "message quarantined"
	MessageDead        Rule = "message became a dead letter"
	OwnWriteUnseen     Rule = "own write not seen"
	EntryWrong         Rule = "entry differs from its event"
	ReadRefused        Rule = "read refused"
	WatchDiffers       Rule = "watcher ends with another catalog"
	WatchWentBack      Rule = "watcher was shown an older version after a newer one"
	WatchRefused       Rule = "watcher refused"
	LaneNotHeld        Rule = "lane settled by who did not hold it"
	LaneTaken          Rule = "lane claimed while it was leased"
	ConnectionLeaked   Rule = "connection leaked"
	HandsNotEmpty      Rule = "in hand while all is quiet"
	GoroutineLeaked    Rule = "goroutines leaked"
	LaneStays          Rule = "lane leased for longer than a lease can be"
	NotCounted         Rule = "could not be counted"
	CodeUnexpected     Rule = "code that no fault explains"
	ProcessEnded       Rule = "process ended unasked"
	StopFailed         Rule = "process did not stop cleanly"
	NotBack            Rule = "process does not come back"
	NotQuiet           Rule = "not quiet in time"
	CommandFailed      Rule = "command of an operator failed"
	LeftOver           Rule = "left over"
)

// Violation is a rule that was broken, and the details.
type Violation struct {
	Rule   Rule   `json:"rule"`
	Detail string `json:"detail"`
}

// Miss is a target for the speed of recovery that was missed.
type Miss struct {
	Fault  FaultRecord   `json:"fault"`
	Of     Recovery      `json:"of"`
	Took   time.Duration `json:"took_ns"`
	Never  bool          `json:"never,omitempty"` // the service did not recover
	Target time.Duration `json:"target_ns"`
}

// Verdict is the result of the checker.
type Verdict struct {
	Violations []Violation  `json:"violations"` // at most detailsPerRule of each rule
	Counts     map[Rule]int `json:"counts"`     // number of all violations of each rule
	Misses     []Miss       `json:"missed_targets"`
	Figures    Figures      `json:"figures"`
}

// Figures are the counts and times of the run.
type Figures struct {
	Commands      int            `json:"commands"`
	Acknowledged  int            `json:"acknowledged"`
	Failed        int            `json:"failed"`
	Unknown       int            `json:"unknown"`
	Videos        int            `json:"videos"`
	Events        int            `json:"events"`
	Messages      int            `json:"messages"`
	Deliveries    int            `json:"deliveries"`
	Duplicates    int            `json:"duplicates"`
	Purges        int            `json:"purges"`
	MayRepeat     int            `json:"duplicates_allowed"`
	MostRepeated  int            `json:"most_duplicates_of_a_fault"` // of faults that were alone
	OwnMayRepeat  int            `json:"duplicates_allowed_alone"`   // all faults that were alone, together
	OwnRepeated   int            `json:"duplicates_alone"`           // all faults that were alone, together
	Faults        int            `json:"faults"`                     // faults that took effect
	FaultsByKind  map[string]int `json:"faults_by_kind"`
	WorstTakeover time.Duration  `json:"worst_takeover_ns"`      // of faults that were alone
	WorstOutage   time.Duration  `json:"worst_first_publish_ns"` // of outages that were alone
	WorstCatalog  time.Duration  `json:"worst_first_consume_ns"` // of outages that were alone: until the catalog continues
	Takeovers     int            `json:"takeovers_measured"`
	OfTakeovers   int            `json:"takeovers_to_measure"`
	LeftBehind    int            `json:"takeovers_of_unsettled_events"` // of the measured ones
	Outages       int            `json:"outages_measured"`
	OfOutages     int            `json:"outages_to_measure"`
	WorstBack     time.Duration  `json:"worst_back_ns"` // of faults that were alone
	Backs         int            `json:"backs_measured"`
	OfBacks       int            `json:"backs_to_measure"`
	Reads         int            `json:"own_writes_read"`
	Changes       int            `json:"changes_watched"`
	Breaks        int            `json:"watches_broken"`
	Stalls        int            `json:"stalls"`
}

// detailsPerRule limits the violations in the report, but not the counts.
const detailsPerRule = 20
