package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
)

// action is something that a person can do with what is stuck.
type action struct {
	Name   string // in forms
	Verb   string // on its button
	Effect string
}

var actions = map[string]action{
	operate.Retry: {
		operate.Retry, "Retry",
		"The first events of aggregates are tried again at once, and the others follow in order. Messages that this build can decode are applied, and leave the quarantine. The others stay.",
	},
	operate.Skip: {
		operate.Skip, "Skip",
		"The first events of aggregates are given up, and never published: consumers see a gap in the versions. Messages are deleted from the quarantine for ever, and not applied.",
	},
}

// refusal returns why the user may not act; empty if the user may act on at least one side.
func (r rights) refusal() string {
	switch {
	case r.Err != nil:
		return "The privileges of the database user are not known: " + reasonOf(r.Err)
	case !r.Commands && !r.Queries:
		return "The database user " + r.User + " may only read. To act, start the console with a user that has the roles of the service."
	}
	return ""
}

// confirmPage is the form that confirms an action, and what the action did.
type confirmPage struct {
	action
	Filter    filter
	Matched   int64
	Sample    string // of the cause in the filter
	Reason    string
	MaxReason int
	MaxItems  int64 // of each side
	Err       string
	Ended     bool
	Result    operate.Result
}

// actTimeout is how long an action may take.
const actTimeout = 2 * time.Minute

// act counts the items that an action matches, and shows a form. When the form is sent, it acts.
// An action stops if the person leaves the page: the audit has the items that were done.
func (s *server) act(w http.ResponseWriter, r *http.Request) {
	s.acting.Add(1)
	defer s.acting.Done()
	ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
	defer cancel()
	p, err := readAction(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if refusal := s.readRights(ctx).refusal(); refusal != "" {
		s.show(w, r, http.StatusForbidden, "error", "", http.StatusText(http.StatusForbidden), refusal)
		return
	}
	counted, err := s.Act(ctx, p.Name, pg.Filter(p.Filter), 1, pg.Entry{})
	if p.Matched = counted.Matched; err != nil {
		s.fail(w, r, err)
		return
	}
	entry, refusal := s.confirmed(p, r.PostForm.Get("confirmed"))
	if entry.Action == "" {
		status := http.StatusOK
		if p.Err = refusal; refusal != "" {
			status = http.StatusBadRequest
		}
		p.Sample = s.sampleOf(ctx, p.Filter.Cause)
		s.show(w, r, status, "confirm", "stuck", p.Verb, p)
		return
	}
	p.Result, err = s.Act(ctx, p.Name, pg.Filter(p.Filter), int(min(p.Matched, operate.MostItems)), entry)
	logged := []any{"action", p.Name, "actor", s.user, "done", p.Result.Done, "matched", p.Result.Matched, "failed", len(p.Result.Failed), "err", err}
	if p.Result.ActionID != uuid.Nil { // the audit has it
		logged = append(logged, "action_id", p.Result.ActionID)
	}
	s.log.InfoContext(ctx, "console: action ended", logged...)
	if err == nil && len(p.Result.Failed) == 0 && p.Result.Done > 0 {
		http.Redirect(w, r, "/audit?text="+p.Result.ActionID.String(), http.StatusSeeOther) //nolint:gosec // a UUID; a reload does not act again
		return
	}
	if p.Ended = true; err != nil {
		p.Err = reasonOf(err)
	}
	s.show(w, r, http.StatusOK, "confirm", "stuck", p.Verb, p)
}

// readAction reads the form of an action. Its error names the field.
func readAction(r *http.Request) (p confirmPage, err error) {
	if err := r.ParseForm(); err != nil {
		return p, problem.InvalidField("form", "cannot be read: %v", err)
	}
	chosen, ok := actions[r.PostForm.Get("action")]
	if !ok {
		return p, problem.InvalidField("action", "must be one that the console offers")
	}
	return confirmPage{action: chosen, Filter: readFilter(r.PostForm), Reason: r.PostForm.Get("reason"), MaxReason: pg.MaxReason, MaxItems: operate.MostItems}, nil
}

// sampleOf returns an example of the errors with a cause; empty if there is none.
func (s *server) sampleOf(ctx context.Context, cause string) string {
	groups, err := s.Causes(ctx, groupRows)
	for _, g := range groups {
		if err == nil && g.Cause == cause {
			return g.Sample
		}
	}
	return "" // the cause is shown all the same
}

// confirmed returns the entry of a confirmed action, or why the confirmation is refused. Without
// a confirmation it returns neither.
func (s *server) confirmed(p confirmPage, count string) (pg.Entry, string) {
	if count == "" {
		return pg.Entry{}, ""
	}
	if before, err := strconv.ParseInt(count, 10, 64); err != nil || p.Matched > before {
		return pg.Entry{}, "More match now than you have seen. Look at the number again."
	}
	if p.Matched == 0 {
		return pg.Entry{}, "Nothing matches any more."
	}
	entry, err := pg.NewEntry(p.Name, pg.Filter(p.Filter), pg.Actor{Name: s.user, Via: "console"}, p.Reason)
	if known, ok := errors.AsType[*problem.Error](err); ok {
		return pg.Entry{}, "The reason: " + known.Message
	} else if err != nil {
		return pg.Entry{}, err.Error()
	}
	return entry, ""
}

// Back returns the page that leads here.
func (p confirmPage) Back() string {
	query := make(url.Values)
	for name, value := range map[string]string{"id": p.Filter.ID, "type": p.Filter.Type, "aggregate": p.Filter.Aggregate, "cause": p.Filter.Cause} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return "/stuck?" + query.Encode()
}
