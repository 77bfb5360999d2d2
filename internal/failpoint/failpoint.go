// Package failpoint has the named places at which the fault lab lets a process die or freeze, between two steps that
// a crash must be able to separate.
//
// In a normal build [Hit] is empty, and the compiler leaves nothing of it. With the build tag chaos a process obeys
// orders such as outbox/claimed=kill@3: at the third hit of that point it sends itself SIGKILL; stop is SIGSTOP, from
// which somebody else must wake it. The orders are in the variable FAILPOINT, separated by commas, or come one at a
// time in the file that FAILPOINT_FILE names, which is removed when its order is carried out.
//
// The points are:
//
//	outbox/claimed      a lane is leased, nothing is published
//	outbox/handed       the broker has the events of a pass, or will, and nobody has looked at an answer
//	outbox/published    all answers are there, nothing is settled
//	consumer/committed  a batch is committed, nothing is acknowledged
//
// With the tag there is also a wall clock that jumps by what the file says that FAILPOINT_CLOCK_FILE names, and
// cmd/server has variables such as LAB_OUTBOX_LEASE for fields of the Config of its packages.
package failpoint

// The points that are hit somewhere.
const (
	OutboxClaimed     = "outbox/claimed"
	OutboxHanded      = "outbox/handed"
	OutboxPublished   = "outbox/published"
	ConsumerCommitted = "consumer/committed"
)

// Points are all of them.
func Points() []string {
	return []string{OutboxClaimed, OutboxHanded, OutboxPublished, ConsumerCommitted}
}
