package admin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"example.com/videocatalog/internal/problem"
)

// sought records what is done to a subscription and its inbox.
type sought struct {
	steps  []string
	broken string // the step that fails
	entry  Entry
}

func (s *sought) step(name string) error {
	s.steps = append(s.steps, name)
	if name == s.broken {
		return errors.New("broken on purpose")
	}
	return nil
}

func (s *sought) CountApplied(context.Context, Filter) (int64, error) { return 7, s.step("count") }

func (s *sought) Forget(_ context.Context, e Entry) (int64, error) {
	s.entry = e
	return 8, s.step("forget")
}

func (s *sought) DeliverSince(context.Context, time.Time) error { return s.step("deliver") }

// The inbox is emptied before the broker delivers again. If it cannot be emptied, nothing is
// delivered: the events would count as duplicates.
func TestSeekForgetsFirst(t *testing.T) {
	t.Parallel()
	r := SeekRequest{Request: Request{Filter: Filter{ID: "sub"}, Reason: "test", Actor: Actor{Name: "ann", Via: "command"}}, From: time.Unix(1, 0)}
	for broken, want := range map[string][]string{"": {"count", "forget", "deliver"}, "count": {"count"}, "forget": {"count", "forget"}, "deliver": {"count", "forget", "deliver"}} {
		s := &sought{broken: broken}
		result, err := Seek(t.Context(), s, r)
		if !slices.Equal(s.steps, want) || (err == nil) != (broken == "") {
			t.Errorf("%q broken: steps %q, %v, want %q", broken, s.steps, err, want)
		}
		if broken == "" && (result.Matched != 7 || result.Done != 8 || s.entry.Items != 7 || string(s.entry.Before) != "[]") {
			t.Errorf("Seek() = %+v, with the audit %+v, want 7 counted and 8 deleted", result, s.entry)
		}
	}
	for _, change := range []func(*SeekRequest){
		func(r *SeekRequest) { r.DryRun = true },
		func(r *SeekRequest) { r.Confirmed = 6 },
		func(r *SeekRequest) { r.From = time.Now().Add(time.Hour) },
	} {
		s, changed := new(sought), r
		change(&changed)
		_, err := Seek(t.Context(), s, changed)
		if slices.Contains(s.steps, "forget") || (err == nil) != changed.DryRun || changed.Confirmed > 0 && !isKind(err, problem.Precondition) {
			t.Errorf("%+v: steps %q, %v, want nothing changed", changed, s.steps, err)
		}
	}
}
