package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/problem"
)

// action is something that a person can do.
type action struct {
	Name       string // as admin names it
	Verb       string // on its button
	One, Items string // what it changes
	Effect     string
	All        string // what an empty filter means
	None       string // why nothing may match
	Page       string // the page that it belongs to
	Zero       bool   // it acts also if nothing matches
	queries    bool   // it changes the query side
	grows      bool   // more may match until it begins, and that does no harm
	run        func(context.Context, *Server, order) (jobResult, error)
}

// What some actions say in the same words.
const (
	waiting   = "all that wait for a person"
	faster    = "Another person may have done it already."
	notParked = " Or only aggregates match that are not parked: those are tried again by themselves."
)

// order is what a person wants done.
type order struct {
	admin.Request
	From  time.Time // of a seek
	After uuid.UUID // of a backfill
}

// jobResult is the result of an action.
type jobResult struct {
	admin.Result
	Last uuid.UUID
}

// plain is the result of an action that cannot go on where it has ended.
func plain(r admin.Result, err error) (jobResult, error) {
	return jobResult{Result: r}, err
}

var actions = []action{
	{
		Name: admin.ActionRequeue, Verb: "Requeue", One: "aggregate", Items: "aggregates", All: waiting, Page: "blocked",
		Effect: "Their first events are tried again at once. The others follow in order.",
		None:   faster + notParked,
		run: func(ctx context.Context, s *Server, r order) (jobResult, error) {
			return plain(admin.Requeue(ctx, s.cfg.Outbox, r.Request))
		},
	},
	{
		Name: admin.ActionSkip, Verb: "Skip", One: "aggregate", Items: "aggregates", All: waiting, Page: "blocked",
		Effect: "Their first events are given up, and never published. Consumers see a gap in the versions. The events behind them are tried at once.",
		None:   faster + notParked,
		run: func(ctx context.Context, s *Server, r order) (jobResult, error) {
			return plain(admin.Skip(ctx, s.cfg.Outbox, r.Request))
		},
	},
	{
		Name: admin.ActionReplay, Verb: "Replay", One: "message", Items: "messages", All: waiting, Page: "quarantine", queries: true,
		Effect: "Those that this build can decode are applied, and leave the quarantine. The others stay.", None: faster,
		run: func(ctx context.Context, s *Server, r order) (jobResult, error) {
			return plain(admin.Replay(ctx, s.cfg.Quarantine, s.cfg.Apply, r.Request))
		},
	},
	{
		Name: admin.ActionDelete, Verb: "Delete", One: "message", Items: "messages", All: waiting, Page: "quarantine", queries: true,
		Effect: "They are deleted from the quarantine for ever, and not applied.", None: faster,
		run: func(ctx context.Context, s *Server, r order) (jobResult, error) {
			return plain(admin.Delete(ctx, s.cfg.Quarantine, r.Request))
		},
	},
}

// refusal returns why the user may not do the action; empty if it may.
func (a action) refusal(mine rights) string {
	side, p := "command", mine.commands
	if a.queries {
		side, p = "query", mine.queries
	}
	switch {
	case mine.err != nil:
		return "The privileges of the database user are not known: " + reasonOf(mine.err)
	case !p.Writes:
		return fmt.Sprintf("The database user %s may only read the %s side. To act, start the console with a user that has the role of that side.", p.User, side)
	case a.Name == admin.ActionReplay && !p.ReadsPayloads:
		return fmt.Sprintf("The database user %s may not read payloads, so it cannot replay messages.", p.User)
	}
	return ""
}

// confirmPage is the form that confirms an action.
type confirmPage struct {
	action
	Filter  filter
	From    string // of a seek
	After   string // of a backfill
	EventID string
	Matched int64
	Sample  string // of the cause in the filter
	Reason  string
	Err     string
}

// Back returns the page that leads here.
func (p confirmPage) Back() string {
	if p.Page == "aggregates" && p.Filter.Type != "" && p.Filter.ID != "" {
		return "/aggregates/" + url.PathEscape(p.Filter.Type) + "/" + url.PathEscape(p.Filter.ID)
	}
	return "/" + p.Page
}

// countTimeout is how long an action may take to count what it would change. A seek counts the
// whole inbox.
const countTimeout = 2 * time.Minute

// act counts what an action would change, and shows a form. When the form is sent, it acts.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), countTimeout)
	defer cancel()
	p, request, err := s.readAction(r)
	if err != nil {
		s.fail(w, r, 0, err)
		return
	}
	if refusal := p.refusal(s.privileges(ctx)); refusal != "" {
		s.fail(w, r, http.StatusForbidden, errors.New(refusal))
		return
	}
	request.DryRun = true
	counted, err := p.run(ctx, s, request)
	if err != nil {
		s.fail(w, r, 0, err)
		return
	}
	p.Matched, request.DryRun = counted.Matched, false
	if p.Err = p.confirmed(r.PostForm.Get("confirmed"), request.Reason); p.Err != "" || r.PostForm.Get("confirmed") == "" {
		status := http.StatusOK
		if p.Err != "" {
			status = http.StatusBadRequest
		}
		p.Sample = s.sampleOf(ctx, p.action, request.Filter)
		s.show(w, r, status, "confirm", p.Page, p.Verb, p)
		return
	}
	if !p.grows {
		request.Confirmed = p.Matched
	}
	j := s.jobs.begin(s, p, request)
	select {
	case <-j.ended: // most are fast
	case <-time.After(500 * time.Millisecond):
	}
	http.Redirect(w, r, "/actions/"+j.ID.String(), http.StatusSeeOther)
}

// readAction reads the form of an action. Its error names the field.
func (s *Server) readAction(r *http.Request) (p confirmPage, request order, err error) {
	if err := r.ParseForm(); err != nil {
		return p, request, problem.InvalidField("form", "cannot be read: %v", err)
	}
	form := r.PostForm
	i := slices.IndexFunc(actions, func(a action) bool { return a.Name == form.Get("action") })
	if i < 0 {
		return p, request, problem.InvalidField("action", "must be one that the console offers")
	}
	p = confirmPage{
		action: actions[i], Reason: form.Get("reason"), EventID: form.Get("event_id"),
		From: form.Get("from"), After: form.Get("after"),
	}
	request.Actor, request.Reason = admin.Actor{Name: s.cfg.User, Via: "console"}, strings.TrimSpace(p.Reason)
	if p.Filter, request.Filter, err = readFilter(form); err != nil {
		return p, request, err
	}
	request.All = p.Filter.Empty()
	for _, field := range []struct {
		name, text string
		to         *uuid.UUID
	}{{"event_id", p.EventID, &request.EventID}, {"after", p.After, &request.After}} {
		if *field.to, err = uuid.Parse(field.text); err != nil && field.text != "" {
			return p, request, problem.InvalidField(field.name, "must be a UUID")
		}
	}
	if request.From, err = time.Parse(time.RFC3339, p.From); err != nil && p.From != "" {
		return p, request, problem.InvalidField("from", "must be a time, such as 2026-01-31T12:00:00Z")
	}
	return p, request, nil
}

// sampleOf returns a message with the cause in a filter; empty if there is none.
func (s *Server) sampleOf(ctx context.Context, a action, f admin.Filter) string {
	if f.Cause == "" {
		return ""
	}
	list := s.cfg.Outbox.GroupBlocked
	if a.queries {
		list = s.cfg.Quarantine.GroupQuarantine
	}
	groups, err := list(ctx, groupRows)
	if err != nil {
		return "" // the fingerprint is shown all the same
	}
	for _, g := range groups {
		if g.Cause == f.Cause {
			return g.Sample
		}
	}
	return ""
}

// confirmed returns why a confirmation is refused; empty if it is not, or if there is none yet.
func (p confirmPage) confirmed(count, reason string) string {
	if count == "" {
		return ""
	}
	if before, err := strconv.ParseInt(count, 10, 64); err != nil || p.Matched > before && !p.grows {
		return "More match now than you have seen. Look at the number again."
	}
	if p.Matched == 0 && !p.Zero {
		return "Nothing matches any more."
	}
	if reason == "" {
		return "A reason is missing. It is for those who read the audit."
	}
	return ""
}

// jobs are the actions of this process, for as long as it lives. The audit has them for longer.
type jobs struct {
	running sync.WaitGroup

	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // ends when the console stops, and with it the actions
	byID  map[uuid.UUID]*job
	order []uuid.UUID
}

// maxJobs is how many actions are remembered.
const maxJobs = 100

// job is an action that runs or has ended.
type job struct {
	ID uuid.UUID
	confirmPage
	Reason string
	ended  chan struct{} // closed when result and err are set
	result jobResult
	err    error

	mu            sync.Mutex
	done, matched int64 // guarded by mu
}

func (j *jobs) start(ctx context.Context) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ctx, j.byID = ctx, make(map[uuid.UUID]*job)
}

func (j *jobs) wait() { j.running.Wait() }

// begin starts an action. It goes on if the person leaves, until the console stops.
func (j *jobs) begin(s *Server, p confirmPage, request order) *job {
	started := &job{ID: uuid.New(), confirmPage: p, Reason: request.Reason, ended: make(chan struct{}), matched: p.Matched}
	request.Progress = func(done, matched int64) {
		started.mu.Lock()
		defer started.mu.Unlock()
		started.done, started.matched = done, max(done, matched)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.byID[started.ID] = started
	j.order = append(j.order, started.ID)
	if len(j.order) > maxJobs {
		delete(j.byID, j.order[0])
		j.order = j.order[1:]
	}
	ctx := j.ctx
	j.running.Go(func() {
		defer close(started.ended)
		started.result, started.err = p.run(ctx, s, request)
	})
	return started
}

func (j *jobs) get(id string) (*job, bool) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return nil, false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	found, ok := j.byID[parsed]
	return found, ok
}

// jobPage is what is known of an action.
type jobPage struct {
	*job
	Ended         bool
	Done, Matched int64
	Result        jobResult
	Err           string
	Continues     bool // it can go on where it has ended
}

// showJob shows an action: how far it is, or what it did.
func (s *Server) showJob(w http.ResponseWriter, r *http.Request) {
	j, ok := s.jobs.get(r.PathValue("id"))
	if !ok {
		s.fail(w, r, http.StatusNotFound, errors.New("this process does not know the action: the audit has what was done"))
		return
	}
	p := jobPage{job: j}
	j.mu.Lock()
	p.Done, p.Matched = j.done, j.matched
	j.mu.Unlock()
	shown := page{Page: j.Page, Title: j.Verb, Refresh: 1}
	select {
	case <-j.ended:
		p.Ended, p.Result, shown.Refresh = true, j.result, 0
		if j.err != nil {
			p.Err = reasonOf(j.err)
			p.Continues = j.result.Last != uuid.Nil
		}
		p.Done, p.Matched = j.result.Done, max(p.Matched, j.result.Matched)
	default:
	}
	shown.Data = p
	s.write(w, r, http.StatusOK, "job", shown)
}
