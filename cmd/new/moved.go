package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// move is a change of the names of the template that the code of a service may use.
type move struct {
	dir   string // only in this folder; empty: anywhere
	names string // by spaces
	now   string // %s is the end of the name, with a capital
}

// moves are the moves since the oldest version that can be upgraded. Remove a line when that version has the new name.
var moves = []move{
	{"internal/store", "InTx Wrap WrapEvents Inbox Outbox NewInbox NewOutbox Escape Unescape Sampled UseOutboxSettings", "pg.%s"},
	{"internal/store", "appendEvent commandSide newCommandSide checkNext notFound optional notNil valueOf timeOf limit mapSlice endOfTime", "pg.%s"},
	{"internal/store", "inTx", "pg.InTx, whose function makes the queries: sqlcgen.New(tx)"},
	{"internal/store", "Tx", "*pg.Tx"},
	{"internal/store", "execute", "pgtest.%s"},
	{"internal/store", "Queue", "tx.Queue"},
	{"internal/store", "Over", "pg.Autocommit"},
	{"internal/store", "pageOver", "pg.NewPage"},
	{"internal/store", "projectRows", "pg.Project, with a pg.Projection in place of three functions"},
	{"internal/store", "projected", "consumer.Row"},
	{"", "store.InTx store.Wrap store.WrapEvents store.Inbox store.Outbox store.NewInbox store.NewOutbox store.Escape store.Unescape store.Sampled store.UseOutboxSettings", "pg.%s"},
	{"", "store.Tx", "*pg.Tx"},
	{"", "store.Queue", "tx.Queue"},
	{"", "store.Over", "pg.Autocommit"},
	{"", "storetest.Main storetest.Pool storetest.URL storetest.Direct storetest.Errors storetest.Options storetest.Append storetest.TryAppend storetest.Receive storetest.DB", "pgtest.%s"},
	{"", "admin.Actor admin.Filter admin.Group admin.Blocked admin.Quarantined admin.Entry admin.NewEntry", "pg.%s"},
	{"", "admin.Operation admin.ParseOperation admin.Printer admin.NewPrinter admin.ErrPartly admin.OperatorName", "operate.%s"},
	{"", "domain.IsSnapshot", "envelope.%s"},
	{"", "server.SideCommands server.SideQueries port.Service port.Config port.Caller port.Draining port.ErrDraining", "transport.%s"},
	{"", "app.Part", "app.Option, and the list of options is in cmd/server/options.go in place of parts.go"},
	{"", "app.Service", "app.Process"},
	{"", "app.Command", "app.Subcommand"},
	{"", "app.Config", "app.Limits"},
	{"", "b.Commands", "b.CommandPool"},
	{"", "b.Queries", "b.QueryPool"},
	{"", "b.Port", "b.Transport"},
	{"cmd/server", "Parts", "Options"},
	{"cmd/server", "Maintain", "CommandSteps, whose first parameter is the pool, or QuerySteps in a subscription"},
	{"", "consumer.Projector", "consumer.Receiver"},
	{"", "consumer.Subscription", "consumer.Input"},
	{"", "envelope.Cause domain.Cause", "Causation, as the fields of that type"},
	{"", "aip.IDs", "aip.Each with aip.ID"},
	{"", "aip.Time aip.Duration", "aip.IfSet with the conversion"},
	{"", "domain.IDText domain.IDTexts", "id.String(), and nothing for uuid.Nil"},
	{"", "problem.Late", "problem.Kind(codes.DeadlineExceeded)"},
}

// pattern matches the names.
func (m move) pattern() *regexp.Regexp {
	names := strings.ReplaceAll(regexp.QuoteMeta(m.names), " ", "|")
	return regexp.MustCompile(`(?:^|[^\w."])(` + names + `)\b`)
}

// to returns what a name is now.
func (m move) to(name string) string {
	end := name[strings.LastIndexByte(name, '.')+1:]
	return strings.ReplaceAll(m.now, "%s", strings.ToUpper(end[:1])+end[1:])
}

// reportMoves prints where the code of the service, after the merge of next, has names that have moved. It
// reads only the files that differ from next.
func (s *service) reportMoves(ctx context.Context, next string, stdout io.Writer) error {
	list, err := output(ctx, s.root, "git", "diff", "--name-only", "--diff-filter=d", "-z", next, "--", "*.go")
	if err != nil {
		return err
	}
	var found []string
	for name := range strings.SplitSeq(list, "\x00") {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		found = append(found, movesIn(name, string(text))...)
	}
	if len(found) == 0 {
		return nil
	}
	_, err = fmt.Fprintf(stdout, "\nNames that your code uses have moved:\n\n  %s\n", strings.Join(found, "\n  "))
	return err
}

// movesIn returns the places in a file that have a name that has moved, and its new name.
func movesIn(name, text string) (found []string) {
	for number, line := range slices.Collect(strings.Lines(text)) {
		code, _, _ := strings.Cut(line, "//")
		for _, m := range moves {
			if m.dir != "" && m.dir != path.Dir(name) {
				continue
			}
			for _, match := range m.pattern().FindAllStringSubmatch(code, -1) {
				found = append(found, fmt.Sprintf("%s:%d: %s is %s", name, number+1, match[1], m.to(match[1])))
			}
		}
	}
	return found
}
