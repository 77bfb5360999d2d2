package wal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

// checkReader returns what keeps this process from reading the log itself.
func checkReader(ctx context.Context, cfg *pgx.ConnConfig, queries *sqlcgen.Queries, slot string) error {
	if err := errors.Join(errorOf(queries.ListReaderMistakes(ctx, &slot)), check(ctx, queries, slot)); err != nil {
		return err
	}
	conn, err := connect(ctx, cfg)
	if err != nil {
		if strings.Contains(err.Error(), "startup parameter") {
			return errors.New("DATABASE_URL must not lead through a pooler: the log needs a direct connection")
		}
		return err
	}
	return conn.Close(ctx)
}

// fromWAL hands new events to the lanes, from a moment at which all that is in the log is settled. Then it ends the reader and drops the slot.
// A crash leaves the slot: the repeated command drops it.
func (s *switcher) fromWAL(ctx context.Context) error {
	err := s.attempt(ctx, func(ctx context.Context, tx *pg.Tx) error {
		until, err := s.queries.GetEnd(ctx) // nobody appends, so the log gets no more events
		if err == nil {
			err = within(holdTimeout, poll, func() error { return s.confirmed(ctx, until) })
		}
		tx.Queue(sqlcgen.New(tx).EndReader(ctx)) // what it reads from now on is pending, too
		return err
	})
	if err != nil {
		return err
	}
	return s.dropRead(ctx)
}

// confirmed returns errAgain while the reader has not confirmed the log up to a position.
func (s *switcher) confirmed(ctx context.Context, until string) error {
	isConfirmed, err := s.queries.IsConfirmed(ctx, until, &s.Slot)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !isConfirmed {
		s.said = fmt.Sprintf("the slot %s is not confirmed up to %s: does a publisher run, and is the broker available?", s.Slot, until)
		return errAgain
	}
	return err
}

// dropRead drops the slot, and first ends its reader, who finds that the mode is over.
func (s *switcher) dropRead(ctx context.Context) error {
	return within(outbox.StopTimeout+outbox.SettleTimeout, poll, func() error {
		err := errors.Join(s.queries.StopReader(ctx, &s.Slot), s.dropSlot(ctx))
		if codeOf(err) == "55006" { // it is in use
			err = fmt.Errorf("%w: %w", errAgain, err)
		}
		return err
	})
}

// within calls do until it does not return errAgain, or the time is over.
func within(limit, between time.Duration, do func() error) error {
	for end := time.Now().Add(limit); ; time.Sleep(between) {
		if err := do(); !errors.Is(err, errAgain) || time.Now().After(end) {
			return err
		}
	}
}
