package outbox_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// lease is the lease of a claim.
var lease = outbox.Lease{Token: 7, Spans: []outbox.Span{{Lane: 3, Head: 1, Tail: 5}}}

// The responses of the broker decide about each event of a claim. The events of an aggregate are
// published up to its first event that is not acknowledged. The later events of that aggregate
// wait. Events of other aggregates do not wait.
func TestPassSettles(t *testing.T) {
	t.Parallel()
	retry := func(events []outbox.Claimed, attempts int, seqs ...int64) []outbox.Claimed {
		for i := range events {
			if slices.Contains(seqs, events[i].Seq) {
				events[i].Deferred, events[i].Attempts = true, attempts
			}
		}
		return events
	}
	blocked := func(events []outbox.Claimed, seqs ...int64) []outbox.Claimed {
		for i := range events {
			events[i].Behind = slices.Contains(seqs, events[i].Seq)
		}
		return events
	}
	failed := func(id string, seq int64, attempts int) []outbox.Refusal {
		return []outbox.Refusal{{Aggregate: letter(id), Seq: seq, Attempts: attempts, Error: "not a letter"}}
	}
	resumed := func(id string, published int64) map[envelope.Aggregate]int64 {
		return map[envelope.Aggregate]int64{letter(id): published}
	}
	tests := []struct {
		name      string
		events    []outbox.Claimed
		responses map[string]error // of the broker, by name; nil: acknowledged
		wantSent  string
		want      outbox.Settlement
		result    outbox.Result
	}{
		{
			name: "all acknowledged", events: claimed("a1 b1 a2"), wantSent: "a1 b1 a2",
			want:   outbox.Settlement{Published: []int64{1, 2, 3}},
			result: outbox.Result{Published: 3},
		},
		{
			name: "first refused, later ones wait with it", events: claimed("a1 b1 a2 b2 a3"),
			responses: map[string]error{"a1": errRefused, "a2": errUnavailable, "a3": errUnavailable}, wantSent: "a1 b1 a2 b2 a3",
			want:   outbox.Settlement{Published: []int64{2, 4}, Refused: failed("a", 1, 1), Defer: []int64{1, 3, 5}},
			result: outbox.Result{Published: 2, Refused: 1},
		},
		{
			name: "refused in the middle", events: claimed("a1 a2 a3 b1"),
			responses: map[string]error{"a2": errRefused, "a3": errUnavailable}, wantSent: "a1 a2 a3 b1",
			want:   outbox.Settlement{Published: []int64{1, 4}, Refused: failed("a", 2, 1), Defer: []int64{2, 3}},
			result: outbox.Result{Published: 2, Refused: 1},
		},
		{
			name: "refused, then acknowledged all the same", events: claimed("a1 a2"),
			responses: map[string]error{"a1": errRefused}, wantSent: "a1 a2",
			want:   outbox.Settlement{Refused: failed("a", 1, 1), Defer: []int64{1, 2}},
			result: outbox.Result{Refused: 1},
		},
		{
			name: "unknown in the middle: the rest stays", events: claimed("a1 a2 a3 b1"),
			responses: map[string]error{"a2": errUnavailable}, wantSent: "a1 a2 a3 b1",
			want:   outbox.Settlement{Published: []int64{1, 4}},
			result: outbox.Result{Published: 2, Unknown: 2},
		},
		{
			name: "unknown before refused: no failure", events: claimed("a1 a2"),
			responses: map[string]error{"a1": errUnavailable, "a2": errRefused}, wantSent: "a1 a2",
			want:   outbox.Settlement{},
			result: outbox.Result{Unknown: 2, Outage: errUnavailable},
		},
		{
			name: "retried head acknowledged", events: retry(claimed("a4 b1"), 3, 1), wantSent: "a4 b1",
			want:   outbox.Settlement{Published: []int64{2}, Resumed: resumed("a", 1)},
			result: outbox.Result{Published: 2},
		},
		{
			name: "retried head refused", events: retry(claimed("a4 b1"), 3, 1), responses: map[string]error{"a4": errRefused}, wantSent: "a4 b1",
			want:   outbox.Settlement{Published: []int64{2}, Refused: failed("a", 1, 4)},
			result: outbox.Result{Published: 1, Refused: 1},
		},
		{
			name: "retried head unknown", events: retry(claimed("a4 b1"), 3, 1), responses: map[string]error{"a4": errUnavailable}, wantSent: "a4 b1",
			want:   outbox.Settlement{Published: []int64{2}},
			result: outbox.Result{Published: 1, Unknown: 1},
		},
		{
			name: "several retried", events: retry(claimed("a4 a5 b1 a6"), 0, 1, 2), wantSent: "a4 a5 b1 a6",
			want:   outbox.Settlement{Published: []int64{3, 4}, Resumed: resumed("a", 2)},
			result: outbox.Result{Published: 4},
		},
		{
			name: "several retried, the first refused", events: retry(claimed("a4 a5 b1 a6"), 0, 1, 2), responses: map[string]error{"a4": errRefused}, wantSent: "a4 a5 b1 a6",
			want:   outbox.Settlement{Published: []int64{3}, Refused: failed("a", 1, 1), Defer: []int64{4}},
			result: outbox.Result{Published: 1, Refused: 1},
		},
		{
			name: "several retried, the second refused", events: retry(claimed("a4 a5 b1 a6"), 0, 1, 2), responses: map[string]error{"a5": errRefused}, wantSent: "a4 a5 b1 a6",
			want:   outbox.Settlement{Published: []int64{3}, Defer: []int64{4}, Resumed: resumed("a", 1)},
			result: outbox.Result{Published: 2, Refused: 1},
		},
		{
			name: "several retried, the second unknown", events: retry(claimed("a4 a5 b1 a6"), 0, 1, 2), responses: map[string]error{"a5": errUnavailable}, wantSent: "a4 a5 b1 a6",
			want:   outbox.Settlement{Published: []int64{3}, Resumed: resumed("a", 1)},
			result: outbox.Result{Published: 2, Unknown: 2},
		},
		{
			name: "several retried, all unknown", events: retry(claimed("a4 a5 b1 a6"), 0, 1, 2), responses: map[string]error{"a4": errUnavailable}, wantSent: "a4 a5 b1 a6",
			want:   outbox.Settlement{Published: []int64{3}, Resumed: resumed("a", 0)},
			result: outbox.Result{Published: 1, Unknown: 3},
		},
		{
			name: "refused behind what was retried", events: retry(claimed("a4 a5 b1 a6"), 0, 1), responses: map[string]error{"a5": errRefused}, wantSent: "a4 a5 b1 a6",
			want:   outbox.Settlement{Published: []int64{3}, Defer: []int64{2, 4}, Resumed: resumed("a", 1)},
			result: outbox.Result{Published: 2, Refused: 1},
		},
		{
			name: "blocked", events: blocked(claimed("a5 b1 a6"), 1, 3), wantSent: "b1",
			want:   outbox.Settlement{Published: []int64{2}, Defer: []int64{1, 3}},
			result: outbox.Result{Published: 1},
		},
		{
			name: "blocked, and its head acknowledged", events: blocked(retry(claimed("a4 a5 b1"), 3, 1), 2), wantSent: "a4 b1",
			want:   outbox.Settlement{Published: []int64{3}, Defer: []int64{2}, Resumed: resumed("a", 1)},
			result: outbox.Result{Published: 2},
		},
		{
			name: "blocked, and its head unknown", events: blocked(retry(claimed("a4 a5 b1"), 3, 1), 2), responses: map[string]error{"a4": errUnavailable}, wantSent: "a4 b1",
			want:   outbox.Settlement{Published: []int64{3}, Defer: []int64{2}},
			result: outbox.Result{Published: 1, Unknown: 1},
		},
		{
			name: "blocked, and its head refused", events: blocked(retry(claimed("a4 a5 b1"), 3, 1), 2), responses: map[string]error{"a4": errRefused}, wantSent: "a4 b1",
			want:   outbox.Settlement{Published: []int64{3}, Refused: failed("a", 1, 4), Defer: []int64{2}},
			result: outbox.Result{Published: 1, Refused: 1},
		},
		{
			name: "all blocked", events: blocked(claimed("a5 a6"), 1, 2),
			want: outbox.Settlement{Defer: []int64{1, 2}},
		},
		{name: "nothing any longer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store := &oneClaim{claim: outbox.Claim{Lease: lease, Events: test.events}}
			var sent []string
			publisher := mustNew(t, store, broker(func(m envelope.Message) outbox.Receipt {
				sent = append(sent, nameOf(m))
				return responded(test.responses[nameOf(m)])
			}), outbox.Config{})

			result, err := publisher.RunOnce(t.Context(), 10)
			if err != nil {
				t.Errorf("RunOnce() = %v, want nil", err)
			}
			test.result.Claimed = true
			same(t, "result", test.result, result, cmpopts.IgnoreUnexported(outbox.Result{}), cmpopts.EquateErrors())
			if got := strings.Join(sent, " "); got != test.wantSent {
				t.Errorf("sent %q, want %q", got, test.wantSent)
			}
			test.want.Lease = lease
			same(t, "settlements", []outbox.Settlement{test.want}, store.settled, cmpopts.IgnoreFields(outbox.Refusal{}, "RetryIn"), cmpopts.EquateEmpty())
		})
	}
}

// The log has the first attempt of a refused event, and the attempt that parks the event.
func TestRefusalIsLoggedOncePerState(t *testing.T) {
	t.Parallel()
	for attempts, want := range []string{`attempts=1 parked=false retry_in_ms=\d+ `, "", "", `attempts=4 parked=true retry_in_ms=0 `} {
		events := claimed("a1")
		events[0].Deferred, events[0].Attempts = attempts > 0, attempts
		refuse := broker(func(envelope.Message) outbox.Receipt { return responded(errRefused) })
		publisher, log := logged(t, &oneClaim{claim: outbox.Claim{Lease: lease, Events: events}}, refuse, outbox.Config{MaxAttempts: 4})
		once(t, publisher)
		if got := log.String(); (want == "") != (got == "") || !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("after %d attempts it logs %q, want %q", attempts, got, want)
		}
	}
}
