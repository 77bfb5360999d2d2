package console

import (
	"context"
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

// action is something that a person can do with what is stuck on a side.
type action struct {
	Side   side
	Name   string // in forms
	Verb   string // on its button
	One    string // what it changes
	Effect string
	None   string // why nothing may match
	run    func(context.Context, *server, admin.Request) (admin.Result, error)
}

// Items returns what the action changes.
func (a action) Items() string { return a.Side.Items() }

// The sentences that several actions share.
const (
	gone      = "Another person may have done it already."
	notParked = gone + " Or only aggregates match that are not parked: those are tried again by themselves."
)

var actions = []action{
	{
		Side: outbox, Name: "retry", Verb: "Retry", One: "aggregate", None: notParked,
		Effect: "Their first events are tried again at once. The others follow in order.",
		run: func(ctx context.Context, s *server, r admin.Request) (admin.Result, error) {
			return admin.Requeue(ctx, s.outbox, r)
		},
	},
	{
		Side: outbox, Name: "skip", Verb: "Skip", One: "aggregate", None: notParked,
		Effect: "Their first events are given up, and never published. Consumers see a gap in the versions. The events behind them are tried at once.",
		run: func(ctx context.Context, s *server, r admin.Request) (admin.Result, error) {
			return admin.Skip(ctx, s.outbox, r)
		},
	},
	{
		Side: quarantine, Name: "retry", Verb: "Retry", One: "message", None: gone,
		Effect: "Those that this build can decode are applied, and leave the quarantine. The others stay.",
		run: func(ctx context.Context, s *server, r admin.Request) (admin.Result, error) {
			return admin.Replay(ctx, s.inbox, s.replay, r)
		},
	},
	{
		Side: quarantine, Name: "skip", Verb: "Skip", One: "message", None: gone,
		Effect: "They are deleted from the quarantine for ever, and not applied.",
		run: func(ctx context.Context, s *server, r admin.Request) (admin.Result, error) {
			return admin.Delete(ctx, s.inbox, r)
		},
	},
}

// refusal returns why the user may not do the action; empty if it may.
func (a action) refusal(mine rights) string {
	switch {
	case mine.Err != nil:
		return "The privileges of the database user are not known: " + reasonOf(mine.Err)
	case a.Side == outbox && !mine.Commands, a.Side == quarantine && !mine.Queries:
		return fmt.Sprintf("The database user %s may only read. To act, start the console with a user that has the roles of the service.", mine.User)
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

// countTimeout is how long an action may take to count what it would change.
const countTimeout = 2 * time.Minute

// act counts what an action would change, and shows a form. When the form is sent, it acts.
func (s *server) act(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), countTimeout)
	defer cancel()
	p, request, err := s.readAction(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if refusal := p.refusal(s.readRights(ctx)); refusal != "" {
		s.show(w, r, http.StatusForbidden, "error", "", http.StatusText(http.StatusForbidden), refusal)
		return
	}
	request.DryRun = true
	counted, err := p.run(ctx, s, request)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	p.Matched, request.DryRun = counted.Matched, false
	if p.Err = p.confirmed(r.PostForm.Get("confirmed"), request); p.Err != "" || r.PostForm.Get("confirmed") == "" {
		status := http.StatusOK
		if p.Err != "" {
			status = http.StatusBadRequest
		}
		p.Sample = s.sampleOf(ctx, p.Side, request.Filter.Cause)
		s.show(w, r, status, "confirm", "stuck", p.Verb, p)
		return
	}
	request.Confirmed = p.Matched
	j := s.jobs.begin(s, p, request)
	select {
	case <-j.ended: // most are fast
	case <-time.After(500 * time.Millisecond):
	}
	http.Redirect(w, r, "/actions/"+j.ID.String(), http.StatusSeeOther)
}

// readAction reads the form of an action. Its error names the field.
func (s *server) readAction(r *http.Request) (p confirmPage, request admin.Request, err error) {
	if err := r.ParseForm(); err != nil {
		return p, request, problem.InvalidField("form", "cannot be read: %v", err)
	}
	form := r.PostForm
	i := slices.IndexFunc(actions, func(a action) bool { return a.Name == form.Get("action") && string(a.Side) == form.Get("side") })
	if i < 0 {
		return p, request, problem.InvalidField("action", "must be one that the console offers")
	}
	p = confirmPage{action: actions[i], Reason: form.Get("reason"), EventID: form.Get("event_id")}
	request.Actor, request.Reason = admin.Actor{Name: s.user, Via: "console"}, strings.TrimSpace(p.Reason)
	if p.Filter, request.Filter, err = readFilter(form); err != nil {
		return p, request, err
	}
	request.All = p.Filter.Empty()
	if request.EventID, err = uuid.Parse(p.EventID); err != nil && p.EventID != "" {
		return p, request, problem.InvalidField("event_id", "must be a UUID")
	}
	return p, request, nil
}

// sampleOf returns a message with a cause; empty if there is none.
func (s *server) sampleOf(ctx context.Context, side side, cause string) string {
	if cause == "" {
		return ""
	}
	groups, err := s.group(ctx)
	i := slices.IndexFunc(groups, func(g group) bool { return g.Side == side && g.Cause == cause })
	if err != nil || i < 0 {
		return "" // the fingerprint is shown all the same
	}
	return groups[i].Sample
}

// confirmed returns why a confirmation is refused; empty if it is not, or if there is none yet.
func (p confirmPage) confirmed(count string, request admin.Request) string {
	if count == "" {
		return ""
	}
	if before, err := strconv.ParseInt(count, 10, 64); err != nil || p.Matched > before {
		return "More match now than you have seen. Look at the number again."
	}
	if p.Matched == 0 {
		return "Nothing matches any more."
	}
	if _, err := admin.NewEntry(p.Name, nil, request.Actor, request.Reason); err != nil { // before the first change
		return reasonOf(err)
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
func (j *jobs) begin(s *server, p confirmPage, request admin.Request) *job {
	started := &job{ID: uuid.New(), confirmPage: p, ended: make(chan struct{}), matched: p.Matched}
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
		s.log.InfoContext(ctx, "console: action ended", "side", p.Side, "action", p.Name, "actor", s.user, "action_id", started.result.ActionID,
			"done", started.result.Done, "matched", started.result.Matched, "failed", started.result.Failures, "err", started.err)
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
func (s *server) showJob(w http.ResponseWriter, r *http.Request) {
	j, ok := s.jobs.get(r.PathValue("id"))
	if !ok {
		s.fail(w, r, problem.Errorf(problem.NotFound, "this process does not know the action: the audit has what was done"))
		return
	}
	p := jobPage{job: j}
	j.mu.Lock()
	p.Done, p.Matched = j.done, j.matched
	j.mu.Unlock()
	shown := page{Page: "stuck", Title: j.Verb, Refresh: 1}
	select {
	case <-j.ended:
		p.Ended, p.Result, shown.Refresh = true, j.result, 0
		if j.err != nil {
			p.Err = reasonOf(j.err)
		}
		p.Done, p.Matched = j.result.Done, max(p.Matched, j.result.Matched)
	default:
	}
	shown.Data = p
	s.write(w, r, http.StatusOK, "job", shown)
}

// Back returns the page that leads here.
func (p confirmPage) Back() string {
	query := make(url.Values)
	for name, value := range map[string]string{"type": p.Filter.Type, "id": p.Filter.ID, "cause": p.Filter.Cause, "age": p.Filter.Age} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return "/stuck?" + query.Encode()
}
