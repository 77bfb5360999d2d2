package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// In the environment of a process: this test binary is a member of the group at these brokers, over that database.
const (
	isMember   = "KAFKA_TEST_BROKERS"
	ofDatabase = "KAFKA_TEST_DATABASE"
)

// runMember applies letters until SIGTERM.
func runMember() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := func() error {
		pool, err := pgxpool.New(ctx, os.Getenv(ofDatabase)+"&pool_max_conns=2")
		if err != nil {
			return err
		}
		defer pool.Close()
		options, err := (&Settings{Brokers: strings.Split(os.Getenv(isMember), ","), SASL: saslNone}).Options(slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		handlers := consumer.Handlers{"letter": consumer.Handle(func(m envelope.Message) (envelope.Message, error) { return m, nil }, apply(pool))}
		from := consumer.Input{Source: NewSource(append(append(options, quick()...), kgo.SessionTimeout(300*time.Millisecond)), topic, group, 1), Consumer: "reader", Handlers: handlers}
		receiver, err := consumer.New(consumer.Config{Workers: 2, BatchSize: 20}, from, pg.NewInbox(pool), slog.New(slog.NewTextHandler(os.Stderr, nil)), noop.Meter{})
		if err != nil {
			return err
		}
		return receiver.Run(ctx)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// While a hundred members are killed, frozen until they have lost their session, or replaced, leaders move and
// connections break, every event takes effect once, in order.
func TestStormOfMembers(t *testing.T) {
	t.Parallel()
	c, url := newCluster(t, 6), pgtest.URL(t)
	pool := pgtest.Open(t, url, 4)
	pgtest.Execute(t, pool, effects)
	var logs lines
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%+v\n%.3000s", c.GroupInfo(group), logs.text.String())
		}
	})
	start := func() *exec.Cmd {
		member := exec.Command(os.Args[0])
		member.Env = append(os.Environ(), isMember+"="+strings.Join(c.ListenAddrs(), ","), ofDatabase+"="+url)
		member.Stderr = &logs
		must(t, member.Start())
		return member
	}
	applied := func(which string) (n int) {
		_ = pool.QueryRow(t.Context(), "SELECT count(*) FROM effects "+which).Scan(&n)
		return n
	}
	const keys, members, faults = 50, 3, 100
	var published atomic.Int64 // versions of each letter
	sink, running := c.sink(t), sync.WaitGroup{}
	publishing, stop := context.WithCancel(t.Context())
	running.Go(func() {
		for ; publishing.Err() == nil; published.Add(1) {
			for int(published.Load())*keys > applied("WHERE new")+20*keys && publishing.Err() == nil { // the members are behind
				time.Sleep(5 * time.Millisecond)
			}
			left := make([]envelope.Message, keys)
			for key := range left {
				left[key] = letter(fmt.Sprint("l", key), int(published.Load())+1, 1)
			}
			for len(left) > 0 && t.Context().Err() == nil {
				var again []envelope.Message
				for i, err := range pass(t, sink, left) {
					if err != nil {
						again = append(again, left[i])
					}
				}
				left = again
			}
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	var all [members]*exec.Cmd
	for i := range all {
		all[i] = start()
		t.Cleanup(func() { _ = all[i].Process.Kill() })
	}
	// The group of kfake keeps a member for ever that dies between its join and its sync, until another member joins.
	goOn := func(what string, holds func() bool) {
		joined := time.Now()
		eventually(t, what, func() bool {
			if i := rand.IntN(members); time.Since(joined) > 3*time.Second {
				_ = all[i].Process.Kill() // it may be frozen
				_ = all[i].Wait()
				all[i], joined = start(), time.Now()
			}
			return holds()
		})
	}
	for fault := range faults {
		i := rand.IntN(members)
		signal := anyOf(syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP)
		before := applied("")
		_ = all[i].Process.Signal(signal)
		if signal != syscall.SIGSTOP {
			_ = all[i].Wait()
			all[i] = start()
		}
		if fault%10 == 0 {
			c.cut()
		}
		_ = c.MoveTopicPartition(topic, rand.Int32N(6), rand.Int32N(3))
		goOn("the others go on", func() bool { return applied("") > before+2*keys })
		_ = all[i].Process.Signal(syscall.SIGCONT)
	}
	stop()
	running.Wait()
	want := keys * int(published.Load())
	goOn("all events have taken effect", func() bool { return applied("WHERE new") >= want })
	for _, member := range all {
		_ = member.Process.Signal(syscall.SIGTERM)
		_ = member.Wait()
	}
	var o order
	for _, row := range pgtest.Column[string](t, pool, "SELECT letter || ' ' || version FROM effects WHERE new ORDER BY seq") {
		var id string
		var version int64
		_, _ = fmt.Sscan(row, &id, &version)
		o.add(id, version)
	}
	o.check(t, want)
	first, again := applied("WHERE new"), applied("WHERE NOT new")
	if wrong := pgtest.Count(t, pool, "SELECT count(*) FROM video_catalog_read.quarantine"); first != want || wrong > 0 || again == 0 {
		t.Errorf("%d effects of %d events, in quarantine %d, came again %d", first, want, wrong, again)
	}
	t.Logf("%d events, %d faults, %d came again", want, faults, again)
}
