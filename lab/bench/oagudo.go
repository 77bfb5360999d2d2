package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	oagudooutbox "github.com/oagudo/outbox"
)

// oagudo is github.com/oagudo/outbox. Its reader takes no locks. It publishes one message at a time, in the order of
// created_at, and each instance publishes all of them.
type oagudo struct {
	base
	batch int // messages per read and per delete; 0: the defaults, 100 and 20
}

func (p *oagudo) prepare(ctx context.Context) error {
	return p.exec(ctx, `
		CREATE TABLE outbox (id uuid PRIMARY KEY, created_at timestamptz NOT NULL, scheduled_at timestamptz NOT NULL,
			metadata bytea, payload bytea NOT NULL, times_attempted int NOT NULL);
		CREATE INDEX idx_outbox_created_at ON outbox (created_at);
		CREATE INDEX idx_outbox_scheduled_at ON outbox (scheduled_at)`)
}

func (p *oagudo) tables() []string { return []string{"outbox"} }

func (p *oagudo) backlog(ctx context.Context, w workload) error {
	return p.insert(ctx, w, `
		INSERT INTO outbox (id, created_at, scheduled_at, payload, times_attempted)
		SELECT e.id, clock_timestamp(), now(), `+payloadSQL+`, 0 FROM `+eventsSQL+` ORDER BY e.n`)
}

// append does the same as its Writer, in a transaction of pgx.
func (p *oagudo) append(ctx context.Context, tx pgx.Tx, w workload, i int) error {
	id := uuid.Must(uuid.NewV7())
	_, err := tx.Exec(ctx, "INSERT INTO outbox (id, created_at, scheduled_at, payload, times_attempted) VALUES ($1, clock_timestamp(), clock_timestamp(), $2, 0)",
		id, w.payload(i))
	return err
}

func (p *oagudo) committed(workload, int) {}

func (p *oagudo) left(ctx context.Context) (int, error) {
	return p.count(ctx, "SELECT count(*) FROM outbox")
}

func (p *oagudo) instance(ctx context.Context, k *sink) (instance, error) {
	db, err := sql.Open("pgx", p.url)
	if err != nil {
		return instance{}, err
	}
	s, err := k.sender(ctx)
	if err != nil {
		return instance{}, errors.Join(err, db.Close())
	}
	reader := oagudooutbox.NewReader(oagudooutbox.NewDBContext(db, oagudooutbox.SQLDialectPostgres), oagudoSink{s},
		oagudooutbox.WithInterval(pollPause), oagudooutbox.WithReadBatchSize(p.batch), oagudooutbox.WithDeleteBatchSize(p.batch)) // 0 means the default
	return instance{
		run: func(ctx context.Context) error {
			reader.Start()
			go func() {
				for range reader.DiscardedMessages() { // nothing is discarded, but the channel must be read
				}
			}()
			var errs []error
			failed := make(chan struct{})
			go func() {
				defer close(failed)
				for err := range reader.Errors() {
					if !errors.Is(err, context.Canceled) { // Stop cancels the read
						errs = append(errs, err)
					}
				}
			}()
			<-ctx.Done()
			err := reader.Stop(context.WithoutCancel(ctx))
			<-failed
			return errors.Join(append(errs, err)...)
		},
		close: func() error { return errors.Join(s.close(), db.Close()) },
	}, nil
}

type oagudoSink struct{ sender *sender }

func (k oagudoSink) Publish(ctx context.Context, m *oagudooutbox.Message) error {
	return k.sender.send(ctx, m.Payload)
}
