package outbox_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/reconnect"
)

// brokerVariable makes this program a broker: see serveBroker.
const brokerVariable = "SLOW_BROKER"

// serveBroker is a process with a Pub/Sub server. It prints the address, and for each line of its input how many messages
// were published.
func serveBroker() error {
	var published atomic.Int64
	server, err := pubsublocal.Start(pubsublocal.Config{Observer: func(e pubsublocal.Event) {
		if e.Kind == pubsublocal.Published {
			published.Add(1)
		}
	}})
	if err != nil {
		return err
	}
	fmt.Println(server.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(published.Load())
	}
	return nil
}

// BenchmarkSlowBroker measures how the default publisher drains 40,000 events of as many aggregates into a broker that runs for
// a part of the time only, and how many of them it publishes again.
func BenchmarkSlowBroker(b *testing.B) {
	for name, stopped := range map[string]time.Duration{"whole": 0, "quarter": 75 * time.Millisecond, "tenth": 90 * time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				drainSlowly(b, stopped)
			}
		})
	}
}

// drainSlowly drains into a broker that is stopped for a part of each 100 ms.
func drainSlowly(b *testing.B, stopped time.Duration) {
	b.Helper()
	const events, period = 40_000, 100 * time.Millisecond
	broker := exec.CommandContext(b.Context(), os.Args[0])
	broker.Env = append(os.Environ(), brokerVariable+"=1")
	broker.Stderr = os.Stderr
	input, err := broker.StdinPipe()
	must(b, err)
	output, err := broker.StdoutPipe()
	must(b, err)
	must(b, broker.Start())
	defer func() { _ = broker.Wait() }() // killed
	defer func() { _ = broker.Process.Kill() }()
	lines := bufio.NewScanner(output)
	lines.Scan()
	client, err := pubsub.NewClient(b.Context(), "slow", option.WithEndpoint(lines.Text()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	must(b, err)
	defer client.Close()
	reconnect.RetrySoon(client)
	const topic = "projects/slow/topics/letters"
	_, err = client.TopicAdminClient.CreateTopic(b.Context(), &pubsubpb.Topic{Name: topic})
	must(b, err)
	pool := pgtest.Pool(b, 8)
	for range events {
		pgtest.Append(b, pool, newEvent(uuid.Must(uuid.NewV7())))
	}
	ticks, slept := time.NewTicker(period), make(chan struct{})
	go func() {
		defer close(slept)
		for range ticks.C {
			if stopped > 0 {
				_ = broker.Process.Signal(syscall.SIGSTOP) // it may have ended
				time.Sleep(stopped)
				if broker.Process.Signal(syscall.SIGCONT) != nil {
					return
				}
			}
		}
	}()
	cfg := outbox.Config{}.WithDefaults()
	to := outbox.NewTopic(client.Publisher(topic), cfg.RequestTimeout(), 2*cfg.Workers*cfg.Batch)
	defer to.Stop()
	start := time.Now()
	stop := run(b, mustNew(b, pg.NewOutbox(pool), to, cfg))
	for pgtest.Count(b, pool, "SELECT (SELECT count(*) FROM video_catalog.outbox_pending) + (SELECT count(*) FROM video_catalog.outbox_deferred)") > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	took := time.Since(start)
	stop()
	fmt.Fprintln(input)
	var published int
	lines.Scan()
	_, err = fmt.Sscan(lines.Text(), &published)
	must(b, err)
	b.ReportMetric(took.Seconds(), "s/drain")
	b.ReportMetric(float64(published-events)/events*100, "%again")
	b.ReportMetric(0, "ns/op")
}
