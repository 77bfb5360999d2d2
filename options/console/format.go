package console

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"math"
	"strconv"
	"time"

	"example.com/videocatalog/internal/problem"
)

// functions are those of the templates.
var functions = template.FuncMap{
	"count": func(n any) string {
		switch n := n.(type) {
		case int64:
			return exact(n)
		case int:
			return exact(int64(n))
		case float64:
			return count(n)
		default:
			return fmt.Sprint(n)
		}
	},
	"capped":    capped,
	"perSecond": perSecond,
	"dur":       duration,
	"ago":       func(t time.Time) string { return duration(time.Since(t)) },
	"since":     func(from, to time.Time) string { return duration(to.Sub(from)) },
	"clock":     func(t time.Time) template.HTML { return timeTag(t, "15:04:05.000") },
	"moment":    func(t time.Time) template.HTML { return timeTag(t, "2006-01-02 15:04:05") },
	"bytes":     byteSize,
	"short":     short,
	"token":     token,
	"width": func(of, most float64) string {
		if !(of > 0) || !(most > 0) {
			return "0"
		}
		return strconv.FormatFloat(min(100, 100*of/most), 'f', 1, 64)
	},
	"float":   func(n int64) float64 { return float64(n) },
	"or_dash": func(s string) string { return cmp.Or(s, "–") },
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
	if n >= CountLimit {
		return exact(n) + "+"
	}
	return exact(n)
}

func count(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return exact(int64(math.Round(v)))
}

func perSecond(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v == 0:
		return "0"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return count(v)
}

func seconds(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return duration(time.Duration(v * float64(time.Second)))
}

// duration writes a duration with its two largest units at most. A negative one, which wrong
// clocks cause, is written as it is.
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

func byteSize(n int64) string {
	const kib = 1024
	switch {
	case n < kib:
		return exact(n) + "\u202fB"
	case n < kib*kib:
		return fmt.Sprintf("%.1f\u202fKiB", float64(n)/kib)
	}
	return fmt.Sprintf("%.1f\u202fMiB", float64(n)/kib/kib)
}

// short returns the end of a long id, which differs more than its begin: the begin of a
// UUIDv7 is a time.
func short(id string) string {
	const longest = 12
	runes := []rune(id)
	if len(runes) <= longest+1 {
		return id
	}
	return "…" + string(runes[len(runes)-longest:])
}

// token returns the end of a lease token, enough to see whether two are the same.
func token(n int64) string {
	const longest = 6
	text := strconv.FormatInt(n, 36)
	return text[max(0, len(text)-longest):]
}

// reasonOf returns an error as one sentence for the person who looks.
func reasonOf(err error) string {
	if known, ok := errors.AsType[*problem.Error](err); ok {
		return known.Error()
	}
	return err.Error()
}
