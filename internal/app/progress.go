package app

import (
	"fmt"
	"io"
	"time"
)

// progress prints how far a long command is.
type progress struct {
	w             io.Writer
	what          string
	first         int64 // how many were done before; negative: the first call of show says it
	start, before time.Time
}

// progressInterval is how often a progress prints.
const progressInterval = time.Second

func newProgress(w io.Writer, what string, first int64) *progress {
	now := time.Now()
	return &progress{w: w, what: what, first: first, start: now, before: now}
}

// show prints a line if the last one is old enough. The total may be an estimate; 0: it is
// not known.
func (p *progress) show(done, total int64) {
	if p.first < 0 {
		p.first = done
	}
	now := time.Now()
	if now.Sub(p.before) < progressInterval {
		return
	}
	p.before = now
	fmt.Fprintln(p.w, p.line(done, total, now))
}

// line returns the number, the rate and, if it can be estimated, the time left.
func (p *progress) line(done, total int64, now time.Time) string {
	rate := float64(done-p.first) / now.Sub(p.start).Seconds()
	if total <= done || rate <= 0 {
		return fmt.Sprintf("%d %s, %.0f a second", done, p.what, rate)
	}
	left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf("%d of about %d %s, %.0f a second, about %s left", done, total, p.what, rate, left)
}
