package envelope

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A reader returns what was written, and keeps the first mistake only.
func TestReader(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003")
	numbers := map[string]int32{"": 0, "red": 1}
	var r Reader
	if got := r.ID("id", id.String()); got != id {
		t.Errorf("ID() = %s, want %s", got, id)
	}
	if got := r.OptionalID("id", ""); got != uuid.Nil {
		t.Errorf("OptionalID() = %s, want none", got)
	}
	if got := r.OptionalID("id", id.String()); got != id {
		t.Errorf("OptionalID() = %s, want %s", got, id)
	}
	if got := r.IDs("ids", []string{id.String(), uuid.Nil.String()}); !slices.Equal(got, []uuid.UUID{id, uuid.Nil}) {
		t.Errorf("IDs() = %s, want both", got)
	}
	if got := r.Time("time", 1_767_323_045_678); !got.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)) {
		t.Errorf("Time() = %s", got)
	}
	if got := r.Time("time", 0); !got.IsZero() {
		t.Errorf("Time() of 0 = %s, want the zero time", got)
	}
	if got := r.Duration("duration", 1500); got != 1500*time.Millisecond {
		t.Errorf("Duration() = %s, want 1.5s", got)
	}
	if got := ValueOf(&r, "color", 1, numbers); got != "red" {
		t.Errorf("ValueOf() = %q, want red", got)
	}
	if err := r.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
	for want, mistake := range map[string]func(r *Reader){
		"ID":          func(r *Reader) { r.ID("ID", "") },
		"OptionalID":  func(r *Reader) { r.OptionalID("OptionalID", "x") },
		"IDs":         func(r *Reader) { r.IDs("IDs", []string{id.String(), "x"}) },
		"version":     func(r *Reader) { r.Version(0) },
		"early":       func(r *Reader) { r.Time("early", -62_135_596_800_001) },
		"late":        func(r *Reader) { r.Time("late", 253_402_300_800_000) },
		"long":        func(r *Reader) { r.Duration("long", math.MaxInt64) },
		"color":       func(r *Reader) { ValueOf(r, "color", 2, numbers) },
		"the first":   func(r *Reader) { r.ID("the first", "x"); r.ID("the second", "y") },
		"negative":    func(r *Reader) { r.Duration("negative", math.MinInt64) },
		"version is ": func(r *Reader) { r.Version(math.MaxInt64) },
	} {
		var r Reader
		mistake(&r)
		decodeErr, ok := errors.AsType[*DecodeError](r.Err())
		if !ok || !strings.Contains(decodeErr.Error(), want) {
			t.Errorf("Err() = %v, want a DecodeError about %q", r.Err(), want)
		}
	}
}
