package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/problem"
)

const (
	groupRows = 100 // causes of each side that the page shows
	stuckRows = 100 // items of each side; an action by filter has no such limit
)

// side is where something is stuck.
type side string

const (
	outbox     side = "outbox"     // the broker refused an event
	quarantine side = "quarantine" // nobody could apply a message
)

// Items returns what the side has.
func (s side) Items() string {
	if s == outbox {
		return "aggregates"
	}
	return "messages"
}

// stuckPage has what is stuck: groups by cause, and the items that match a filter.
type stuckPage struct {
	Filter  filter
	Grouped bool // Groups were read: there is no filter
	Groups  []group
	Items   []item
	More    bool // there are more items than are shown
	Mine    rights
}

// group is what is stuck for one cause.
type group struct {
	admin.Group
	Side side
}

// item is a blocked aggregate, or a message in quarantine.
type item struct {
	envelope.Aggregate // of the event, as far as it is known
	Side               side
	Title              string
	Message            int64     // number of a message; 0: it is an aggregate
	EventID            uuid.UUID // the first event of an aggregate; uuid.Nil: nothing is deferred any more
	Event              string
	Since              time.Time // when it began to wait for a person; zero: it does not
	NextRetry          time.Time // of an aggregate that is tried again by itself
	Reason             string
}

// Key returns what an action names: the id of the aggregate, or the number of the message.
func (i item) Key() string {
	if i.Side == quarantine {
		return strconv.FormatInt(i.Message, 10)
	}
	return i.ID
}

// May reports whether the user may act on a side.
func (p stuckPage) May(s side) bool {
	if s == outbox {
		return p.Mine.Commands
	}
	return p.Mine.Queries
}

// Sides returns the sides that have items.
func (p stuckPage) Sides() []side {
	return slices.DeleteFunc([]side{outbox, quarantine}, func(s side) bool {
		return !slices.ContainsFunc(p.Items, func(i item) bool { return i.Side == s })
	})
}

// filter is a filter as a form has it.
type filter struct{ Type, ID, Cause, Age string }

// readFilter reads a filter from a form or a query. Its error names the field.
func readFilter(values url.Values) (filter, admin.Filter, error) {
	f := filter{Type: values.Get("type"), ID: values.Get("id"), Cause: values.Get("cause"), Age: values.Get("age")}
	parsed := admin.Filter{Type: f.Type, ID: f.ID, Cause: f.Cause}
	if f.Age != "" {
		var err error
		if parsed.Age, err = time.ParseDuration(f.Age); err != nil || parsed.Age < 0 {
			return f, parsed, problem.InvalidField("age", "must be a duration, such as 10m or 24h")
		}
	}
	return f, parsed, nil
}

// Empty reports whether the filter matches everything.
func (f filter) Empty() bool { return f == filter{} }

// stuck shows what waits for a person on both sides.
func (s *server) stuck(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	p := stuckPage{Mine: s.sample(ctx).Rights}
	var parsed admin.Filter
	var err error
	if p.Filter, parsed, err = readFilter(r.URL.Query()); err == nil {
		err = s.list(ctx, &p, parsed)
	}
	if p.Grouped = p.Filter.Empty(); p.Grouped && err == nil {
		p.Groups, err = s.group(ctx)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ids := make([]string, len(p.Items))
	for i := range p.Items {
		ids[i] = p.Items[i].ID
	}
	titles := s.titlesOf(ctx, ids)
	for i := range p.Items {
		p.Items[i].Title = titles[p.Items[i].ID]
	}
	s.show(w, r, http.StatusOK, "stuck", "stuck", "Stuck", p)
}

// list adds the items that match a filter. An id is of an aggregate, or the number of a message.
func (s *server) list(ctx context.Context, p *stuckPage, f admin.Filter) error {
	blocked, err := s.outbox.ListBlocked(ctx, f, envelope.Aggregate{}, stuckRows)
	if err != nil {
		return err
	}
	for _, b := range blocked {
		p.Items = append(p.Items, item{
			Aggregate: b.Aggregate, Side: outbox, EventID: b.EventID, Event: "version " + strconv.FormatInt(b.Version, 10),
			Since: b.ParkedAt, NextRetry: b.NextRetry, Reason: b.LastError,
		})
	}
	p.More = len(blocked) == stuckRows
	if _, err := strconv.ParseInt(f.ID, 10, 64); err != nil && f.ID != "" {
		return nil
	}
	messages, err := s.inbox.ListQuarantine(ctx, f, 0, stuckRows)
	for _, m := range messages {
		p.Items = append(p.Items, item{
			Aggregate: envelope.Aggregate{Type: m.Attributes[envelope.AttrAggregateType], ID: m.Attributes[envelope.AttrAggregateID]},
			Side:      quarantine, Message: m.ID, Event: m.Attributes[envelope.AttrEventType], Since: m.ReceivedAt, Reason: m.Reason,
		})
	}
	p.More = p.More || len(messages) == stuckRows
	return err
}

// group returns the causes of both sides, the largest first.
func (s *server) group(ctx context.Context) (all []group, err error) {
	for name, list := range map[side]func(context.Context, int) ([]admin.Group, error){outbox: s.outbox.GroupBlocked, quarantine: s.inbox.GroupQuarantine} {
		groups, err := list(ctx, groupRows)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			all = append(all, group{g, name})
		}
	}
	slices.SortFunc(all, func(a, b group) int {
		if a.Items != b.Items {
			return int(b.Items - a.Items)
		}
		return a.First.Compare(b.First)
	})
	return all, nil
}
