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

// request says what a switch is to do. The audit has it.
type request struct {
	Mode  string    `json:"mode"`
	Slot  string    `json:"slot,omitempty"`
	Since time.Time `json:"since,omitzero"` // of what a lost slot had
}

// switcher is a switch that runs.
type switcher struct {
	request

	pool        *pgxpool.Pool
	queries     *sqlcgen.Queries
	entry       pg.Entry
	moved, gone int64  // events of the log that became pending, and those that the outbox no longer has
	unseen      bool   // a new event of the log is not in the outbox: not yet, unless it was purged
	said        string // what keeps the switch waiting
}

// run shows the relay, or switches it. Each step of a switch can be repeated after a crash, by the same command.
func run(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	var s switcher
	o, err := operate.ParseOperation(args, func(flags *flag.FlagSet) {
		flags.StringVar(&s.Slot, "slot", "", "")
		flags.TextVar(&s.Since, "since", time.Time{}, "")
	})
	if err == nil && (len(o.Args) != 1 || !slices.Contains([]string{"status", lanes, external, wal}, o.Args[0])) {
		err = errors.New("want status, lanes, external or wal")
	} else if err == nil && (s.Slot != "" && o.Args[0] != external && o.Args[0] != wal || !s.Since.IsZero() && o.Args[0] != lanes) {
		err = errors.New("--slot is for external and wal only, and --since for lanes only")
	}
	if err != nil {
		return app.UsageError(fmt.Errorf("relay: %w: try `server relay --help`", err))
	}
	if s.Mode = o.Args[0]; s.Mode != "status" {
		if s.entry, err = o.Entry("outbox.relay", s.request); err != nil {
			return err
		}
	}
	if err := process.OpenCommandSide(ctx); err != nil {
		return err
	}
	s.pool, s.queries = process.CommandPool, sqlcgen.New(pg.Autocommit(process.CommandPool))
	if s.entry.Action != "" {
		if err := s.run(ctx); err != nil {
			return fmt.Errorf("relay %s: %w", s.Mode, err)
		}
	}
	return pg.Wrap(s.status(ctx, operate.NewPrinter(stdout, o.JSON)), "show the relay")
}

// status prints the mode, the slots, and what a switch has moved.
func (s *switcher) status(ctx context.Context, out *operate.Printer) error {
	relay, err := s.queries.GetRelay(ctx)
	if err != nil {
		return err
	}
	slots, err := s.queries.ListSlots(ctx)
	if err != nil {
		return err
	}
	text := "the publisher sends all events"
	switch {
	case relay.Mode != lanes:
		text = fmt.Sprintf("since %s new events are for the reader of slot %s (%s), which is %s behind",
			relay.Since.UTC().Format(time.RFC3339), relay.Slot, relay.WalStatus, time.Duration(relay.Age*float64(time.Second)).Round(time.Second))
	case s.moved+s.gone > 0:
		text += fmt.Sprintf("; %d came from the log, and %d more are in no outbox any longer", s.moved, s.gone)
	}
	out.Row(relay, "mode "+relay.Mode, text)
	for _, slot := range slots {
		state := map[bool]string{true: "read", false: "no reader"}[slot.Active]
		out.Row(slot, "slot "+slot.Name, fmt.Sprintf("%s, %s, keeps %.1f MiB of the log", state, slot.WalStatus, float64(slot.Kept)/(1<<20)))
	}
	return out.End()
}
