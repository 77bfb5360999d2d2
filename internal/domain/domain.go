// Package domain decides. It holds the rules of a video's life as pure functions:
// no context, no clock, no randomness, no I/O. Callers pass in the time and new
// ids.
//
// On the command side a decision takes a video and returns the event that a
// command causes. An event carries the full state after it, and that state is
// what gets stored, so a video cannot change without an event.
//
// Every error is a [*problem.Error]; its Kind says what a caller can do about it.
//
// The package is independent of storage and transport. It does not repeat the
// limits of the API (lengths, ranges, patterns): they belong to the contract in
// api/proto, and are checked before a command gets here.
package domain

import (
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// EventType is the type of an event, in the past tense.
type EventType string

// Stamp is what a decision gets from outside, so that it stays pure: the id of the
// next event, a UUIDv7, its time in UTC, and what led to it.
type Stamp struct {
	EventID uuid.UUID
	Time    time.Time
	Caller  string // of a command
	Cause   Cause  // of a reaction or a timer
}

// Cause says which event led to another one: see envelope.Cause.
type Cause struct{ CausationID, CorrelationID uuid.UUID }

// AnyVersion as the expected version of a command matches every version.
const AnyVersion int64 = 0

// Snapshot is the type of an event that has the state and the version of the last event, and
// says nothing about what happened. It is published for consumers that lack events, and is not
// recorded in the outbox. A consumer that has applied its version ignores it.
const Snapshot EventType = "Snapshot"

// snapshotVersion is the version of the UUIDs of snapshots. Other events have UUIDv7.
const snapshotVersion = 8

// SnapshotID returns the id of a snapshot from a digest of its aggregate and version. The id
// is a UUIDv8 (https://www.rfc-editor.org/rfc/rfc9562#name-uuid-version-8) that begins with 48
// zero bits, where a UUIDv7 has its time. So it is below the id of every other event: of two
// events with one version the greater id wins.
func SnapshotID(digest [10]byte) (id uuid.UUID) {
	copy(id[6:], digest[:])
	id[6] = id[6]&0x0f | snapshotVersion<<4
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id
}

// IsSnapshot reports whether an event is a snapshot, by its id.
func IsSnapshot(eventID uuid.UUID) bool {
	return eventID.Version() == snapshotVersion && [6]byte(eventID[:6]) == [6]byte{}
}

// blank reports whether a text has no visible character.
func blank(text string) bool { return !strings.ContainsFunc(text, visible) }

// visible reports whether a character is visible by itself. Unicode marks some
// letters as ignorable, such as the Hangul filler. The blank Braille pattern is
// a symbol without ink, and needs its own rule.
func visible(r rune) bool {
	return unicode.IsPrint(r) && r != ' ' && r != '\u2800' &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
