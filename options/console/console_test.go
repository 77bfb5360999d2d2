package console

import (
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A chart has the highest value of each bucket, a gap where nothing is known, and ends with
// the last point.
func TestChart(t *testing.T) {
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(before time.Duration, value float64) Point { return Point{Time: end.Add(-before), Commands: value} }
	commands := func(p Point) float64 { return p.Commands }
	c := newChart("Commands", []Point{
		at(16*time.Minute, 1000), // before the window
		at(35*time.Second, 2), at(30*time.Second, 4), at(29*time.Second, 1),
		at(25*time.Second, math.NaN()), // a gap of three buckets, and then one of two, which is bridged
		at(10*time.Second, 1), at(0, 3),
	}, count, commands)
	want := chart{
		Name: "Commands", Most: "4",
		Line: "M172 20.5L173 2.0h1M177 29.8L179 11.2h1",
		Area: "M172 40L172 20.5L173 2.0h1V40ZM177 40L177 29.8L179 11.2h1V40Z",
	}
	if c != want {
		t.Errorf("chart = %+v, want %+v", c, want)
	}
	for name, points := range map[string][]Point{"no points": nil, "nothing known": {at(0, math.NaN())}} {
		if c := newChart("Commands", points, count, commands); c.Line != "" || c.Most != "–" {
			t.Errorf("%s: %+v, want an empty chart", name, c)
		}
	}
	if c := newChart("Commands", []Point{at(0, 0)}, count, commands); c.Line != "M179 39.0h1" {
		t.Errorf("a chart of zeros = %+v, want a line at the bottom", c)
	}
}

// Numbers are exact, and durations have two units at most.
func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		exact(0): "0", exact(999): "999", exact(1234567): "1\u202f234\u202f567", exact(-1000): "−1\u202f000",
		capped(CountLimit - 1): "9\u202f999", capped(CountLimit): "10\u202f000+",
		perSecond(math.NaN()): "–", perSecond(0.04): "0.0", perSecond(9.94): "9.9", perSecond(1234.5): "1\u202f235",
		duration(0): "0\u202fs", duration(time.Microsecond): "<1\u202fms", duration(-3 * time.Millisecond): "−3\u202fms",
		duration(1500 * time.Millisecond): "1.5\u202fs", duration(61 * time.Second): "1\u202fmin 1\u202fs", duration(2 * time.Hour): "2\u202fh",
		duration(49*time.Hour + 59*time.Minute): "2\u202fd 1\u202fh",
		byteSize(1023):                          "1\u202f023\u202fB", byteSize(1536): "1.5\u202fKiB", byteSize(256 << 20): "256.0\u202fMiB",
		short("0192f7a0-7b5e-7c3a-9f00-52540000abcd"): "…52540000abcd", short("short"): "short", short("日本語日本語日本語日本語日本語"): "…日本語日本語日本語日本語",
		string(timeTag(time.Time{}, time.TimeOnly)): "–",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A payload is read as far as it is protobuf.
func TestRawFields(t *testing.T) {
	inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 150)
	payload := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte("<b>"))
	payload = protowire.AppendBytes(protowire.AppendTag(payload, 2, protowire.BytesType), inner)
	payload = protowire.AppendFixed64(protowire.AppendTag(payload, 3, protowire.Fixed64Type), 7)
	payload = protowire.AppendFixed32(protowire.AppendTag(payload, 4, protowire.Fixed32Type), 7)
	payload = protowire.AppendBytes(protowire.AppendTag(payload, 5, protowire.BytesType), []byte{0xff, 0})
	for name, tt := range map[string]struct {
		payload []byte
		want    string
	}{
		"empty":   {nil, ""},
		"message": {payload, "1: \"<b>\"\n2 {\n  1: 150\n}\n3: 0x0000000000000007\n4: 0x00000007\n5: 2 bytes ff00\n"},
		"broken":  {append(slices.Clip(payload), 0x0a, 0x05, 1), "broken at byte 28"},
		"text":    {[]byte{0xff}, "no protobuf from byte 0 on\n"},
	} {
		if got := rawFields(tt.payload); got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	// Messages in messages end, however many there are.
	nested := []byte{}
	for range 200 {
		nested = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), nested)
	}
	if got := strings.Count(rawFields(nested), "{"); got != 10 {
		t.Errorf("%d levels, want 10", got)
	}
	if got := len(rawFields([]byte(strings.Repeat("\x08\x01", 1<<20)))); got > 2*maxRawFields {
		t.Errorf("%d bytes of text, want at most %d", got, 2*maxRawFields)
	}
}

// A counter is the sum of all its series, or of those with a label.
func TestScrape(t *testing.T) {
	body := `# TYPE outbox_breaker_open gauge
outbox_breaker_open 1
# TYPE consumer_events_total counter
consumer_events_total{aggregate_type="a",outcome="duplicate"} 2
consumer_events_total{aggregate_type="b",outcome="duplicate"} 3
consumer_events_total{aggregate_type="a",outcome="applied"} 7
consumer_events_total{aggregate_type="a",outcome="applied_after_gap"} 1
# TYPE consumer_messages gauge
consumer_messages 4
`
	fails := false
	process := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if fails {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(body))
	}))
	defer process.Close()
	s := newScraper(process.URL)
	got := s.scrape(t.Context(), ProcessSample{})
	read := got.Time
	got.Time = time.Time{}
	if want := (ProcessSample{Breaker: true, InHand: 4, Applied: 8, Duplicates: 5, Gaps: 1}); got != want || read.IsZero() {
		t.Errorf("scrape = %+v, want %+v", got, want)
	}
	fails = true
	if last := s.scrape(t.Context(), got); last.Err == "" || last.InHand != 4 {
		t.Errorf("a failed scrape = %+v, want the last one with the reason", last)
	}
}

// Problems are named, and nothing is named if all is well.
func TestProblems(t *testing.T) {
	lanes := []Lane{{Oldest: 2 * time.Minute}, {Oldest: time.Second}}
	for name, tt := range map[string]struct {
		snapshot
		want string
	}{
		"well":       {snapshot{}, ""},
		"commands":   {snapshot{CommandsErr: "unavailable", QueriesErr: "unavailable"}, "The command side cannot be read: unavailable."},
		"queries":    {snapshot{QueriesErr: "unavailable"}, "The query side cannot be read: unavailable."},
		"old":        {snapshot{Commands: CommandSample{Lanes: lanes}}, "The oldest pending event waits for 2\u202fmin."},
		"blocked":    {snapshot{Commands: CommandSample{Blocked: 1}}, "1 aggregate is blocked, and tried again by itself."},
		"parked":     {snapshot{Commands: CommandSample{Blocked: 3, Parked: 2}}, "2 aggregates are parked: the broker refused an event, and a person must decide."},
		"quarantine": {snapshot{Queries: QuerySample{Quarantined: 1}}, "1 message is in quarantine, and could not be applied."},
		"breaker":    {snapshot{HasProcess: true, Process: ProcessSample{Breaker: true}}, "The publisher considers the broker unavailable."},
		"metrics":    {snapshot{HasProcess: true, Process: ProcessSample{Err: "refused", Breaker: true}}, "The metrics of the process cannot be read: refused."},
	} {
		var got []string
		for _, p := range tt.Problems() {
			got = append(got, p.Text)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Rates come from differences of two samples, and the points keep 15 minutes.
func TestPoints(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var s snapshot
	for n := range history + 10 {
		before := s
		s.Time = begin.Add(time.Duration(n) * time.Second)
		s.Commands = CommandSample{Appended: 10, Over: time.Second, Lanes: []Lane{{Pending: int64(4 * n), Settlements: int64(3 * n)}}}
		s.addPoint(before, 6, [2]float64{math.NaN(), math.NaN()})
	}
	if len(s.Points) != history {
		t.Errorf("%d points, want %d", len(s.Points), history)
	}
	if s.Rate.Commands != 10 || s.Rate.Sent != 6 || s.Rate.Applied != 6 || s.LaneRates[0] != 3 {
		t.Errorf("rates = %+v, lanes = %v, want 10 commands, 6 sent, 6 applied and 3 passes", s.Rate, s.LaneRates)
	}
	before := s
	s.Time, s.CommandsErr = s.Time.Add(time.Second), "unavailable"
	s.addPoint(before, math.NaN(), [2]float64{math.NaN(), math.NaN()})
	if last := s.Points[history-1]; !math.IsNaN(last.Commands) || !math.IsNaN(last.Pending) {
		t.Errorf("without the command side the point is %+v, want unknown values", last)
	}
}
