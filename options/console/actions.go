package console

import (
	"context"
	"net/http"
	"strings"
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

// confirmPage is the form that confirms an action, and what the action did.
type confirmPage struct {
	action
	Filter    filter
	Sample    string // of the cause in the filter
	Reason    string
	MaxReason int
	MaxItems  int64 // of each side
	Err       string
	Ended     bool
	Result    operate.Result // of the count, too
}

// actTimeout is how long an action may take.
const actTimeout = 2 * time.Minute

// act counts the items that an action matches, and shows a form. When the form is sent, it acts on
// those that were counted, and on none that came later. An action stops if the person leaves the
// page: the audit has the items that were done.
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
	mine := s.readRights(ctx)
	if mine.Err != nil {
		s.fail(w, r, mine.Err)
		return
	}
	if !mine.Commands && !mine.Queries {
		s.show(w, r, http.StatusForbidden, "error", "", http.StatusText(http.StatusForbidden), mine.help())
		return
	}
	status, limit, entry := http.StatusOK, 1, pg.Entry{}
	if r.Method == http.MethodPost {
		status, limit = http.StatusBadRequest, operate.MostItems
		if entry, err = pg.NewEntry(p.Name, pg.Filter(p.Filter), pg.Actor{Name: s.user, Via: "console"}, p.Reason); err != nil {
			p.Err, entry = "The reason: "+strings.TrimPrefix(reasonOf(err), "--why: "), pg.Entry{}
		}
	} else {
		p.Filter.Until = mine.At
	}
	p.Result, err = s.Act(ctx, p.Name, pg.Filter(p.Filter), limit, entry)
	if entry.Action == "" || p.Result.Matched == 0 { // nothing was tried
		if err != nil {
			s.fail(w, r, err)
			return
		}
		p.Sample = s.sampleOf(ctx, p.Filter.Cause)
		s.show(w, r, status, "confirm", "stuck", p.Verb, p)
		return
	}
	logged := []any{"action", p.Name, "actor", s.user, "done", p.Result.Done, "matched", p.Result.Matched, "failed", len(p.Result.Failed), "err", err}
	if p.Result.ActionID != uuid.Nil { // the audit has it
		logged = append(logged, "action_id", p.Result.ActionID)
	}
	s.log.InfoContext(ctx, "console: action ended", logged...)
	if err == nil && len(p.Result.Failed) == 0 && p.Result.Done > 0 {
		http.Redirect(w, r, "/audit?text="+p.Result.ActionID.String(), http.StatusSeeOther) // a reload does not act again
		return
	}
	if p.Ended = true; err != nil {
		p.Err = reasonOf(err)
	}
	s.show(w, r, http.StatusOK, "confirm", "stuck", p.Verb, p)
}

// readAction reads the form of an action. Its error names the field.
func readAction(r *http.Request) (p confirmPage, err error) {
	chosen, ok := actions[r.FormValue("action")]
	if !ok {
		return p, problem.InvalidField("action", "must be one that the console offers")
	}
	p = confirmPage{action: chosen, Filter: readFilter(r.Form), Reason: r.FormValue("reason"), MaxReason: pg.MaxReason, MaxItems: operate.MostItems}
	if r.Method == http.MethodPost {
		if p.Filter.Until, err = time.Parse(time.RFC3339Nano, r.FormValue("until")); err != nil {
			return p, problem.InvalidField("until", "must be when the items were counted")
		}
	}
	return p, nil
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
