package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/googleapis/gax-go/v2"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/telemetry/heartbeat"
	"example.com/videocatalog/options/wal/internal/sqlcgen"
)

const (
	// retryInterval is the pause between two attempts to get the slot.
	retryInterval = 250 * time.Millisecond
	// senderTimeout is how long PostgreSQL waits for a reader that is silent, before another can have the slot.
	senderTimeout = 10 * time.Second
	// statusInterval is how often a reader reports its position at least; statusPause is the pause between two reports, if it moves.
	statusInterval = time.Second
	statusPause    = 10 * time.Millisecond
	// checkInterval is how often a reader reads whether it may go on.
	checkInterval = 2 * time.Second
	// recoverPage is how many events of a lost slot are deferred at a time.
	recoverPage = 500
)

// stopTimeout is how long the reader waits at the stop for the last pass of the publisher. Tests make it longer.
var stopTimeout = outbox.StopTimeout + outbox.SettleTimeout

// reader fills the queue of a store from the slot, and confirms what is settled. Each process with a publisher has one. PostgreSQL lets
// one process read a slot, and the others wait for it.
type reader struct {
	*store

	log     *slog.Logger
	wake    func() // of the publisher
	beats   *heartbeat.Loop
	system  pglogrepl.IdentifySystemResult // of the server that was read last
	token   int64                          // of this process as the reader
	decoder *decoder
	known   map[uuid.UUID]bool // events that were deferred or skipped, and come again if they are before the position in system

	conn     *pgconn.PgConn
	heard    time.Time     // when the last message came
	sent     time.Time     // when the last report was sent
	reported pglogrepl.LSN // its position
	isAsked  bool          // the server waits for a report
}

// newReader returns the reader of a process, which is also what its publisher claims from.
func newReader(ctx context.Context, process *app.Process, events outbox.Store) (*reader, error) {
	s := newStore(process.CommandPool, events)
	slot, err := s.queries.GetSlot(ctx)
	if err == nil && slot.Mode == wal {
		err = checkReader(ctx, s.pool.Config().ConnConfig, s.queries, slot.Slot)
	}
	s.mode.Store(slot.Mode)
	r := &reader{store: s, log: process.Log, beats: heartbeat.New("reader of the log", senderTimeout)}
	r.wake = func() { process.Backend().Wake() }
	return r, pg.Wrap(err, "relay of the outbox")
}

// run reads while the mode is wal, until ctx ends. A crash at any point loses nothing: the slot has what is not confirmed.
func (r *reader) run(ctx context.Context) error {
	defer r.beats.Rest()
	var last string
	var logged time.Time
	for {
		r.beats.Beat()
		err := r.attempt(ctx)
		if text := fmt.Sprint(err); err != nil && ctx.Err() == nil && (text != last || time.Since(logged) > time.Minute) {
			last, logged = text, time.Now()
			r.log.WarnContext(ctx, "relay: the log is not read", "err", err)
		}
		if gax.Sleep(ctx, retryInterval) != nil {
			return nil
		}
	}
}

// attempt reads the mode, and reads the slot if no other process does.
func (r *reader) attempt(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, senderTimeout)
	defer cancel()
	slot, err := r.queries.GetSlot(limited)
	if err != nil {
		return pg.Wrap(err, "read the relay")
	}
	if r.mode.Store(slot.Mode); slot.Mode != wal || slot.Reader != 0 {
		return nil
	}
	if slot.WalStatus == "missing" || slot.WalStatus == "lost" {
		return r.remake(limited, slot)
	}
	if r.conn, err = connect(limited, r.pool.Config().ConnConfig); err != nil {
		return err
	}
	defer func() {
		r.queue.forget()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = r.conn.Close(ctx) // the server ends it in any case
	}()
	if err := r.begin(limited, slot); err != nil {
		return err
	}
	return r.stream(ctx)
}

// connect opens a connection for the log. The server gives up a reader that is silent for senderTimeout.
func connect(ctx context.Context, cfg *pgx.ConnConfig) (*pgconn.PgConn, error) {
	cfg = cfg.Copy()
	cfg.RuntimeParams["replication"] = "database"
	cfg.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(senderTimeout.Milliseconds())
	conn, err := pgconn.ConnectConfig(ctx, &cfg.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to read the log, with REPLICATION and without a pooler: %w", err)
	}
	return conn, conn.Conn().SetDeadline(time.Time{}) // the dialer of package db has set one
}

// begin starts the replication, makes this process the reader, and opens the queue. The log begins at the position that this process has
// confirmed: after a crash of the server, the slot may have an older one.
func (r *reader) begin(ctx context.Context, slot sqlcgen.GetSlotRow) error {
	system, err := pglogrepl.IdentifySystem(ctx, r.conn)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	from := r.queue.state().confirmed
	if system.SystemID != r.system.SystemID || system.Timeline != r.system.Timeline || system.XLogPos < from {
		from = 0 // another server, or an earlier state of it: the position of the slot counts
	}
	if err = pglogrepl.StartReplication(ctx, r.conn, `"`+slot.Slot+`"`, from, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", "binary 'true'", "publication_names 'video_catalog_outbox'",
	}}); err != nil {
		return fmt.Errorf("read the slot %s: %w", slot.Slot, err)
	}
	r.system, r.token, r.heard, r.sent, r.reported, r.isAsked = system, 1+rand.Int64N(math.MaxInt64), time.Now(), time.Now(), 0, false
	lost, err := r.queries.TakeOver(ctx, r.token, slot.Token)
	if errors.Is(err, pgx.ErrNoRows) { // another process was the reader meanwhile
		return errFenced
	}
	if err == nil && lost != nil {
		err = r.recover(ctx, *lost)
	}
	if err != nil {
		return pg.Wrap(err, "become the reader")
	}
	lanes := make([]int16, outbox.Lanes)
	for n := range lanes {
		lanes[n] = int16(n)
	}
	blocked, err := r.blocked(ctx, lanes)
	if err != nil {
		return err
	}
	known, err := r.queries.ListKnown(ctx)
	if err != nil {
		return pg.Wrap(err, "list deferred and skipped events")
	}
	r.known = setOf(known)
	r.log.InfoContext(ctx, "relay: reading the log")
	r.queue.open(r.token, from, blocked)
	return nil
}

// remake makes a new slot in place of one that is lost, after it has noted from when on the log has gone. A crash leaves the note, or
// also the slot: the next reader begins with the events since then.
func (r *reader) remake(ctx context.Context, slot sqlcgen.GetSlotRow) error {
	if err := r.queries.NoteLoss(ctx, margin); err != nil {
		return pg.Wrap(err, "note the loss of the slot")
	}
	r.log.ErrorContext(ctx, "relay: the slot is lost, its events come from the table outbox", "slot", slot.Slot, "wal_status", slot.WalStatus)
	err := r.queries.DropLostSlot(ctx, &slot.Slot)
	if err == nil {
		err = r.queries.CreateSlot(ctx, slot.Slot)
	}
	if err != nil && codeOf(err) != "42710" { // another process has made it
		return pg.Wrap(err, "make the slot %s", slot.Slot)
	}
	return nil
}

// recover defers the recorded events since the loss, in the order of their versions. The events of the new slot are behind them. After a
// crash it begins again, and leaves out what is deferred.
func (r *reader) recover(ctx context.Context, since time.Time) error {
	ctx = context.WithoutCancel(ctx) // it may take longer; the first failure ends it
	p := sqlcgen.ListRecordedParams{Since: since, MaxRows: recoverPage}
	for {
		rows, err := r.queries.ListRecorded(ctx, p)
		if err == nil && len(rows) == 0 {
			return r.queries.EndLoss(ctx, r.token)
		}
		if err == nil {
			err = r.setAside(ctx, pg.MapSlice(rows, asideOf), r.token)
		}
		if err == nil {
			err = r.report(true)
		}
		if err != nil {
			return err
		}
		last := rows[len(rows)-1]
		p.AfterType, p.AfterID, p.AfterVersion = last.AggregateType, last.AggregateID, last.Version
		r.beats.Beat()
	}
}

func asideOf(row sqlcgen.VideoCatalogOutbox) aside {
	return aside{Message: envelope.Message{
		ID: row.ID, AggregateType: row.AggregateType, AggregateID: row.AggregateID, Type: row.EventType, Version: row.Version,
		SchemaVersion: row.SchemaVersion, Payload: row.Payload, OccurredAt: row.OccurredAt.UTC(), Traceparent: pg.ValueOf(row.Traceparent),
		Causation: envelope.Causation{CausationID: pg.ValueOf(row.CausationID), CorrelationID: pg.ValueOf(row.CorrelationID)},
	}}
}

// stream reads messages until an error, or until ctx has ended and the publisher has settled what is queued, or at least what it has
// claimed. It reads nothing while the queue is full, or when the stopping publisher claims no more: the next reader gets that.
func (r *reader) stream(ctx context.Context) error {
	var checked, last, end time.Time
	for {
		r.beats.Beat()
		now, q := time.Now(), r.queue.state()
		isStopping := ctx.Err() != nil
		if isStopping && end.IsZero() {
			last, end = now.Add(outbox.StopTimeout/2), now.Add(stopTimeout)
		}
		isLate := isStopping && now.After(last)
		if isStopping && (!q.isBusy || isLate && !q.isClaimed || now.After(end)) {
			return r.report(true)
		}
		if err := r.report(false); err != nil {
			return err
		}
		if now.Sub(checked) > checkInterval {
			if err := r.check(ctx); err != nil {
				return err
			}
			checked = now
		}
		switch {
		case q.fence == 0: // it could not defer events
			return errFenced
		case q.isFull || isLate:
			r.wake()
			r.heard = now // we do not listen
			time.Sleep(statusPause)
		default:
			if err := r.receive(); err != nil {
				return fmt.Errorf("read the log: %w", err)
			}
		}
	}
}

// check returns errFenced if a switch has ended the mode, or another process has the slot.
func (r *reader) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusInterval/5) // a switch may hold the tables, and waits for us
	defer cancel()
	slot, err := r.queries.GetSlot(ctx)
	if err == nil && (slot.Mode != wal || slot.Token != r.token) {
		return errFenced
	}
	return nil // also after an error: the connection of the log decides whether the server is there
}

// report tells the server what is confirmed: if that has moved, at intervals, or at once.
func (r *reader) report(now bool) error {
	confirmed := r.queue.state().confirmed
	since := time.Since(r.sent)
	if !now && !r.isAsked && since < statusInterval && (confirmed <= r.reported || since < statusPause) {
		return nil
	}
	// Both positions: if one is 0, the server or the library takes the other.
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), r.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: confirmed, WALFlushPosition: confirmed, WALApplyPosition: confirmed,
	})
	if err != nil {
		return fmt.Errorf("report the position: %w", err)
	}
	r.sent, r.reported, r.isAsked = time.Now(), confirmed, false
	return nil
}

// receive handles the next message of the log, if one comes soon.
func (r *reader) receive() error {
	if err := r.conn.Conn().SetReadDeadline(time.Now().Add(statusPause)); err != nil {
		return err
	}
	message, err := r.conn.ReceiveMessage(context.Background())
	if pgconn.Timeout(err) {
		if time.Since(r.heard) > senderTimeout+senderTimeout/2 {
			return errors.New("the server is silent")
		}
		return nil
	}
	if err != nil {
		return err
	}
	r.heard = time.Now()
	switch m := message.(type) {
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(m)
	case *pgproto3.CopyData:
		switch m.Data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			k, err := pglogrepl.ParsePrimaryKeepaliveMessage(m.Data[1:])
			if err != nil {
				return err
			}
			r.queue.idle(k.ServerWALEnd)
			r.isAsked = k.ReplyRequested
		case pglogrepl.XLogDataByteID:
			return r.handle(m.Data[1:])
		}
	}
	return nil
}

// handle handles a message of the plugin.
func (r *reader) handle(data []byte) error {
	x, err := pglogrepl.ParseXLogData(data)
	if err != nil {
		return err
	}
	parsed, err := pglogrepl.Parse(x.WALData)
	if err != nil {
		return err
	}
	switch m := parsed.(type) {
	case *pglogrepl.RelationMessage:
		if m.RelationName == "outbox" { // rows come in its form, also from partitions that have another
			r.decoder, err = newDecoder(m)
		}
	case *pglogrepl.BeginMessage:
		if r.queue.begin(); m.FinalLSN > r.system.XLogPos {
			r.known = nil // all that comes now was committed later
		}
	case *pglogrepl.InsertMessage:
		event, err := r.decoder.decode(m.Tuple)
		if err == nil && !r.known[event.ID] {
			r.queue.add(event)
		}
		return err
	case *pglogrepl.CommitMessage:
		r.queue.end(m.TransactionEndLSN)
		r.wake()
	}
	return err
}
