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

// peer is a way to publish events from its own database.
type peer interface {
	// prepare creates its tables.
	prepare(ctx context.Context) error
	// backlog commits events in bulk, in their order, to empty tables.
	backlog(ctx context.Context, w workload) error
	// append adds one event to the transaction of a writer. It does not commit.
	append(ctx context.Context, tx pgx.Tx, w workload, i int) error
	// committed is called after each such transaction.
	committed(w workload, i int)
	// instance returns an instance that sends to a sink. No instance waits while there is work. All other settings are
	// the defaults of the peer. A peer that is faster with larger batches has a second variant, with batches of 1000.
	instance(ctx context.Context, k *sink) (instance, error)
	// left returns the number of events that are not settled.
	left(ctx context.Context) (int, error)
	// tables returns the names of its tables, for their size and TRUNCATE.
	tables() []string
	// db returns the pool of its database.
	db() *pgxpool.Pool
}

// instance is one running copy of a peer. It has its own connections, like a process.
type instance struct {
	// run works until ctx ends, and then stops gracefully.
	run func(ctx context.Context) error
	// close releases what run used.
	close func() error
}

// peerNames are the peers in the order of the tables.
var peerNames = []string{"ours", "naive", "naive-async", "batch", "watermill", "watermill-1000", "oagudo", "oagudo-async", "oagudo-1000"}

func newPeer(name string, base base) (peer, error) {
	switch name {
	case "ours":
		return &ours{base: base}, nil
	case "naive":
		return &loop{base: base}, nil
	case "naive-async":
		base.url += "&synchronous_commit=off" // for connections of its instances; pgx sets unknown parameters in the session
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
	}
	return nil, fmt.Errorf("no peer %q", name)
}

// base has the fields that all peers need.
type base struct {
	url  string
	pool *pgxpool.Pool // for all queries except queries of instances
}

// makePeers creates the database and the tables of each peer.
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

// open opens the pool of an instance.
func (b base) open(ctx context.Context, maxConns int32) (*pgxpool.Pool, error) {
	return db.Open(ctx, b.url, maxConns, nil)
}

// connect opens the pool of an instance and its sender, which release closes.
func (b base) connect(ctx context.Context, maxConns int32, k *sink) (pool *pgxpool.Pool, s *sender, release func() error, err error) {
	if pool, err = b.open(ctx, maxConns); err != nil {
		return nil, nil, nil, err
	}
	if s, err = k.sender(ctx); err != nil {
		pool.Close()
		return nil, nil, nil, err
	}
	return pool, s, func() error { pool.Close(); return s.close() }, nil
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

// insert runs a statement over all events, some thousands per call, with ids as the service makes them. The statement
// may contain eventsSQL, the events as rows of e(id, aggregate, version, n), and payloadSQL, the payload of such a
// row.
func (b base) insert(ctx context.Context, w workload, sql string) error {
	chunk := max(1, min(20_000, 50_000_000/w.size))
	for from := 0; from < w.len(); from += chunk {
		to := min(from+chunk, w.len())
		ids := make([]uuid.UUID, to-from)
		for i := range ids {
			ids[i] = uuid.Must(uuid.NewV7())
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

// backlogOf empties the tables of a peer, fills them, and updates their statistics.
func (m *machine) backlogOf(ctx context.Context, p peer, w workload) error {
	for _, table := range p.tables() {
		if _, err := p.db().Exec(ctx, "TRUNCATE "+table); err != nil {
			return fmt.Errorf("truncate %s: %w", table, err)
		}
	}
	// The backlog writes its pages after the checkpoint, so the turn needs no full-page images of them.
	if err := m.checkpoint(ctx); err != nil {
		return err
	}
	if err := p.backlog(ctx, w); err != nil {
		return err
	}
	return analyze(ctx, p)
}

// analyze updates the statistics of a peer's tables.
func analyze(ctx context.Context, p peer) error {
	for _, table := range p.tables() {
		if _, err := p.db().Exec(ctx, "ANALYZE "+table); err != nil {
			return fmt.Errorf("analyze %s: %w", table, err)
		}
	}
	return nil
}

// running are running instances.
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

// stop stops the instances, and returns all their errors.
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
