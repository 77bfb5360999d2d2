package consumer

import (
	"context"
	"time"

	"github.com/googleapis/gax-go/v2"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// delivery is a message on its way through the receiver. Its source's call of handle owns
// it, except from the submission until the verdict: then a worker owns it.
type delivery struct {
	Message
	envelope envelope.Message // zero if the message could not be read
	event    any              // as the handler decoded it
	reason   string           // why it goes to the quarantine; empty if it does not
	alone    bool             // it has failed, and is tried again without others
	attempts int              // how often it has failed alone
	refusals int              // how many attempts the store refused; the others timed out
	state    string           // why it is tried again, for the log
	pauses   gax.Backoff      // between attempts
	pause    time.Duration    // until the next attempt
	verdict  chan verdict
	span     trace.Span // does nothing if its trace is not sampled
}

// verdict is how handle must end a delivery.
type verdict int

const (
	settled   verdict = iota + 1 // it is committed: acknowledge it
	retried                      // it was refused: submit it again after a pause
	givenBack                    // there is no time left: give it back
)

// handle takes a message from its arrival to its end, and reports whether to acknowledge it.
// Meanwhile the source hands over no other message of its key.
//
// ctx ends when nothing more is received: Run was told to stop, or the broker refuses for
// good, for example because the subscription was deleted. Messages in hand must still be
// finished, so store calls do not use ctx. But a message that the store refuses is then not
// tried again. The source returns only after every call has returned, and that message might
// be refused for ever.
func (r *run) handle(ctx context.Context, m Message) (ack bool) {
	if r.unhandledType(m) {
		return true
	}
	d := r.open(m)
	r.startSpan(d)
	v := r.submit(d)
	for v == retried && gax.Sleep(ctx, d.pause) == nil {
		v = r.submit(d)
	}
	if v != settled {
		d.span.SetStatus(codes.Error, "given back to the broker")
	}
	d.span.End()
	return v == settled
}

// unhandledType reports whether the aggregate type of a message has no handler here. It
// counts the message, and logs one a minute. A message without a type is not unhandled: it
// cannot be read.
func (r *run) unhandledType(m Message) bool {
	aggregateType := m.Attributes[envelope.AttrAggregateType]
	if _, ok := r.Handlers[aggregateType]; ok || aggregateType == "" {
		return false
	}
	r.metrics.count(r.work, otherType, outcomeUnhandled, 1)
	r.unhandled.Do(func() {
		r.log.WarnContext(r.work, "consumer: messages of an aggregate type without a handler are acknowledged",
			m.logAttrs("aggregate_type", aggregateType, "subscription", r.Source.String())...)
	})
	return true
}

// open reads the envelope of a message, and lets the handler decode it.
func (r *run) open(m Message) *delivery {
	d := &delivery{Message: m, reason: m.Defect, pauses: newPauses(longestEventPause), verdict: make(chan verdict, 1)}
	err := r.guard(func() (err error) {
		d.envelope, d.event, err = r.Handlers.decode(m.Attributes, m.Data)
		return err
	})
	if err != nil {
		d.reason = err.Error()
	}
	return d
}

// submit hands a delivery to a worker and waits for the verdict. Everything that takes a
// delivery from the queue gives it a verdict.
func (r *run) submit(d *delivery) verdict {
	select {
	case r.queue <- d:
		return <-d.verdict
	case <-r.work.Done():
		return givenBack
	}
}

// postpone chooses the pause before the next attempt. It reports whether the state is new: the log has
// one line for each state, not for each attempt.
func (d *delivery) postpone(state string) (changed bool) {
	d.pause = d.pauses.Pause()
	changed = d.state != state
	d.state = state
	return changed
}

// logAttrs returns the attributes of a log line about the message: the attributes that every such
// line has, followed by attrs.
func (m Message) logAttrs(attrs ...any) []any {
	return append([]any{"event_id", m.Attributes[envelope.AttrEventID], "message_id", m.ID, "ordering_key", m.Key}, attrs...)
}
