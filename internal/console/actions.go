package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	Back       string // the page that it belongs to
	run        func(context.Context, *Server, admin.Request) (admin.Result, error)
}

var actions = []action{
	{
		Name: admin.ActionRequeue, Verb: "Requeue", One: "aggregate", Items: "aggregates", Back: "/blocked",
		Effect: "Their first events are tried again at once. The others follow in order.",
		run: func(ctx context.Context, s *Server, r admin.Request) (admin.Result, error) {
			return admin.Requeue(ctx, s.cfg.Outbox, r)
		},
	},
	{
		Name: admin.ActionSkip, Verb: "Skip", One: "aggregate", Items: "aggregates", Back: "/blocked",
		Effect: "Their first events are given up, and never published. Consumers see a gap in the versions. The events behind them are tried at once.",
		run: func(ctx context.Context, s *Server, r admin.Request) (admin.Result, error) {
			return admin.Skip(ctx, s.cfg.Outbox, r)
		},
	},
	{
		Name: admin.ActionReplay, Verb: "Replay", One: "message", Items: "messages", Back: "/quarantine",
		Effect: "Those that this build can decode are applied, and leave the quarantine. The others stay.",
		run: func(ctx context.Context, s *Server, r admin.Request) (admin.Result, error) {
			return admin.Replay(ctx, s.cfg.Quarantine, s.cfg.Apply, r)
		},
	},
	{
		Name: admin.ActionDelete, Verb: "Delete", One: "message", Items: "messages", Back: "/quarantine",
		Effect: "They are deleted from the quarantine for ever, and not applied.",
		run: func(ctx context.Context, s *Server, r admin.Request) (admin.Result, error) {
			return admin.Delete(ctx, s.cfg.Quarantine, r)
		},
	},
}

// refusal returns why the user may not do the action; empty if it may.
func (a action) refusal(mine rights) string {
	side, p := "query", mine.queries
	if a.Back == "/blocked" {
		side, p = "command", mine.commands
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
	EventID string
	Matched int64
	Sample  string // of the cause in the filter
	Reason  string
	Err     string
}

// act counts what an action would change, and shows a form. When the form is sent, it acts.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, http.StatusBadRequest, fmt.Errorf("read the form: %w", err))
		return
	}
	i := slices.IndexFunc(actions, func(a action) bool { return a.Name == r.PostForm.Get("action") })
	if i < 0 {
		s.fail(w, r, 0, problem.InvalidField("action", "must be one that the console offers"))
		return
	}
	p := confirmPage{action: actions[i], Reason: r.PostForm.Get("reason"), EventID: r.PostForm.Get("event_id")}
	if refusal := p.refusal(s.privileges(ctx)); refusal != "" {
		s.fail(w, r, http.StatusForbidden, errors.New(refusal))
		return
	}
	request := admin.Request{Actor: admin.Actor{Name: s.cfg.User, Via: "console"}, Reason: strings.TrimSpace(p.Reason)}
	var err error
	if p.Filter, request.Filter, err = readFilter(r.PostForm); err != nil {
		s.fail(w, r, 0, err)
		return
	}
	if p.EventID != "" {
		if request.EventID, err = uuid.Parse(p.EventID); err != nil {
			s.fail(w, r, 0, problem.InvalidField("event_id", "must be a UUID"))
			return
		}
	}
	request.All = p.Filter.Empty()
	dry := request
	dry.DryRun = true
	counted, err := p.run(ctx, s, dry)
	if err != nil {
		s.fail(w, r, 0, err)
		return
	}
	p.Matched = counted.Matched
	if p.Err = confirmed(r.PostForm.Get("confirmed"), request.Reason, counted.Matched); p.Err != "" || r.PostForm.Get("confirmed") == "" {
		status := http.StatusOK
		if p.Err != "" {
			status = http.StatusBadRequest
		}
		p.Sample = s.sampleOf(ctx, p.action, request.Filter)
		s.show(w, r, status, "confirm", strings.TrimPrefix(p.Back, "/"), p.Verb, p)
		return
	}
	request.Confirmed = counted.Matched
	j := s.jobs.begin(s, p, request)
	select {
	case <-j.ended: // most are fast
	case <-time.After(500 * time.Millisecond):
	}
	http.Redirect(w, r, "/actions/"+j.ID.String(), http.StatusSeeOther)
}

// sampleOf returns a message with the cause in a filter; empty if there is none.
func (s *Server) sampleOf(ctx context.Context, a action, f admin.Filter) string {
	if f.Cause == "" {
		return ""
	}
	list := s.cfg.Quarantine.GroupQuarantine
	if a.Back == "/blocked" {
		list = s.cfg.Outbox.GroupBlocked
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
func confirmed(count, reason string, matched int64) string {
	if count == "" {
		return ""
	}
	if before, err := strconv.ParseInt(count, 10, 64); err != nil || matched > before {
		return "More match now than you have seen. Look at the number again."
	}
	if matched == 0 {
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
	result admin.Result
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
func (j *jobs) begin(s *Server, p confirmPage, request admin.Request) *job {
	started := &job{ID: uuid.New(), confirmPage: p, Reason: request.Reason, ended: make(chan struct{}), matched: p.Matched}
	request.Progress = func(done, matched int64) {
		started.mu.Lock()
		defer started.mu.Unlock()
		started.done, started.matched = done, matched
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
	Result        admin.Result
	Err           string
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
	shown := page{Page: strings.TrimPrefix(j.Back, "/"), Title: j.Verb, Refresh: 1}
	select {
	case <-j.ended:
		p.Ended, p.Result, shown.Refresh = true, j.result, 0
		p.Done, p.Matched = j.result.Done, max(p.Matched, j.result.Matched)
		if j.err != nil {
			p.Err = reasonOf(j.err)
		}
	default:
	}
	shown.Data = p
	s.write(w, r, http.StatusOK, "job", shown)
}
