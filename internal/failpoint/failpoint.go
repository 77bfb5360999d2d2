// Package failpoint has the named points at which the fault lab lets a process die or
// freeze. Each point is between two steps that a crash must be able to separate.
//
// In a normal build [Hit] is empty, and the compiler removes it. With the build tag chaos a
// process obeys orders such as outbox/claimed=kill@3: at the third hit of that point it
// sends itself SIGKILL. The action stop sends SIGSTOP instead, and another process must
// continue it with SIGCONT. The variable FAILPOINT has orders, separated by commas. The
// file that FAILPOINT_FILE names has one order at a time, and is removed when the order is
// carried out.
//
// The points are:
//
//	outbox/claimed      a lane is leased, nothing is published
//	outbox/handed       the broker has the events of a pass, or will have them, and no answer was read
//	outbox/published    all answers were read, nothing is settled
//	consumer/committed  a batch is committed, nothing is acknowledged
//
// With the tag there is also a wall clock that is wrong by the duration in the file that
// FAILPOINT_CLOCK_FILE names. And cmd/server then has variables such as LAB_OUTBOX_LEASE
// for the fields of the Config of its packages.
package failpoint

// The points that the code hits.
const (
	OutboxClaimed     = "outbox/claimed"
	OutboxHanded      = "outbox/handed"
	OutboxPublished   = "outbox/published"
	ConsumerCommitted = "consumer/committed"
)

// Points returns all points.
func Points() []string {
	return []string{OutboxClaimed, OutboxHanded, OutboxPublished, ConsumerCommitted}
}
