package wal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

var ( // tests make them shorter
	switchTimeout = 30 * time.Second // how long a switch waits for transactions, and for the publisher
	pause         = time.Second      // between two attempts, so that appends go on
)

const (
	// holdTimeout is how long appends wait for the publisher. With the 1.5 s that the lock may take, it is less than lock_timeout in docs/database.md.
	holdTimeout = 2 * time.Second
	poll        = 5 * time.Millisecond // between two looks, while appends wait
	pageChanges = 10_000               // of the log, which one transaction moves, with the rest of the last transaction in it
	// margin is longer than a transaction of a command: what happened so long before a time may be committed after it.
	margin = time.Minute
)

// errAgain means that an attempt has changed nothing, and another may succeed.
var errAgain = errors.New("not yet")

// run switches, unless the mode is right, while no other process does. After an error the mode is as it was, unless the text says another.
func (s *switcher) run(ctx context.Context) error {
	if s.pool.Config().MaxConns < 3 { // one holds the right to switch, one an attempt, and one asks meanwhile
		return errors.New("a switch needs three connections: raise DATABASE_MAX_CONNS")
	}
	return pg.InTx(ctx, s.pool, "wal.run", func(ctx context.Context, tx *pg.Tx) error {
		q := sqlcgen.New(tx)
		tx.Queue(q.LimitLock(ctx))
		if _, err := q.LockSwitch(ctx); err != nil {
			return pg.Wrap(err, "wait for another switch, whose session has the advisory lock in pg_locks")
		}
		return s.runAlone(ctx)
	})
}

func (s *switcher) runAlone(ctx context.Context) error {
	relay, err := s.queries.GetRelay(ctx)
	err = pg.Wrap(err, "read the relay")
	if err != nil || s.Mode != lanes || relay.Mode == wal || relay.WalStatus != "missing" { // else nothing is read from the log
		err = errors.Join(check(ctx, s.queries, s.Slot), err)
	}
	switch {
	case err != nil:
		return err
	case relay.Mode != lanes && s.Mode != lanes && relay.Mode != s.Mode:
		return errors.New("first `server relay lanes`")
	case s.Slot == "":
		s.Slot = relay.Slot
	}
	if err := s.late(within(switchTimeout, pause, func() error { return s.setSwitching(ctx, true) })); err != nil {
		return err
	}
	if err := s.change(ctx, relay); err != nil {
		_ = s.setSwitching(context.WithoutCancel(ctx), false) // else appends stay slower until the next switch
		return err
	}
	err = within(switchTimeout, pause, func() error { return s.setSwitching(ctx, false) })
	return pg.Wrap(err, "the mode is %s, but appends stay slower until the command is repeated", s.Mode)
}

// change switches from the mode of relay, while each append reads the mode.
func (s *switcher) change(ctx context.Context, relay sqlcgen.GetRelayRow) error {
	switch {
	case relay.Mode == external && s.Mode == lanes:
		return s.toLanes(ctx, relay)
	case relay.Mode == lanes && s.Mode != lanes:
		return s.toLog(ctx)
	case relay.Mode == wal && s.Mode == lanes:
		return s.fromWAL(ctx)
	case s.Mode == lanes: // the slot may be the rest of a switch that has died
		return s.dropRead(ctx)
	}
	return nil
}

// toLog makes the slot, and hands new events to the log from a moment at which none is pending. A crash leaves the slot, which keeps log
// until the command is repeated, or the other one drops it. All else is one transaction.
func (s *switcher) toLog(ctx context.Context) error {
	if s.Mode == wal {
		if err := checkReader(ctx, s.pool.Config().ConnConfig, s.queries, s.Slot); err != nil {
			return err
		}
	}
	made, err := s.makeSlot(ctx)
	if err == nil && !made { // an old slot keeps log, which is read before appends are held
		err = s.late(within(switchTimeout, pause, func() error { return s.inUse(ctx, s.queries.AdvanceSlot(ctx, s.Slot, nil)) }))
		err = pg.Wrap(err, "read the log that the slot %s keeps", s.Slot)
	}
	if err == nil {
		err = s.attempt(ctx, func(ctx context.Context, tx *pg.Tx) error {
			if err := within(holdTimeout, poll, func() error { return s.sent(ctx) }); err != nil {
				return err
			}
			tx.Queue(sqlcgen.New(tx).EndReader(ctx))
			// Earlier events were pending, and nobody appends: a reader that begins here gets all later events, and no other.
			return s.queries.AdvanceSlot(ctx, s.Slot, nil)
		})
	}
	if err != nil && made {
		err = errors.Join(err, s.dropSlot(context.WithoutCancel(ctx)))
	}
	return err
}

// makeSlot makes the slot, if it is not there. PostgreSQL waits for every transaction that is writing, also in other databases.
func (s *switcher) makeSlot(ctx context.Context) (made bool, err error) {
	limited, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	for {
		switch err = s.queries.CreateSlot(limited, s.Slot); {
		case err == nil:
			return true, nil
		case codeOf(err) == "42710": // it exists
			return false, nil
		case limited.Err() != nil:
			s.findHolder(ctx, true)
			return false, s.late(errAgain)
		case codeOf(err) != "57014": // canceled by statement_timeout
			return false, pg.Wrap(err, "make the slot %s, as a user with REPLICATION", s.Slot)
		}
	}
}

// sent returns errAgain while new events are pending. In mode external an event of a blocked aggregate would come after newer ones of the log,
// so it ends the switch.
func (s *switcher) sent(ctx context.Context) error {
	backlog, err := pg.NewOutbox(s.pool).Measure(ctx, pageChanges)
	switch {
	case err != nil:
		return err
	case s.Mode == external && backlog.Blocked > 0:
		return fmt.Errorf("%d aggregates are blocked, and the log would get ahead of them: first `server retry` or `server skip` them", backlog.Blocked)
	case !backlog.Oldest.IsZero():
		s.said = fmt.Sprintf("%d events are pending, the oldest for %.0f s: does a publisher run, and is the broker available?", backlog.Pending, backlog.Age)
		return errAgain
	}
	return nil
}

// toLanes makes pending what the stopped reader has not confirmed, then hands new events to the lanes, and drops the slot. After
// a crash the repeated command makes some events pending again: they are sent twice.
func (s *switcher) toLanes(ctx context.Context, relay sqlcgen.GetRelayRow) error {
	isLost := relay.WalStatus == "missing" || relay.WalStatus == "lost"
	switch {
	case isLost && s.Since.IsZero():
		return fmt.Errorf("the slot %s is %s, so nobody knows what its reader has sent: --since %s has all that it has not confirmed, and more",
			relay.Slot, relay.WalStatus, relay.SafeTime.Add(-margin).UTC().Format(time.RFC3339))
	case !isLost && !s.Since.IsZero():
		return errors.New("--since is for a lost slot only: this one has the position of its reader")
	}
	for more, last := !isLost, time.Now(); more; {
		var end string
		err := pg.InTx(ctx, s.pool, "wal.move", func(ctx context.Context, tx *pg.Tx) (err error) {
			q := sqlcgen.New(tx)
			tx.Queue(q.UseMode(ctx, lanes)) // for this transaction: the trigger must let them pass
			moved, gone := s.moved, s.gone
			end, more, err = s.move(ctx, tx, pageChanges)
			tx.Queue(q.UseMode(ctx, external))
			if err == nil && s.unseen {
				s.moved, s.gone, more, err = moved, gone, true, errAgain
			}
			return err
		})
		if err = s.inUse(ctx, err); errors.Is(err, errAgain) { // soon they are seen
			if time.Since(last) > margin+switchTimeout { // the time in its id may be in the future
				return errors.New("an event is in the log, but not in the outbox: it was purged, or its commit waits for a standby; try again")
			}
			time.Sleep(poll)
			continue
		}
		last = time.Now()
		if err == nil && end != "" { // a crash here leaves events that are moved again
			err = s.queries.AdvanceSlot(ctx, s.Slot, &end)
		}
		if err != nil {
			return err
		}
	}
	err := s.attempt(ctx, func(ctx context.Context, tx *pg.Tx) error {
		if isLost {
			return s.place(ctx, tx, nil, s.Since)
		}
		_, _, err := s.move(ctx, tx, math.MaxInt32)
		return err
	})
	if err == nil {
		err = s.dropSlot(ctx)
	}
	return err
}

// move makes pending what is next in the log. It returns the end of that, which is empty if there is nothing, and whether there may be more.
func (s *switcher) move(ctx context.Context, tx *pg.Tx, most int32) (end string, more bool, err error) {
	rows, err := sqlcgen.New(tx).PeekLog(ctx, s.Slot, most)
	if err != nil || len(rows) == 0 {
		return "", false, err
	}
	var ids []uuid.UUID
	for _, row := range rows {
		if id, err := uuid.Parse(row.ID); err == nil { // the others are ends of transactions
			ids = append(ids, id)
		}
	}
	return rows[len(rows)-1].Lsn, len(ids) > pageChanges/4, s.place(ctx, tx, ids, time.Time{})
}

// place makes events pending: some, in their order, or all since a time, in the order of their versions.
func (s *switcher) place(ctx context.Context, tx *pg.Tx, ids []uuid.UUID, since time.Time) error {
	q := sqlcgen.New(tx)
	found, err := q.ListAggregates(ctx, ids, !since.IsZero(), since)
	if err != nil {
		return err
	}
	s.unseen = false
	laneOf := make(map[uuid.UUID]int16, len(found))
	for _, e := range found {
		laneOf[e.ID] = outbox.Lane(envelope.Aggregate{Type: e.AggregateType, ID: e.AggregateID})
		if !since.IsZero() {
			ids = append(ids, e.ID)
		}
	}
	for _, id := range ids { // the log has a commit before other transactions see its rows
		_, seen := laneOf[id]
		s.unseen = s.unseen || !seen && time.Since(time.Unix(id.Time().UnixTime())) < margin
	}
	tx.Queue(q.MoveToLanes(ctx, pg.MapSlice(ids, func(id uuid.UUID) int16 { return laneOf[id] }), ids)) // not those that the outbox no longer has
	s.moved, s.gone = s.moved+int64(len(found)), s.gone+int64(len(ids)-len(found))
	return nil
}

// setSwitching begins or ends the time of a switch, in which appends read the mode. It returns errAgain if a transaction that has written
// pending events is open. A crash leaves appends that read the mode: they are slower.
func (s *switcher) setSwitching(ctx context.Context, isSwitching bool) error {
	return s.limited(ctx, func(ctx context.Context, tx *pg.Tx, q *sqlcgen.Queries) error {
		tx.Queue(q.SetSwitching(ctx, isSwitching))
		return nil
	})
}

// limited runs a step in a transaction that waits for no lock for long. It returns errAgain if another transaction has the lock.
func (s *switcher) limited(ctx context.Context, step func(context.Context, *pg.Tx, *sqlcgen.Queries) error) error {
	err := pg.InTx(ctx, s.pool, "wal.switch", func(ctx context.Context, tx *pg.Tx) error {
		q := sqlcgen.New(tx)
		tx.Queue(q.LimitLock(ctx))
		return step(ctx, tx, q)
	})
	if codeOf(err) != "55P03" { // lock_timeout
		return err
	}
	s.findHolder(ctx, false)
	return fmt.Errorf("%w: %s", errAgain, s.said)
}

// attempt begins the mode, and runs a step, in a transaction that holds appends. While the step returns errAgain, or a
// transaction that has read the mode is open, it tries again.
func (s *switcher) attempt(ctx context.Context, step func(context.Context, *pg.Tx) error) error {
	return s.late(within(switchTimeout, pause, func() error {
		moved, gone := s.moved, s.gone
		err := s.limited(ctx, func(ctx context.Context, tx *pg.Tx, q *sqlcgen.Queries) error {
			e := s.entry
			tx.Queue(q.HoldAppends(ctx))
			if _, err := q.GetRelay(ctx); err != nil { // it sends the lock
				return err
			}
			tx.Queue(q.BeginMode(ctx, s.Mode, s.Slot))
			if err := step(ctx, tx); err != nil {
				return err
			}
			tx.Queue(q.UseMode(ctx, s.Mode))
			tx.Queue(q.AuditSwitch(ctx, sqlcgen.AuditSwitchParams{ActionID: e.ActionID, Actor: e.Name, Via: e.Via, Action: e.Action, Filter: e.Filter, Reason: e.Reason, Items: s.moved}))
			return nil
		})
		if err = s.inUse(ctx, err); errors.Is(err, errAgain) {
			s.moved, s.gone = moved, gone
		}
		return err
	}))
}

// inUse makes errAgain of the error of a slot in use, unless a reader is connected. Then a switch that was killed uses the slot, until its last
// statement ends.
func (s *switcher) inUse(ctx context.Context, err error) error {
	if codeOf(err) != "55006" {
		return err
	}
	if isRead, readErr := s.queries.HasReader(ctx, &s.Slot); readErr != nil || isRead {
		return fmt.Errorf("a reader is connected to the slot %s: stop it first, as nobody can tell it to wait: %w", s.Slot, errors.Join(err, readErr))
	}
	s.findHolder(ctx, true)
	s.said = fmt.Sprintf("another switch uses the slot %s, and %s", s.Slot, s.said)
	return errAgain
}

// findHolder finds the transaction that the switch waits for.
func (s *switcher) findHolder(ctx context.Context, forSlot bool) {
	s.said = "a transaction is open that has no process: see pg_prepared_xacts"
	if holder, err := s.queries.FindHolder(ctx, forSlot); err == nil {
		s.said = "a transaction is open: " + holder
	}
}

// late makes of errAgain the error of a switch that could not end.
func (s *switcher) late(err error) error {
	if !errors.Is(err, errAgain) {
		return err
	}
	return fmt.Errorf("not within %s, so the mode is as it was: %s", switchTimeout, s.said)
}

func (s *switcher) dropSlot(ctx context.Context) error {
	return pg.Wrap(s.queries.DropSlot(ctx, &s.Slot), "the slot %s is left, and keeps log: repeat the command", s.Slot)
}

// codeOf returns the code of an error of PostgreSQL, or "".
func codeOf(err error) string {
	if failure, ok := errors.AsType[*pgconn.PgError](err); ok {
		return failure.Code
	}
	return ""
}
