package consumer

import (
	"context"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// delivery is a message on its way through the projector. Its callback owns it, except from
// the submission until the verdict: then a worker owns it.
type delivery struct {
	msg      *pubsub.Message
	source   *source
	route    *route
	envelope envelope.Message // zero if it could not be read
	event    any              // as the handler decoded it
	reason   string           // why it goes to the quarantine; empty if it does not
	failures int              // how often the store refused it alone
	slow     int              // how often it timed out alone
	verdict  chan verdict
	span     trace.Span // nil if its trace is not sampled
}

// verdict is how the callback must end a delivery.
type verdict int

const (
	settled   verdict = iota + 1 // it is committed: acknowledge it
	retried                      // it was refused: submit it again after a pause; if the client is ending, nack it
	givenBack                    // there is no time left: nack it
)

// handle takes a message from its arrival to its ack or nack.
//
// It returns only after that decision. The client runs the callbacks of one ordering key
// one after the other. It starts the next as soon as this one returns, even after a nack.
// So no two messages of a key are in hand at the same time, and they reach the store in the
// order of delivery.
//
// ctx ends when the client stops pulling: Run was told to stop, or the broker refuses for
// good, for example because the subscription was deleted
// (https://pkg.go.dev/cloud.google.com/go/pubsub/v2#Subscriber.Receive). Messages in hand
// must still be finished, so store calls do not use ctx. But a message that the store
// refuses is then not tried again. The client restarts only after every callback has
// returned, and that message might be refused for ever.
func (r *run) handle(ctx context.Context, s *source, msg *pubsub.Message) {
	d := r.open(s, msg)
	r.begin(d)
	for {
		switch r.settle(d) {
		case settled:
			r.ack(d)
			d.end("settled")
			return
		case retried:
			if sleep(ctx, r.pause(d)) {
				continue
			}
		case givenBack:
		}
		msg.Nack()
		d.end("given_back")
		return
	}
}

// slowPause is the longest pause of an event that times out alone. It keeps several such
// events from occupying all workers.
const slowPause = time.Minute

// pause returns a random pause before a refused delivery is submitted again.
func (r *run) pause(d *delivery) time.Duration {
	if d.slow > 0 {
		return backoff(d.slow-1, r.cfg.RetryMin, max(slowPause, r.cfg.RetryMax))
	}
	return backoff(d.failures-1, r.cfg.RetryMin, r.cfg.RetryMax)
}

// open reads the envelope of a message. If its aggregate type has a handler, the handler
// decodes it.
func (r *run) open(s *source, msg *pubsub.Message) *delivery {
	d := &delivery{msg: msg, source: s, route: s.other, verdict: make(chan verdict, 1)}
	if to, ok := s.routes[msg.Attributes[envelope.AttrAggregateType]]; ok {
		d.route = to
	}
	if d.unhandled() {
		return d
	}
	err := r.guard(func() (err error) {
		if d.envelope, err = envelope.Parse(msg.Attributes, msg.Data); err == nil {
			d.event, err = d.route.handler.decode(d.envelope)
		}
		return err
	})
	if err != nil {
		d.reason = err.Error()
	}
	return d
}

// unhandled reports whether the aggregate type of a message has no handler here. A message
// without a type is not unhandled: it cannot be read.
func (d *delivery) unhandled() bool {
	return d.route == d.source.other && d.msg.Attributes[envelope.AttrAggregateType] != ""
}

// settle returns the verdict on a delivery.
func (r *run) settle(d *delivery) verdict {
	if !d.unhandled() {
		return r.submit(d)
	}
	r.metrics.unhandled(r.work, d)
	if aggregateType := d.msg.Attributes[envelope.AttrAggregateType]; r.unhandled.due(aggregateType) {
		r.log.WarnContext(d.traced(r.work), "consumer: messages of an aggregate type without a handler are acknowledged",
			d.with("aggregate_type", aggregateType, "subscription", d.source.String())...)
	}
	return settled
}

// submit hands a delivery to the collector and waits for the verdict. Everything that takes
// a delivery from the queue gives it a verdict.
func (r *run) submit(d *delivery) verdict {
	select {
	case d.source.queue <- d:
		return <-d.verdict
	case <-r.work.Done():
		return givenBack
	}
}

// ack acknowledges a delivery. With exactly-once delivery the broker may refuse the ack.
// The result comes when the client has sent the ack, up to 100 ms later. Waiting for it
// would hold up the ordering key, so ack waits only if too many results are open already.
func (r *run) ack(d *delivery) {
	result := d.msg.AckWithResult()
	select {
	case <-result.Ready(): // immediately, unless delivery is exactly-once
		r.checkAck(d, result)
		return
	default:
	}
	select {
	case r.checks <- struct{}{}:
		go func() { // Run waits for it
			defer func() { <-r.checks }()
			r.checkAck(d, result)
		}()
	default:
		r.checkAck(d, result)
	}
}

// ackTimeout is how long checkAck waits for the result of an ack.
const ackTimeout = time.Minute

// checkAck waits for the result of an ack, and logs a failure. The broker
// delivers such a message again, and it is then a duplicate.
func (r *run) checkAck(d *delivery, result *pubsub.AckResult) {
	ctx, cancel := context.WithTimeout(r.work, ackTimeout)
	defer cancel()
	if _, err := result.Get(ctx); err != nil {
		r.log.WarnContext(ctx, "consumer: message not acknowledged, it will come again", d.with("err", err)...)
	}
}

// with returns the attributes of a log line: those of every line about a message, followed
// by attrs.
func (d *delivery) with(attrs ...any) []any {
	return append([]any{"event_id", d.msg.Attributes[envelope.AttrEventID], "message_id", d.msg.ID, "ordering_key", d.msg.OrderingKey}, attrs...)
}

// quarantined returns the whole message, for the quarantine.
func (d *delivery) quarantined() envelope.Quarantined {
	return envelope.Quarantined{
		MessageID: d.msg.ID, OrderingKey: d.msg.OrderingKey, Attributes: d.msg.Attributes, Payload: d.msg.Data,
		Reason: d.reason, PublishTime: d.msg.PublishTime,
	}
}
