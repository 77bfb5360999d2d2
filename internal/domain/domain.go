// Package domain decides. It holds the rules of a video's life as pure
// functions: no context, no clock, no randomness, no I/O. What they need from
// outside, such as the time or a new id, is handed to them.
//
// There are two kinds. On the command side a [Decision] takes a video and
// returns the events that a command makes of it; an event carries the full
// state after it, and that state is what gets stored, so there is no way to
// change a video without an event. On the query side [Fold] takes an entry of
// the catalog and an event and returns the new entry.
//
// Every error is an [*Error]; its Kind says what a caller may do about it.
//
// The package does not know how anything is stored, sent or asked for, and it
// does not repeat the limits of the API (lengths, ranges, patterns), which are
// part of the contract in api/proto and checked before a command gets here.
package domain
