package console

import (
	"bytes"
	"context"
	"html/template"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"
)

const (
	// interval is the time between two samples. A sample that takes long makes it longer:
	// sampling uses at most a fifth of one connection.
	interval    = time.Second
	restFactor  = 5
	sampleLimit = 5 * time.Second // for one sample
	// idleAfter is how long samples are taken after the last look.
	idleAfter = 15 * time.Minute
	// history is the number of samples that charts have.
	history = 15 * 60
)

// hub measures the service while somebody looks, and keeps what the pages show of it: parts
// of HTML, each with the number of the sample that last changed it. So a reader at any
// number gets only what is new to it, and the hub remembers no reader.
type hub struct {
	cfg     Config
	parts   *template.Template
	log     *slog.Logger
	boot    string // distinguishes the numbers of this process from those of others
	scraper *scraper
	wake    chan struct{} // somebody looks
	stopped chan struct{} // closed when the hub has stopped
	running sync.WaitGroup

	mu      sync.Mutex
	looked  time.Time
	number  int64 // of the last sample; 0: none
	changed chan struct{}
	html    map[string]part
	state   snapshot
}

type part struct {
	html   template.HTML
	number int64 // of the sample that changed it
}

// snapshot is what is known of the service: the last sample, and the points of 15 minutes.
type snapshot struct {
	Service, Version string
	Time             time.Time // when the last sample was taken, by our clock
	Took             time.Duration
	Commands         CommandSample
	CommandsErr      string
	Queries          QuerySample
	QueriesErr       string
	Views            []ViewState
	Process          ProcessSample
	HasProcess       bool
	Points           []Point
	Rate             Point // the mean of the last seconds
	LaneRates        map[int]float64
}

// ViewState is a projection, with its last sample.
type ViewState struct {
	Type, Name string
	ViewSample
	P50, P99 time.Duration // of the last entries that were applied
	Err      string
}

// Point is what charts show of one sample. A value that is not known is NaN.
type Point struct {
	Time                                          time.Time
	Commands, Pending, Oldest, Sent, Applied      float64
	P50, P99, InHand, Blocked, Parked, Quarantine float64
}

func newHub(cfg Config, parts *template.Template, log *slog.Logger) *hub {
	h := &hub{
		cfg: cfg, parts: parts, log: log, boot: strconv.FormatInt(time.Now().UnixMilli(), 36),
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		changed: make(chan struct{}), html: make(map[string]part),
	}
	if cfg.Metrics != "" {
		h.scraper = newScraper(cfg.Metrics)
	}
	h.state.Service, h.state.Version, h.state.HasProcess = cfg.Service, cfg.Version, h.scraper != nil
	for _, t := range cfg.Types {
		if t.Source != nil {
			h.state.Views = append(h.state.Views, ViewState{Type: t.Name, Name: t.View})
		}
	}
	return h
}

// look says that somebody looks, and waits for a sample that is not old.
func (h *hub) look(ctx context.Context) {
	h.mu.Lock()
	h.looked = time.Now()
	fresh := h.number > 0 && time.Since(h.state.Time) < 3*interval
	changed := h.changed
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
	if fresh {
		return
	}
	select {
	case <-changed:
	case <-h.stopped:
	case <-ctx.Done():
	case <-time.After(2 * interval): // the page says that the database does not answer
	}
}

func (h *hub) start(ctx context.Context) {
	h.running.Go(func() {
		defer close(h.stopped)
		for ctx.Err() == nil {
			if !h.isWatched() {
				select {
				case <-ctx.Done():
				case <-h.wake:
				}
				continue
			}
			began := time.Now()
			h.sample(ctx)
			took := time.Since(began)
			select {
			case <-ctx.Done():
			case <-time.After(max(interval-took, (restFactor-1)*took)):
			}
		}
	})
}

func (h *hub) wait() { h.running.Wait() }

func (h *hub) isWatched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.looked.IsZero() && time.Since(h.looked) < idleAfter
}

// sample measures everything once, and publishes what has changed.
func (h *hub) sample(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	next := h.current() // only this goroutine changes it
	began := time.Now()
	before := next
	if c, err := h.cfg.Commands.SampleCommands(ctx, next.Commands.Until); err != nil {
		next.CommandsErr = reasonOf(err)
	} else {
		next.Commands, next.CommandsErr = c, ""
		h.title(ctx, next.Commands.Newest)
	}
	if q, err := h.cfg.Queries.SampleQueries(ctx, h.cfg.Consumers); err != nil {
		next.QueriesErr = reasonOf(err)
	} else {
		next.Queries, next.QueriesErr = q, ""
		h.follow(ctx, next.Commands.Newest)
	}
	applied, lags := h.sampleViews(ctx, &next)
	if h.scraper != nil {
		next.Process = h.scraper.scrape(ctx, before.Process)
	}
	next.Time = time.Now()
	next.Took = next.Time.Sub(began)
	next.addPoint(before, applied, lags)
	h.publish(next)
}

// sampleViews measures the projections. It returns the entries applied since the last sample,
// and the lags of these; NaN if nothing is known.
func (h *hub) sampleViews(ctx context.Context, next *snapshot) (applied float64, lags [2]float64) {
	applied, lags = math.NaN(), [2]float64{math.NaN(), math.NaN()}
	views := append([]ViewState(nil), next.Views...)
	for i := range views {
		v := &views[i]
		t := h.cfg.typeNamed(v.Type)
		sample, err := t.Source.SampleView(ctx, v.Position)
		if err != nil {
			v.Err = reasonOf(err)
			continue
		}
		first := v.Position == 0
		v.ViewSample, v.Err = sample, ""
		if first { // it has described old entries
			continue
		}
		if math.IsNaN(applied) {
			applied = 0
		}
		applied += float64(sample.Applied)
		if sample.Applied > 0 {
			v.P50, v.P99 = sample.P50, sample.P99
			for n, lag := range []time.Duration{sample.P50, sample.P99} {
				if !(lags[n] > lag.Seconds()) { // true for NaN, too
					lags[n] = lag.Seconds()
				}
			}
		}
	}
	next.Views = views
	return applied, lags
}

// typeNamed returns the aggregate type with a name. A type that is not in the list has no
// source.
func (c Config) typeNamed(name string) Type {
	for _, t := range c.Types {
		if t.Name == name {
			return t
		}
	}
	return Type{Name: name}
}

// title adds the titles of aggregates. Without them the ids are shown.
func (h *hub) title(ctx context.Context, writes []Write) {
	for _, t := range h.cfg.Types {
		var ids []string
		for _, w := range writes {
			if w.Aggregate.Type == t.Name {
				ids = append(ids, w.ID)
			}
		}
		if t.Source == nil || len(ids) == 0 {
			continue
		}
		titles, err := t.Source.Titles(ctx, ids)
		if err != nil {
			continue
		}
		for i := range writes {
			if writes[i].Aggregate.Type == t.Name {
				writes[i].Title = titles[writes[i].ID]
			}
		}
	}
}

// follow adds when the writes were applied, if they are known to be.
func (h *hub) follow(ctx context.Context, writes []Write) {
	events := make([]Event, len(writes))
	for i := range writes {
		events[i].ID = writes[i].EventID
	}
	if err := h.cfg.Queries.Applied(ctx, h.cfg.Consumers, events); err != nil {
		return
	}
	for i := range writes {
		if len(events[i].Applied) > 0 {
			writes[i].Applied = events[i].Applied[0].Time
		}
	}
}

// addPoint adds a point for charts.
func (s *snapshot) addPoint(before snapshot, applied float64, lags [2]float64) {
	nan := math.NaN()
	p := Point{
		Time: s.Time, Commands: nan, Pending: nan, Oldest: nan, Sent: nan, Applied: nan, P50: lags[0], P99: lags[1],
		InHand: nan, Blocked: nan, Parked: nan, Quarantine: nan,
	}
	elapsed := s.Time.Sub(before.Time).Seconds()
	if before.Time.IsZero() || elapsed <= 0 {
		elapsed = nan
	}
	p.Applied = applied / elapsed
	s.LaneRates = make(map[int]float64)
	if s.CommandsErr == "" {
		c := s.Commands
		p.Pending, p.Oldest, p.Blocked, p.Parked = float64(c.Pending()), c.Oldest().Seconds(), float64(c.Blocked), float64(c.Parked)
		if c.Over > 0 {
			p.Commands = float64(c.Appended) / c.Over.Seconds()
		}
		if before.CommandsErr == "" && len(before.Commands.Lanes) == len(c.Lanes) {
			for i, lane := range c.Lanes {
				s.LaneRates[lane.Number] = float64(lane.Settlements-before.Commands.Lanes[i].Settlements) / elapsed
			}
			p.Sent = max(0, p.Commands-float64(c.Pending()-before.Commands.Pending())/elapsed)
		}
	}
	if s.QueriesErr == "" {
		p.Quarantine = float64(s.Queries.Quarantined)
	}
	if s.HasProcess && s.Process.Err == "" {
		p.InHand = s.Process.InHand
		if before.Process.Err == "" && !before.Process.Time.IsZero() {
			p.Sent = max(0, s.Process.Published-before.Process.Published) / elapsed
			p.Applied = max(0, s.Process.Applied-before.Process.Applied) / elapsed
		}
	}
	points := append(s.Points[max(0, len(s.Points)-history+1):len(s.Points):len(s.Points)], p)
	s.Points, s.Rate = points, meanOf(points[max(0, len(points)-5):])
}

// meanOf returns the mean rates of some points. What is not a rate it leaves as it is in the
// last one.
func meanOf(points []Point) Point {
	mean := points[len(points)-1]
	of := func(value func(Point) float64) float64 {
		sum, n := 0.0, 0.0
		for _, p := range points {
			if v := value(p); !math.IsNaN(v) {
				sum, n = sum+v, n+1
			}
		}
		return sum / n // NaN without any
	}
	mean.Commands = of(func(p Point) float64 { return p.Commands })
	mean.Sent = of(func(p Point) float64 { return p.Sent })
	mean.Applied = of(func(p Point) float64 { return p.Applied })
	return mean
}

// partNames are the parts of the pages that live, in templates/parts.html.
var partNames = []string{"health", "blocked", "quarantine", "commands", "writes", "lanes", "topic", "projector", "view", "flows"}

// publish renders the parts and wakes the readers.
func (h *hub) publish(next snapshot) {
	rendered := make(map[string]template.HTML, len(partNames))
	for _, name := range partNames {
		var out bytes.Buffer
		if err := h.parts.ExecuteTemplate(&out, "part-"+name, next); err != nil {
			h.log.Error("console: part not rendered", "part", name, "err", err)
			continue
		}
		rendered[name] = template.HTML(out.String()) //nolint:gosec // a template has made and escaped it
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number++
	h.state = next
	for name, html := range rendered {
		if before, ok := h.html[name]; !ok || before.html != html {
			h.html[name] = part{html: html, number: h.number}
		}
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) current() snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// news returns the parts that have changed after a sample, the id of the last sample, and
// a channel that is closed at the next one. An id of another process means all parts.
func (h *hub) news(after string) (parts map[string]template.HTML, id string, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked = time.Now()
	number := h.parse(after)
	parts = make(map[string]template.HTML)
	for name, p := range h.html {
		if p.number > number {
			parts[name] = p.html
		}
	}
	return parts, h.boot + "-" + strconv.FormatInt(h.number, 10), h.changed
}

// parse returns the number in an id of this process; 0 for any other text.
func (h *hub) parse(id string) int64 {
	if len(id) <= len(h.boot) || id[:len(h.boot)+1] != h.boot+"-" {
		return 0
	}
	number, err := strconv.ParseInt(id[len(h.boot)+1:], 10, 64)
	if err != nil {
		return 0
	}
	return number
}
