package envelope

import (
	"errors"
	"math"
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
	if got := r.Time("time", 1_767_323_045_678); !got.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)) {
		t.Errorf("Time() = %s", got)
	}
	if got := r.Time("time", 0); !got.IsZero() {
		t.Errorf("Time() of 0 = %s, want the zero time", got)
	}
	if first, last := r.Time("first", -62_135_596_800_000), r.Time("last", 253_402_300_799_999); first.Year() != 1 || last.Year() != 9999 {
		t.Errorf("Time() of the first and the last = %s, %s", first, last)
	}
	if got := r.Within("number", 7, 7, 7); got != 7 {
		t.Errorf("Within() = %d, want 7", got)
	}
	if got := ValueOf(&r, "color", 1, numbers); got != "red" {
		t.Errorf("ValueOf() = %q, want red", got)
	}
	if err := r.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
	for want, mistake := range map[string]func(r *Reader){
		"ID":          func(r *Reader) { r.ID("ID", "") },
		"version":     func(r *Reader) { r.Version(0) },
		"early":       func(r *Reader) { r.Time("early", -62_135_596_800_001) },
		"late":        func(r *Reader) { r.Time("late", 253_402_300_800_000) },
		"long":        func(r *Reader) { r.Within("long", MaxMillis+1, -MaxMillis, MaxMillis) },
		"color":       func(r *Reader) { ValueOf(r, "color", 2, numbers) },
		"the first":   func(r *Reader) { r.ID("the first", "x"); r.ID("the second", "y") },
		"negative":    func(r *Reader) { r.Within("negative", -1, 0, 1) },
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
