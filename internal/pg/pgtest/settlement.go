package pgtest

import (
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// Settlement returns the settlement of a claim. It calls refuse, which stands for the broker,
// with each event that is sent.
func Settlement(claim outbox.Claim, refuse func(outbox.Claimed) bool) outbox.Settlement {
	s := outbox.Settlement{Lane: claim.Lane, Token: claim.Token, Resumed: make(map[envelope.Aggregate]int64)}
	stopped := make(map[envelope.Aggregate]bool)
	for _, e := range claim.Events {
		_, resumed := s.Resumed[e.Aggregate()]
		isRefused := !e.Blocked && !stopped[e.Aggregate()] && refuse(e)
		switch {
		case e.Blocked, stopped[e.Aggregate()], isRefused:
			if !e.Deferred {
				s.Defer = append(s.Defer, e.Seq)
			}
			if isRefused && !resumed {
				s.Refused = append(s.Refused, outbox.Refusal{Aggregate: e.Aggregate(), Seq: e.Seq, Attempts: e.Attempts + 1, Error: "refused", RetryIn: time.Hour})
			}
			stopped[e.Aggregate()] = stopped[e.Aggregate()] || isRefused
		case !e.Deferred:
			s.Published = append(s.Published, e.Seq)
		default:
			s.Resumed[e.Aggregate()] = e.Seq
		}
	}
	return s
}
