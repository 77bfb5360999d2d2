package console

import (
	"strings"
	"testing"
	"time"

	"example.com/videocatalog/internal/pg"
)

// Numbers have groups of three digits, durations have two units at most, and long texts are cut.
func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		exact(0): "0", exact(999): "999", exact(1234567): "1\u202f234\u202f567", exact(-1000): "−1\u202f000",
		capped(countLimit - 1): "9\u202f999", capped(countLimit): "10\u202f000+",
		perSecond(0.04): "0.0", perSecond(9.94): "9.9", perSecond(1234.5): "1\u202f235",
		duration(0): "0\u202fs", duration(time.Microsecond): "<1\u202fms", duration(-3 * time.Millisecond): "−3\u202fms",
		duration(1500 * time.Millisecond): "1.5\u202fs", duration(61 * time.Second): "1\u202fmin 1\u202fs", duration(2 * time.Hour): "2\u202fh",
		duration(49*time.Hour + 59*time.Minute): "2\u202fd 1\u202fh",
		cut("short"):                            "short", cut(strings.Repeat("因", 4000)): strings.Repeat("因", 300) + "…",
		short("0192f7a0-7b5e-7c3a-9f00-52540000abcd"): "…52540000abcd", short("short"): "short", short("日本語日本語日本語日本語日本語"): "…日本語日本語日本語日本語",
		string(timeTag(time.Time{}, time.TimeOnly)):                                     "–",
		event{Message: 2, Applied: []applied{{Consumer: "shelf"}}}.effects(time.Time{}): "shelf at 0001-01-01T00:00:00Z, quarantined as message 2",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The problems of a sample are named, each with a page to look at; a good sample has none.
func TestProblems(t *testing.T) {
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		sample
		want string
	}{
		"well":       {sample{}, ""},
		"commands":   {sample{CommandsErr: "unavailable", QueriesErr: "unavailable"}, "The command side cannot be read: unavailable."},
		"queries":    {sample{QueriesErr: "unavailable"}, "The query side cannot be read: unavailable."},
		"old":        {sample{Commands: commandSample{Backlog: pg.Backlog{At: noon}, Waits: 2 * time.Minute}}, "The oldest pending event waits since 2026-01-31 11:58 UTC."},
		"older":      {sample{Commands: commandSample{Backlog: pg.Backlog{At: noon.Add(2 * time.Second)}, Waits: 122 * time.Second}}, "The oldest pending event waits since 2026-01-31 11:58 UTC."},
		"blocked":    {sample{Commands: commandSample{Backlog: pg.Backlog{Blocked: 1}}}, "1 aggregate is blocked, and tried again by itself."},
		"parked":     {sample{Commands: commandSample{Backlog: pg.Backlog{Blocked: 551, Parked: 2}}}, "551 aggregates are blocked, because the broker refused an event: 2 of them parked, for a person to decide."},
		"partitions": {sample{Commands: commandSample{Backlog: pg.Backlog{DaysAhead: -2}}}, "The outbox has partitions for 5 more days: its maintenance does not run, and without one no event can be written."},
		"timers":     {sample{Commands: commandSample{Late: 1}}, "1 timer is due for more than a minute: does a process with the role reactor run?"},
		"failing":    {sample{Commands: commandSample{Failing: 2}}, "2 timers have failed, to be tried again within an hour: see the runbook of TimersFail."},
		"replaced":   {sample{Queries: querySample{Replaced: true}}, "A database was replaced, as by a failover: a projection may contradict its owner. See the runbook of DatabaseReplaced."},
		"quarantine": {sample{Queries: querySample{Quarantined: 1}}, "1 message is in quarantine, and could not be applied."},
		"behind":     {sample{Behind: "shelf"}, "Published events of more than a minute ago are not applied by shelf: does a process with the role projector run?"},
		"differs":    {sample{Queries: querySample{Comparisons: []comparison{{Type: "thing", Differences: 3}}}}, "3 entries differ from their owner, of type thing: `server projection compare` shows how."},
	} {
		var got []string
		tt.Commands.DaysAhead += 7
		for _, p := range tt.Problems() {
			if got = append(got, p.Text); p.Link == "" {
				t.Errorf("%s: %q has no link", name, p.Text)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The id of a trace is found whether it is sampled or not, and only in a valid traceparent.
func TestTraceIn(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	for traceparent, want := range map[string]string{
		"00-" + id + "-b7ad6b7169203331-01": id,
		"00-" + id + "-b7ad6b7169203331-00": id,
		"00-" + id + "-b7ad6b71692033-01":   "",
		id:                                  "",
		"":                                  "",
	} {
		if got := traceIn(traceparent); got != want {
			t.Errorf("traceIn(%q) = %q, want %q", traceparent, got, want)
		}
	}
}
