package store_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/store"
)

// syncs is a proxy of a database. It counts the messages whose response ends in ReadyForQuery
// (https://www.postgresql.org/docs/current/protocol-flow.html).
type syncs struct {
	url         string
	total, most atomic.Int64 // all of them; the most that waited for the answer together on one connection
}

func newSyncs(t *testing.T) *syncs {
	t.Helper()
	cfg := pgtest.Open(t, pgtest.Direct(t, pgtest.URL(t)), 2).Config().ConnConfig
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	through := url.URL{Scheme: "postgres", User: url.User(cfg.User), Host: listener.Addr().String(), Path: cfg.Database, RawQuery: "sslmode=disable"}
	s := &syncs{url: through.String()}
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).DialContext(t.Context(), network, address)
			if err != nil {
				client.Close()
				continue
			}
			outstanding := new(atomic.Int64)
			go s.pass(server, client, outstanding, true)
			go s.pass(client, server, outstanding, false)
		}
	}()
	return s
}

// pass copies message by message. The first message of a client has no type.
func (s *syncs) pass(to, from net.Conn, outstanding *atomic.Int64, isClient bool) {
	defer to.Close()
	defer from.Close()
	for first := isClient; ; first = false {
		header := make([]byte, 5)
		if first {
			header = header[:4]
		}
		if _, err := io.ReadFull(from, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[len(header)-4:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		switch kind := header[0]; {
		case first, isClient && (kind == 'S' || kind == 'Q'): // the start is followed by ReadyForQuery, too
			s.total.Add(1)
			n := outstanding.Add(1)
			for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
			}
		case !isClient && kind == 'Z': // before the client sees it
			outstanding.Add(-1)
		}
		if _, err := to.Write(slices.Concat(header, body)); err != nil {
			return
		}
	}
}

// Nothing sends a second Sync before the server is ready for it: some poolers, such
// as Supavisor, lose count of them, and the connection hangs.
func TestOneSyncAtATime(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newSyncs(t)
			p := pgtest.Open(t, s.url+"&default_query_exec_mode="+mode, 2)
			videos, events, catalog, inbox := store.NewVideos(p, nil), pg.NewOutbox(p), store.NewCatalog(p), pg.NewInbox(p)
			calls := everyMethod(t, videos, events, catalog, inbox)
			for range 2 { // with statements that are not prepared yet, and then with prepared statements
				for name, call := range calls {
					if err := call(t.Context()); err != nil && kindOf(err) == 0 {
						t.Errorf("%s() = %v", name, err)
					}
				}
			}
			for _, service := range []any{videos, events, catalog, inbox} {
				kind := reflect.TypeOf(service)
				for method := range kind.Methods() {
					if _, ok := calls[kind.Elem().Name()+"."+method.Name]; !ok {
						t.Errorf("%s.%s is not called", kind.Elem().Name(), method.Name)
					}
				}
			}
			if most, total := s.most.Load(), s.total.Load(); most != 1 || total < 50 {
				t.Errorf("Syncs at a time on a connection = %d of %d, want 1", most, total)
			}
		})
	}
}

// everyMethod returns a call of each method of the stores, by its name. A method that refuses its
// arguments, such as a video that does not exist, returns a problem.Error.
func everyMethod(t *testing.T, videos *store.Videos, events *pg.Outbox, catalog *store.Catalog, inbox *pg.Inbox) map[string]func(context.Context) error {
	t.Helper()
	nothing := func(context.Context) error { return nil }
	const consumer = "catalog"
	message := envelope.Quarantined{MessageID: "1", Payload: []byte("x"), Reason: "test"}
	return map[string]func(context.Context) error{
		"Outbox.Observe": nothing, // its callbacks call Measure
		"Videos.CreateVideo": func(ctx context.Context) error {
			_, err := videos.CreateVideo(ctx, newID(t), []byte("fingerprint"), created(t, "Ran"))
			return err
		},
		"Videos.ChangeVideo": func(ctx context.Context) error {
			e := created(t, "Ran")
			if _, err := videos.CreateVideo(ctx, uuid.Nil, nil, e); err != nil {
				return err
			}
			_, err := videos.ChangeVideo(ctx, e.Video.ID, domain.PublishVideo(domain.AnyVersion, stamp(t)))
			return err
		},
		"Videos.Base": nothing, "Videos.Committed": nothing, "Videos.Decide": nothing, // they run in transactions of others
		"Videos.Create": nothing, "Videos.Change": nothing, // CreateVideo and ChangeVideo call them
		"Videos.Lock": func(ctx context.Context) error {
			pool, _ := videos.Base()
			return pg.InTx(ctx, pool, "test", func(ctx context.Context, tx *pg.Tx) error {
				_, err := videos.Lock(ctx, tx, []uuid.UUID{newID(t)}, true)
				return err
			})
		},
		"Videos.FindVideos": func(ctx context.Context) error {
			_, err := videos.FindVideos(ctx, []uuid.UUID{newID(t)})
			return err
		},
		"Videos.CreateVideos": func(ctx context.Context) error {
			ids, fingerprints := requests(t, 2)
			_, _, err := videos.CreateVideos(ctx, ids, fingerprints, several(t, 2))
			return err
		},
		"Videos.GetVideos": func(ctx context.Context) error {
			_, err := videos.GetVideos(ctx, []uuid.UUID{newID(t)})
			return err
		},
		"Videos.GetVideo": func(ctx context.Context) error {
			_, err := videos.GetVideo(ctx, newID(t))
			return err
		},
		"Videos.ListVideos": func(ctx context.Context) error {
			_, _, err := videos.ListVideos(ctx, domain.VideoQuery{Limit: 10})
			return err
		},
		"Outbox.PruneRequests": func(ctx context.Context) error {
			_, err := events.PruneRequests(ctx, time.Hour, 10)
			return err
		},
		"Eraser.Erase": func(ctx context.Context) error {
			e := created(t, "Ran")
			if _, err := videos.CreateVideo(ctx, newID(t), []byte("fingerprint"), e); err != nil {
				return err
			}
			for _, decide := range []domain.VideoDecision{domain.DeleteVideo(false, 1, stamp(t)), domain.PurgeVideo(2, stamp(t))} {
				if _, err := videos.ChangeVideo(ctx, e.Video.ID, decide); err != nil {
					return err
				}
			}
			pool, _ := videos.Base()
			eraser := store.NewEraser(pool)
			for more := true; more; {
				var err error
				if more, err = eraser.Erase(ctx, 100); err != nil {
					return err
				}
			}
			return nil
		},
		"Outbox.ClaimEvents": func(ctx context.Context) error {
			_, err := events.ClaimEvents(ctx, outbox.Limits{Lanes: 1, Events: 10, Bytes: 1 << 20, Lease: time.Minute})
			return err
		},
		"Outbox.SettleClaim": func(ctx context.Context) error {
			claim, err := events.ClaimEvents(ctx, outbox.Limits{Lanes: 1, Events: 10, Bytes: 1 << 20, Lease: time.Minute})
			if err != nil || len(claim.Events) == 0 {
				return err
			}
			first := claim.Events[0]
			_, err = events.SettleClaim(ctx, outbox.Settlement{
				Lease: claim.Lease, Defer: []int64{first.Seq},
				Refused: []outbox.Refusal{{Aggregate: first.Aggregate(), Seq: first.Seq, Attempts: 1, Error: "refused"}},
			})
			return err
		},
		"Outbox.Maintain": func(ctx context.Context) error {
			return events.Maintain(ctx, 1, 24*time.Hour)
		},
		"Outbox.RaiseFloors": events.RaiseFloors,
		"Outbox.Measure": func(ctx context.Context) error {
			_, err := events.Measure(ctx, 10)
			return err
		},
		"Outbox.GroupBlocked": func(ctx context.Context) error {
			_, err := events.GroupBlocked(ctx, 10)
			return err
		},
		"Outbox.ListBlocked": func(ctx context.Context) error {
			_, _, err := events.ListBlocked(ctx, pg.Filter{}, 10)
			return err
		},
		"Outbox.RetryBlocked": func(ctx context.Context) error {
			_, err := events.RetryBlocked(ctx, []pg.Blocked{{}}, pg.Entry{Filter: []byte("{}")})
			return err
		},
		"Outbox.SkipBlocked": func(ctx context.Context) error {
			_, err := events.SkipBlocked(ctx, []pg.Blocked{{}}, pg.Entry{Filter: []byte("{}")})
			return err
		},
		"Outbox.PruneAudit": func(ctx context.Context) error {
			_, err := events.PruneAudit(ctx, time.Hour, 10)
			return err
		},
		"Inbox.PruneAudit": func(ctx context.Context) error {
			_, err := inbox.PruneAudit(ctx, time.Hour, 10)
			return err
		},
		"Inbox.Observe":   nothing, // its callback reads few rows
		"Catalog.Observe": nothing, // its callback counts
		"Catalog.PruneTombstones": func(ctx context.Context) error {
			_, err := catalog.PruneTombstones(ctx, time.Hour, 10)
			return err
		},
		"Catalog.Changed": nothing,
		"Catalog.Project": func(ctx context.Context) error {
			_, err := catalog.Project(ctx, consumer, []domain.VideoEvent{*created(t, "Ran"), *created(t, "Kagemusha")})
			return err
		},
		"Catalog.GetEntry": func(ctx context.Context) error {
			_, err := catalog.GetEntry(ctx, newID(t))
			return err
		},
		"Catalog.ListEntries": func(ctx context.Context) error {
			_, _, err := catalog.ListEntries(ctx, domain.EntryQuery{Limit: 10})
			return err
		},
		"Catalog.SearchEntries": func(ctx context.Context) error {
			_, _, err := catalog.SearchEntries(ctx, domain.SearchQuery{Words: "ran", Limit: 10})
			return err
		},
		"Catalog.ListChanges": func(ctx context.Context) error {
			_, err := catalog.ListChanges(ctx, domain.Position{}, 10)
			return err
		},
		"Inbox.PruneQuarantine": func(ctx context.Context) error {
			_, err := inbox.PruneQuarantine(ctx, time.Hour, 10)
			return err
		},
		"Inbox.LastApplied": func(ctx context.Context) error {
			_, err := inbox.LastApplied(ctx, consumer)
			return err
		},
		"Inbox.PruneInbox": func(ctx context.Context) error {
			_, err := inbox.PruneInbox(ctx, consumer, time.Hour, 10)
			return err
		},
		"Inbox.Quarantine": func(ctx context.Context) error { return inbox.Quarantine(ctx, consumer, message) },
		"Inbox.GroupQuarantine": func(ctx context.Context) error {
			_, err := inbox.GroupQuarantine(ctx, 10)
			return err
		},
		"Inbox.QuarantinedPayload": func(ctx context.Context) error {
			_, err := inbox.QuarantinedPayload(ctx, 1)
			return err
		},
		"Inbox.ListQuarantine": func(ctx context.Context) error {
			_, _, err := inbox.ListQuarantine(ctx, pg.Filter{}, 10)
			return err
		},
		"Inbox.DeleteQuarantine": func(ctx context.Context) error {
			_, err := inbox.DeleteQuarantine(ctx, []int64{1}, pg.Entry{Filter: []byte("{}")})
			return err
		},
	}
}
