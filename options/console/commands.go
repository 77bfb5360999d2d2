package console

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/options/console/internal/sqlcgen"
)

// reader makes a command that prints the content of a page. arguments are the names of its arguments, and byDefault the
// values of a command without arguments.
func reader(arguments []string, show func(context.Context, sides, []string, *operate.Printer) error, byDefault ...string) app.Subcommand {
	return func(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
		o, err := operate.ParseOperation(args, nil)
		if len(o.Args) == 0 {
			o.Args = byDefault
		}
		if err == nil && len(o.Args) != len(arguments) {
			err = fmt.Errorf("%d arguments, want %s", len(o.Args), strings.Join(arguments, " and "))
		}
		if err != nil {
			return app.UsageError(fmt.Errorf("%s: %w: try `server %[1]s --help`", process.Subcommand, err))
		}
		process.LimitConns(maxConns)
		if err := process.OpenCommandSide(ctx); err != nil {
			return err
		}
		if err := process.OpenQuerySide(ctx); err != nil {
			return err
		}
		out := operate.NewPrinter(stdout, o.JSON)
		if err := show(ctx, sidesOf(process), o.Args, out); err != nil {
			return err
		}
		return out.End()
	}
}

// printFound prints the aggregates that have a text in their title.
func printFound(ctx context.Context, s sides, args []string, out *operate.Printer) error {
	found, cut, err := s.findTitles(ctx, args[0])
	if err == nil && len(found) == 0 && cut == "" {
		return problem.Errorf(problem.NotFound, "no title has %q in it", args[0])
	}
	out.Line("TYPE\tID\tTITLE")
	for _, f := range found {
		out.Row(f, f.Type, f.ID, f.Title)
	}
	if cut != "" {
		out.Row(map[string]string{"note": cut}, cut)
	}
	return err
}

// printAggregate prints an aggregate and its events.
func printAggregate(ctx context.Context, s sides, args []string, out *operate.Printer) error {
	of := envelope.Aggregate{Type: args[0], ID: args[1]}
	h, err := s.history(ctx, of)
	if err != nil {
		return err
	}
	if len(h.Events)+len(h.Messages)+len(h.Copies.owner)+len(h.Copies.projection) == 0 && h.Blocked == nil {
		return problem.Errorf(problem.NotFound, "there is no %s %s; types are %s", args[0], args[1], strings.Join(s.types, ", "))
	}
	acts, err := s.listAudit(ctx, of.ID)
	out.Row(struct {
		title
		history
		Erasure    string   `json:"erasure,omitempty"`
		Projection string   `json:"projection,omitempty"`
		Notes      []string `json:"notes,omitempty"`
		Audit      []entry  `json:"audit"`
	}{title{of, h.Title.Title, h.Title.Erased}, h, h.Erasure(), h.Copies.String(), h.Notes(), acts})
	out.Line("%s", strconv.QuoteToGraphic(cmp.Or(h.Title.Title, args[0]+" "+args[1])))
	if text := h.Erasure(); text != "" {
		out.Line("%s", text)
	}
	if text := h.Copies.String(); text != "" {
		out.Line("%s", text)
	}
	out.Line("VERSION\tEVENT\tID\tHAPPENED\tTO_THE_BROKER\tAPPLIED")
	for _, e := range h.Events {
		out.Row(nil, strconv.FormatInt(e.Version, 10), e.Type, e.ID.String(), e.Time.Format(time.RFC3339), string(e.State), e.effects(h.Sought))
	}
	for _, note := range h.Notes() {
		out.Line("%s", note)
	}
	if h.Blocked != nil && h.Blocked.LastError != "" {
		out.Line("version %d was refused: %q", h.Blocked.Version, h.Blocked.LastError)
	}
	for _, m := range h.Messages {
		out.Line("message %d is in quarantine of %s: %q", m.ID, m.Consumer, m.Reason)
	}
	for _, a := range acts {
		out.Line("%s by %q at %s: %q; action %s", a.Action, a.Actor, a.CreateTime.Format(time.RFC3339), a.Reason, a.ActionID)
	}
	return err
}

// printPending prints the events that wait longest for the broker.
func printPending(ctx context.Context, s sides, args []string, out *operate.Printer) error {
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > countLimit {
		return app.UsageError(fmt.Errorf("pending: N is %q: want a number from 1 to %d", args[0], countLimit))
	}
	var waiting []sqlcgen.ListWaitingRow
	if err := s.inTx(ctx, "list what waits", func(ctx context.Context, q *sqlcgen.Queries) (err error) {
		waiting, err = q.ListWaiting(ctx, pg.Limit(n), countLimit)
		return err
	}); err != nil {
		return err
	}
	out.Line("AGE\tLANE\tTYPE\tID\tEVENT\tVERSION\tSTATE")
	for _, e := range waiting {
		age, state := time.Since(e.OccurredAt).Round(time.Second).String(), "pending"
		if e.Deferred {
			state = "deferred"
		}
		if e.Repeat != "" {
			age = e.Repeat
		}
		out.Row(e, age, strconv.Itoa(int(e.Lane)), e.AggregateType, e.AggregateID, e.EventType, strconv.FormatInt(e.Version, 10), state)
	}
	return nil
}

// effects says where an event was applied.
func (e event) effects(sought time.Time) string {
	var texts []string
	for _, a := range e.Applied {
		texts = append(texts, a.Consumer+" at "+a.Time.Format(time.RFC3339))
	}
	if e.Message > 0 {
		texts = append(texts, fmt.Sprint("quarantined as message ", e.Message))
	}
	if len(texts) == 0 && e.Time.Before(sought) {
		return "not known since the seek"
	}
	return cmp.Or(strings.Join(texts, ", "), "-")
}

// printAudit prints the entries of the audit that have a text in them.
func printAudit(ctx context.Context, s sides, args []string, out *operate.Printer) error {
	entries, err := s.listAudit(ctx, args[0])
	out.Line("TIME\tACTION\tITEMS\tFILTER\tWHY\tWHO\tACTION_ID")
	for _, e := range entries {
		out.Row(e, e.CreateTime.Format(time.RFC3339), e.Action, strconv.FormatInt(e.Items, 10), string(e.Filter), e.Reason, e.Actor, e.ActionID.String())
	}
	return err
}
