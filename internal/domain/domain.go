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
