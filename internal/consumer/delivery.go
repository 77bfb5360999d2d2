package consumer

import (
	"context"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// delivery is a message on its way through the projector. Its callback owns
// it, but from submitting it until the verdict a worker does.
type delivery struct {
	msg      *pubsub.Message
	source   *source
	route    *route
	envelope envelope.Message // zero when it could not be read
	event    any              // what the handler has decoded
	reason   string           // why it belongs into the quarantine; empty: it does not
	failures int              // how often the store refused it, alone
	slow     int              // how often it took too long, alone
	verdict  chan verdict
	span     trace.Span // nil: its trace is not sampled
}

// verdict is what shall become of a delivery.
type verdict int

const (
	settled   verdict = iota + 1 // it is committed: acknowledge it
	retried                      // it was refused: submit it again, after a pause, or nack it when the client ends
	givenBack                    // there is no time for it: nack it
)

// handle takes a message from its arrival to its ack.
//
// It returns when the fate of the message is settled and not earlier, because
// the client runs the callbacks of one ordering key one after the other, and
// the next one as soon as this one returns, even when it has nacked. So no two
// messages of a key are in hand at the same time, and those of a key reach the
// store in the order of their delivery, whatever batches and workers do.
//
// ctx ends when the client pulls nothing more: Run was told to stop, or the
// broker has refused for good, as when the subscription is deleted
// (https://pkg.go.dev/cloud.google.com/go/pubsub/v2#Subscriber.Receive). What is in
// hand then shall be finished, so the store is not called under ctx. But what
// the store refuses is not tried again: the client starts anew only when every
// callback has returned, and such a message may be refused for ever.
func (r *run) handle(ctx context.Context, s *source, msg *pubsub.Message) {
	start := time.Now()
	r.metrics.received(r.work)
	defer r.metrics.left(r.work)
	d := r.open(s, msg)
	r.begin(d)
	for {
		switch r.settle(d) {
		case settled:
			r.ack(d)
			r.metrics.handled(d.traced(r.work), time.Since(start))
			d.end("settled")
			return
		case retried:
			if sleep(ctx, r.pause(d)) {
				continue
			}
		case givenBack:
		}
		msg.Nack()
		r.metrics.nacked(r.work)
		d.end("given_back")
		return
	}
}

// slowPause is the longest pause of an event that takes too long alone: several of
// them shall not keep all workers busy.
const slowPause = time.Minute

// pause draws how long a refused delivery waits before it is submitted again.
func (r *run) pause(d *delivery) time.Duration {
	if d.slow > 0 {
		return backoff(d.slow-1, r.cfg.RetryMin, max(slowPause, r.cfg.RetryMax))
	}
	return backoff(d.failures-1, r.cfg.RetryMin, r.cfg.RetryMax)
}

// open reads the envelope of a message, and has the handler of its aggregate type
// decode it, if there is one.
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

// unhandled reports whether a message is of an aggregate type that has no handler
// here. One without a type is not: it cannot be read.
func (d *delivery) unhandled() bool {
	return d.route == d.source.other && d.msg.Attributes[envelope.AttrAggregateType] != ""
}

// settle returns what shall become of a delivery now.
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

// submit hands a delivery to the collector and waits for the verdict. Whoever
// takes it from the queue gives one.
func (r *run) submit(d *delivery) verdict {
	select {
	case r.queue <- d:
		return <-d.verdict
	case <-r.work.Done():
		return givenBack
	}
}

// ack acknowledges a delivery. With exactly-once delivery the broker may refuse
// that, which shows when the client has sent it, up to 100 ms later. It is not
// waited for here, unless too many acks are in doubt already, because that
// would hold up the ordering key.
func (r *run) ack(d *delivery) {
	result := d.msg.AckWithResult()
	select {
	case <-result.Ready(): // at once, without exactly-once delivery
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

// ackTimeout is how long the result of an ack is waited for.
const ackTimeout = time.Minute

// checkAck waits for the result of an ack. A message that is not acknowledged
// comes again, and is a duplicate then.
func (r *run) checkAck(d *delivery, result *pubsub.AckResult) {
	ctx, cancel := context.WithTimeout(r.work, ackTimeout)
	defer cancel()
	if _, err := result.Get(ctx); err != nil {
		r.metrics.ackFailed(ctx)
		r.log.WarnContext(ctx, "consumer: message not acknowledged, it will come again", d.with("err", err)...)
	}
}

// with returns log attributes: those that every line about a message has, and
// some more.
func (d *delivery) with(attrs ...any) []any {
	return append([]any{"event_id", d.msg.Attributes[envelope.AttrEventID], "message_id", d.msg.ID, "ordering_key", d.msg.OrderingKey}, attrs...)
}

// quarantined returns the message for the quarantine: whole.
func (d *delivery) quarantined() envelope.Quarantined {
	return envelope.Quarantined{
		MessageID: d.msg.ID, OrderingKey: d.msg.OrderingKey, Attributes: d.msg.Attributes, Payload: d.msg.Data,
		Reason: d.reason, PublishTime: d.msg.PublishTime,
	}
}
