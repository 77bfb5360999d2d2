package domain

import (
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// EventType is the type of an event, in the past tense.
type EventType string

// Stamp is the id of the next event, a UUIDv7, and its time in UTC. Decisions
// get it from outside, so that they stay pure.
type Stamp struct {
	EventID uuid.UUID
	Time    time.Time
}

// AnyVersion as the expected version of a command matches every version.
const AnyVersion int64 = 0

// blank reports whether a text has no visible character.
func blank(text string) bool { return !strings.ContainsFunc(text, visible) }

// visible reports whether a character is visible by itself. Unicode marks some
// letters as ignorable, such as the Hangul filler. The blank Braille pattern is
// a symbol without ink, and needs its own rule.
func visible(r rune) bool {
	return unicode.IsPrint(r) && r != ' ' && r != '\u2800' &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
