package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"example.com/videocatalog/db"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// peer is a way to get events out of a database of its own.
type peer interface {
	// prepare makes its tables.
	prepare(ctx context.Context) error
	// backlog commits events in bulk, in their order, into tables that are empty.
	backlog(ctx context.Context, w workload) error
	// append commits nothing: it adds one event to the transaction of a writer.
	append(ctx context.Context, tx pgx.Tx, w workload, i int) error
	// committed is called after each such transaction.
	committed(w workload, i int)
	// instance makes one instance that sends to a sink. None waits where it could work; otherwise the settings are each
	// peer's defaults, and where larger batches make it faster it is there a second time with batches of 1000.
	instance(ctx context.Context, k *sink) (instance, error)
	// left is how many events are not settled yet.
	left(ctx context.Context) (int, error)
	// tables are its tables, for size and TRUNCATE.
	tables() []string
	// db is where they are.
	db() *pgxpool.Pool
}

// instance is one running copy of a peer, with connections of its own, as a process would have.
type instance struct {
	// run works until ctx ends, and then stops in good order.
	run func(ctx context.Context) error
	// close releases what run used.
	close func() error
}

// peerNames in the order of the tables.
var peerNames = []string{"ours", "naive", "naive-async", "batch", "watermill", "watermill-1000", "oagudo", "oagudo-async", "oagudo-1000", "river"}

func newPeer(name string, base base) (peer, error) {
	switch name {
	case "ours":
		return &ours{base: base}, nil
	case "naive":
		return &loop{base: base}, nil
	case "naive-async":
		base.url += "&synchronous_commit=off" // its instances' connections; pgx sets what it does not know in the session
		return &loop{base: base}, nil
	case "batch":
		return &loop{base: base, batch: true}, nil
	case "watermill":
		return &wmill{base: base}, nil
	case "watermill-1000":
		return &wmill{base: base, batch: 1000}, nil
	case "oagudo":
		return &oagudo{base: base}, nil
	case "oagudo-async":
		base.url += "&synchronous_commit=off"
		return &oagudo{base: base}, nil
	case "oagudo-1000":
		return &oagudo{base: base, batch: 1000}, nil
	case "river":
		return &riverPeer{base: base}, nil
	}
	return nil, fmt.Errorf("no peer %q", name)
}

// base is what all peers have.
type base struct {
	url  string
	pool *pgxpool.Pool // for everything but the instances
}

// makePeers gives each peer its database and its tables.
func makePeers(ctx context.Context, m *machine) (map[string]peer, error) {
	peers := map[string]peer{}
	for _, name := range peerNames {
		url, err := m.database(ctx)
		if err != nil {
			return nil, err
		}
		pool, err := db.Open(ctx, url, 10, nil)
		if err != nil {
			return nil, err
		}
		if peers[name], err = newPeer(name, base{url: url, pool: pool}); err != nil {
			return nil, err
		}
		if err := peers[name].prepare(ctx); err != nil {
			return nil, fmt.Errorf("prepare %s: %w", name, err)
		}
	}
	return peers, nil
}

func (b base) db() *pgxpool.Pool { return b.pool }

// open makes the pool of an instance.
func (b base) open(ctx context.Context, maxConns int32) (*pgxpool.Pool, error) {
	return db.Open(ctx, b.url, maxConns, nil)
}

func (b base) exec(ctx context.Context, sql string) error {
	if _, err := b.pool.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%.60s: %w", sql, err)
	}
	return nil
}

func (b base) count(ctx context.Context, sql string) (n int, err error) {
	if err := b.pool.QueryRow(ctx, sql).Scan(&n); err != nil {
		return 0, fmt.Errorf("%.60s: %w", sql, err)
	}
	return n, nil
}

// insert runs a statement over all events, some thousands at a time, each with an id as a service makes them. It may
// use the events as eventsSQL, e(id, aggregate, version, n), in their order, and the payload of e as payloadSQL.
func (b base) insert(ctx context.Context, w workload, sql string) error {
	chunk := max(1, min(20_000, 50_000_000/w.size))
	for from := 0; from < w.len(); from += chunk {
		to := min(from+chunk, w.len())
		ids := make([]uuid.UUID, to-from)
		for i := range ids {
			var err error
			if ids[i], err = uuid.NewV7(); err != nil {
				return fmt.Errorf("make id: %w", err)
			}
		}
		if _, err := b.pool.Exec(ctx, sql, ids, w.aggregates[from:to], w.versions[from:to], filler, w.size-headerSize); err != nil {
			return fmt.Errorf("insert backlog: %w", err)
		}
	}
	return nil
}

const (
	eventsSQL  = `unnest($1::uuid[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS e (id, aggregate, version, n)`
	payloadSQL = `int8send(e.aggregate) || int8send(e.version) || substr($4::bytea, 1 + (e.n % 4096)::int, $5::int)`
)

// backlogOf empties the tables of a peer and fills them, and has the planner know of it.
func (m *machine) backlogOf(ctx context.Context, p peer, w workload) error {
	for _, table := range p.tables() {
		if _, err := p.db().Exec(ctx, "TRUNCATE "+table); err != nil {
			return fmt.Errorf("truncate %s: %w", table, err)
		}
	}
	// What the backlog touches after the checkpoint needs no full-page image in the turn.
	if err := m.checkpoint(ctx); err != nil {
		return err
	}
	if err := p.backlog(ctx, w); err != nil {
		return err
	}
	return analyze(ctx, p)
}

// analyze has the planner know what is in the tables of a peer.
func analyze(ctx context.Context, p peer) error {
	for _, table := range p.tables() {
		if _, err := p.db().Exec(ctx, "ANALYZE "+table); err != nil {
			return fmt.Errorf("analyze %s: %w", table, err)
		}
	}
	return nil
}

// running are instances at work.
type running struct {
	cancel    context.CancelFunc
	instances []instance
	wg        sync.WaitGroup
	mu        sync.Mutex
	errs      []error // guarded by mu
}

// start starts instances of a peer.
func start(ctx context.Context, p peer, k *sink, instances int) (*running, error) {
	r := &running{}
	for range instances {
		i, err := p.instance(ctx, k)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.instances = append(r.instances, i)
	}
	ctx, r.cancel = context.WithCancel(ctx)
	for _, i := range r.instances {
		r.wg.Go(func() {
			if err := i.run(ctx); err != nil && ctx.Err() == nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.errs = append(r.errs, err)
			}
		})
	}
	return r, nil
}

// stop waits until the instances have stopped.
func (r *running) stop() error {
	r.cancel()
	r.wg.Wait()
	return errors.Join(append(r.errs, r.close())...)
}

func (r *running) close() error {
	var errs []error
	for _, i := range r.instances {
		errs = append(errs, i.close())
	}
	return errors.Join(errs...)
}

var discard = slog.New(slog.DiscardHandler)
