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
	EventID   uuid.UUID
	Time      time.Time
	Caller    string    // of a command; or the name of the reaction or the timer
	Causation Causation // of a reaction or a timer
	Tenant    string    // of the call, or of the event of a reaction; for a new aggregate // only tenancy
}

// Causation says which event led to another one: see envelope.Causation.
type Causation struct{ CausationID, CorrelationID uuid.UUID }

// AnyVersion as the expected version of a command matches every version.
const AnyVersion int64 = 0

// Snapshot is the type of an event that has the state and the version of the last event, and
// says nothing about what happened. It is published for consumers that lack events, and is not
// recorded in the outbox. A consumer that has applied its version ignores it.
const Snapshot EventType = "Snapshot"

// blank reports whether a text has no visible character.
func blank(text string) bool { return !strings.ContainsFunc(text, visible) }

// visible reports whether a character is visible by itself. Unicode marks some
// letters as ignorable, such as the Hangul filler. The blank Braille pattern is
// a symbol without ink, and needs its own rule.
func visible(r rune) bool {
	return unicode.IsPrint(r) && r != ' ' && r != '\u2800' &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
