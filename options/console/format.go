package console

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"example.com/videocatalog/internal/envelope"
)

// functions has the functions that templates call.
var functions = template.FuncMap{
	"count":     exact,
	"capped":    capped,
	"perSecond": perSecond,
	"dur":       duration,
	"ago":       func(t time.Time) string { return duration(time.Since(t)) },
	"since":     func(from, to time.Time) string { return duration(to.Sub(from)) },
	"clock":     func(t time.Time) template.HTML { return timeTag(t, "15:04:05.000") },
	"moment":    func(t time.Time) template.HTML { return timeTag(t, "2006-01-02 15:04:05") },
	"short":     short,
	"cut":       cut,
	"or_dash":   func(s string) string { return cmp.Or(s, "–") },
}

// timeTag writes a time in UTC. The script shows it in the zone of the browser, if the person
// wants that.
func timeTag(t time.Time, layout string) template.HTML {
	if t.IsZero() {
		return "–"
	}
	utc := t.UTC()
	return template.HTML(`<time datetime="` + utc.Format("2006-01-02T15:04:05.000Z") + `" title="` + //nolint:gosec // digits only
		utc.Format("2006-01-02 15:04:05.000") + ` UTC">` + utc.Format(layout) + `</time>`)
}

// exact writes all digits of a number, in groups of three.
func exact(n int64) string {
	if n < 0 {
		return "−" + exact(-n)
	}
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:] // a narrow space
	}
	return digits
}

// capped writes a number that was counted up to the limit.
func capped(n int64) string {
	if n >= countLimit {
		return exact(n) + "+"
	}
	return exact(n)
}

// perSecond writes a rate.
func perSecond(v float64) string {
	if v == 0 || v >= 10 {
		return exact(int64(v + 0.5))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// duration writes a duration with its two largest units at most. A negative one, which wrong
// clocks cause, has a minus sign.
func duration(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "−", -d
	}
	const day = 24 * time.Hour
	unit := func(big time.Duration, bigName string, small time.Duration, smallName string) string {
		text := fmt.Sprintf("%d\u202f%s", d/big, bigName)
		if rest := d % big / small; rest > 0 {
			text += fmt.Sprintf(" %d\u202f%s", rest, smallName)
		}
		return sign + text
	}
	switch {
	case d == 0:
		return "0\u202fs"
	case d < time.Millisecond:
		return sign + "<1\u202fms"
	case d < time.Second:
		return fmt.Sprintf("%s%d\u202fms", sign, d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%s%.1f\u202fs", sign, d.Seconds())
	case d < time.Hour:
		return unit(time.Minute, "min", time.Second, "s")
	case d < day:
		return unit(time.Hour, "h", time.Minute, "min")
	}
	return unit(day, "d", time.Hour, "h")
}

// short returns the end of a long id. The start of a UUIDv7 is a time, so it differs less than
// the end.
func short(id string) string {
	const longest = 12
	runes := []rune(id)
	if len(runes) <= longest+1 {
		return id
	}
	return "…" + string(runes[len(runes)-longest:])
}

// cut returns the start of a long text, for a list.
func cut(text string) string {
	const most = 300
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// traceIn returns the id of the trace in a traceparent; empty if there is none.
func traceIn(traceparent string) string {
	at := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{envelope.AttrTraceparent: traceparent}))
	if !at.HasTraceID() {
		return ""
	}
	return at.TraceID().String()
}
