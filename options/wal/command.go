package wal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/operate"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// action is the action of a switch, as the table audit names it.
const action = "outbox.relay"

// request says what a switch is to do. The audit has it.
type request struct {
	Mode  string    `json:"mode"`
	Slot  string    `json:"slot,omitempty"`
	Since time.Time `json:"since,omitzero"` // of what a lost slot had
}

// run shows the relay, or switches it. Each step of a switch can be repeated after a crash, by the same command.
func run(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	var to request
	o, err := operate.ParseOperation(args, func(flags *flag.FlagSet) {
		flags.StringVar(&to.Slot, "slot", "", "")
		flags.TextVar(&to.Since, "since", time.Time{}, "")
	})
	switch {
	case err != nil:
	case len(o.Args) != 1 || !slices.Contains([]string{"status", lanes, external}, o.Args[0]):
		err = errors.New("want status, lanes or external")
	case to.Slot != "" && o.Args[0] != external:
		err = errors.New("--slot is for external only")
	case !to.Since.IsZero() && o.Args[0] != lanes:
		err = errors.New("--since is for lanes only")
	}
	if err != nil {
		return app.UsageError(fmt.Errorf("relay: %w: try `server relay --help`", err))
	}
	var entry pg.Entry
	if to.Mode = o.Args[0]; to.Mode != "status" {
		if entry, err = o.Entry(action, to); err != nil {
			return err
		}
	}
	if err := process.OpenCommandSide(ctx); err != nil {
		return err
	}
	s := &switcher{request: to, pool: process.CommandPool, queries: sqlcgen.New(pg.Autocommit(process.CommandPool)), entry: entry}
	if entry.Action != "" {
		if err := s.run(ctx); err != nil {
			return fmt.Errorf("relay %s: %w", to.Mode, err)
		}
	}
	return s.status(ctx, operate.NewPrinter(stdout, o.JSON))
}

// switcher is a switch, or only shows the relay.
type switcher struct {
	request

	pool    *pgxpool.Pool
	queries *sqlcgen.Queries
	entry   pg.Entry // its Action is empty if nothing is to be changed
	moved   int64    // events that went from the log to the lanes
	gone    int64    // events in the log that the outbox no longer has
	said    string   // what keeps the switch waiting
}

// status prints the mode and the slots.
func (s *switcher) status(ctx context.Context, out *operate.Printer) error {
	relay, err := s.queries.GetRelay(ctx)
	if err != nil {
		return pg.Wrap(err, "read the relay")
	}
	slots, err := s.queries.ListSlots(ctx)
	if err != nil {
		return pg.Wrap(err, "list the slots")
	}
	if s.moved+s.gone > 0 {
		out.Row(map[string]int64{"moved": s.moved, "gone": s.gone}, "moved to the lanes", fmt.Sprintf("%d events; %d more are in no outbox any longer", s.moved, s.gone))
	}
	text := "the publisher sends all events"
	if relay.Mode != lanes {
		text = fmt.Sprintf("since %s new events are for the reader of slot %s (%s), which has confirmed nothing for %s",
			relay.Since.UTC().Format(time.RFC3339), relay.Slot, relay.WalStatus, time.Duration(relay.Age*float64(time.Second)).Round(time.Second))
	}
	out.Row(relay, "mode "+relay.Mode, text)
	for _, slot := range slots {
		state := "no reader"
		if slot.Active {
			state = "read"
		}
		out.Row(slot, "slot "+slot.Name, fmt.Sprintf("%s, %s, keeps %.1f MiB of the log", state, slot.WalStatus, float64(slot.Kept)/(1<<20)))
	}
	return out.End()
}
