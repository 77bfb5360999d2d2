package app

import (
	"testing"
	"time"
)

// A progress estimates the rest only while it can know.
func TestProgress(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for _, tt := range []struct {
		total, done int64
		want        string
	}{
		{0, 3000, "3000 entries, 200 a second"},
		{4000, 3000, "3000 of about 4000 entries, 200 a second, about 5s left"},
		{3000, 3000, "3000 entries, 200 a second"},
		{4000, 1000, "1000 entries, 0 a second"},
	} {
		p := progress{what: "entries", first: 1000, start: start}
		if got := p.line(tt.done, tt.total, start.Add(10*time.Second)); got != tt.want {
			t.Errorf("line(%d) of %d = %q, want %q", tt.done, tt.total, got, tt.want)
		}
	}
}
