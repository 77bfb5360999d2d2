package console

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
)

const (
	groupRows = 100 // causes of each side that the page shows
	stuckRows = 100 // items of each side; an action by filter has no such limit
)

// stuckPage has blocked aggregates and quarantined messages: groups by cause, and the items that match a filter.
type stuckPage struct {
	Filter filter
	Groups []pg.Group // nil if there is a filter
	Items  []item
	More   bool // there are more items than are shown
	Acts   bool
}

// item is a blocked aggregate, or a message in quarantine.
type item struct {
	envelope.Aggregate        // of the event, as far as it is known
	ID                 string // the id for an action; empty: nothing is deferred any more
	Side               string
	Title              string
	Event              string
	Since              time.Time // when it began to wait for a person; zero: it does not wait for one
	NextRetry          time.Time // of an aggregate that is retried automatically
	Reason             string
}

// filter is a filter as a form has it.
type filter pg.Filter

// readFilter reads a filter from a form or a query.
func readFilter(values url.Values) filter {
	return filter{ID: values.Get("id"), Type: values.Get("type"), Aggregate: values.Get("aggregate"), Cause: values.Get("cause")}
}

// Empty reports whether the filter matches everything.
func (f filter) Empty() bool { return f == filter{Until: f.Until} }

// stuck shows what is stuck on both sides.
func (s *server) stuck(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	mine := s.sample(ctx).Rights
	p := stuckPage{Filter: readFilter(r.URL.Query()), Acts: mine.Commands || mine.Queries}
	found, err := s.Find(ctx, pg.Filter(p.Filter), stuckRows)
	if err == nil && p.Filter.Empty() {
		p.Groups, err = s.Causes(ctx, groupRows)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	for _, b := range found.Blocked {
		i := item{Aggregate: b.Aggregate, Side: "outbox", Event: "version " + strconv.FormatInt(b.Version, 10), Since: b.ParkedAt, NextRetry: b.NextRetry, Reason: b.LastError}
		if b.EventID != uuid.Nil {
			i.ID = b.EventID.String()
		}
		p.Items = append(p.Items, i)
	}
	for _, m := range found.Messages {
		number := strconv.FormatInt(m.ID, 10)
		p.Items = append(p.Items, item{
			Aggregate: m.Aggregate(), ID: number, Side: "quarantine " + number, Event: m.Attributes[envelope.AttrEventType], Since: m.ReceivedAt, Reason: m.Reason,
		})
	}
	p.More = found.Total > int64(len(p.Items))
	s.addTitles(ctx, p.Items)
	s.show(w, r, http.StatusOK, "stuck", "stuck", "Stuck", p)
}

func (s *server) addTitles(ctx context.Context, items []item) {
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].Aggregate.ID
	}
	titles := s.titlesOf(ctx, ids)
	for i := range items {
		items[i].Title = titles[items[i].Aggregate.ID].Title
	}
}
