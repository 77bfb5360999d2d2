package reactions

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/localpg"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/lab/engine/rig"
)

const project = "test-project"

var reactorSeed = flag.Uint64("reactor.seed", rand.Uint64(), "seed of the faults of TestReactorUnderChaos, and of its clients")

// Reactions and timers take effect once, in order, and none is forgotten, while processes are killed at random moments, the database
// crashes, and the broker is unavailable. Without an inbox the same faults let reactions take effect twice, and the checker sees it.
func TestReactorUnderChaos(t *testing.T) {
	t.Logf("-reactor.seed=%d", *reactorSeed)
	program := build(t)
	t.Run("holds", func(t *testing.T) {
		c, end := newReactorChaos(t, program), time.Now().Add(20*time.Second)
		h := c.run(t, func() bool { return time.Now().After(end) && c.acknowledged() > 50 && c.deliveredAgain() > 0 })
		for _, violation := range h.violations() {
			t.Error(violation)
		}
	})
	t.Run("is seen to fail", func(t *testing.T) {
		c := newReactorChaos(t, program)
		c.forgets = true
		const twice = `SELECT count(*)::int FROM (
			SELECT FROM video_catalog.outbox WHERE causation_id IS NOT NULL GROUP BY causation_id, aggregate_id HAVING count(*) > 1) twice`
		found := c.run(t, func() bool { return ask[int](t, c.database.DSN("postgres"), twice)[0] > 0 }).violations()
		if !slices.ContainsFunc(found, func(v string) bool { return strings.HasPrefix(v, "twice: ") }) {
			t.Errorf("violations %q, want events that have taken effect twice", found)
		}
	})
}

// build builds the service of Program, with the settings of the lab.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "server")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./server").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return program
}

// reactorChaos is a service with reactions and timers, and what can break around it.
type reactorChaos struct {
	pubsub   *localbroker.Server
	program  string
	environ  []string
	forgets  bool            // the inbox forgets events at once: a mistake on purpose
	folder   string          // of the data of the database
	logs     string          // folder of the logs of processes
	database *localpg.Server // replaced when it crashes
	network  *rig.Network
	videos   videov1.VideoServiceClient

	ended atomic.Int64 // processes

	mu      sync.Mutex
	running []*os.Process // guarded by mu: by slot
	created []uuid.UUID   // guarded by mu: whose creation was acknowledged
}

func newReactorChaos(t *testing.T, program string) *reactorChaos {
	t.Helper()
	c := &reactorChaos{program: program, folder: t.TempDir(), logs: t.TempDir()}
	t.Cleanup(func() { c.logFailures(t) })
	c.startDatabase(t)
	t.Cleanup(func() {
		if err := c.database.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.Migrate(t.Context(), c.database.DSN("postgres"), slog.New(slog.DiscardHandler), storetest.Options()...); err != nil {
		t.Fatal(err)
	}
	c.network = rig.NewNetwork(t, c.database.DSN("postgres"))
	var err error
	if c.pubsub, err = localbroker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.pubsub.Close() })
	client, err := c.pubsub.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := localtopics.Create(t.Context(), client, localbroker.Resources{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name:  "projects/" + project + "/subscriptions/" + reminders,
		Topic: "projects/" + project + "/topics/" + names.VideoTopic.Name, EnableMessageOrdering: true,
	}); err != nil {
		t.Fatal(err)
	}
	c.environ = []string{
		"PATH=" + os.Getenv("PATH"), "PORT=0", "AUTH=off", "DATABASE_URL=" + c.network.URL, "PUBSUB_PROJECT=" + project, "PUBSUB_EMULATOR_HOST=" + c.pubsub.Addr(),
		// A dead publisher is replaced after the lease.
		"LAB_OUTBOX_LEASE=3s", "LAB_OUTBOX_PUBLISH_TIMEOUT=1s", "LAB_OUTBOX_REQUEST_TIMEOUT=500ms",
	}
	return c
}

// startDatabase starts the database, with the data that it has.
func (c *reactorChaos) startDatabase(t *testing.T) {
	t.Helper()
	server, err := localpg.Start(t.Context(), localpg.Config{Dir: c.folder})
	if err != nil {
		t.Fatal(err)
	}
	c.database = server
}

// run lets clients work and breaks things until it is enough. Then it waits until nothing waits, and returns what there is.
func (c *reactorChaos) run(t *testing.T, enough func() bool) reactorHistory {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	var work, load sync.WaitGroup
	defer work.Wait()
	defer stop()
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	processes := []string{"api,publisher", "reactor,publisher", "reactor", "reactor"}
	c.running = make([]*os.Process, len(processes))
	for slot, roles := range processes {
		environ := append(slices.Clone(c.environ), "ROLES="+roles)
		if slot == 0 {
			environ = append(environ, "PORT="+port)
		}
		work.Go(func() { c.keep(ctx, t, slot, environ) })
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c.videos = videov1.NewVideoServiceClient(conn)
	for client := range uint64(3) {
		load.Go(func() { c.use(loading, random(client), &load) })
	}
	if c.forgets {
		load.Go(func() { c.forget(loading) })
	}
	load.Go(func() { c.killOften(loading, random(3), 3) })
	defer load.Wait()
	defer stopLoad()
	faults := c.harm(t, random(4), enough)
	stopLoad()
	load.Wait()
	began := time.Now()
	for time.Since(began) < 2*time.Minute && len(c.waiting(t)) > 0 {
		time.Sleep(100 * time.Millisecond)
	}
	quiet := time.Since(began)
	stop()
	work.Wait()
	h := c.history(t)
	t.Logf("%d events; %d faults, %d processes ended, %d deliveries again; quiet %s after the last fault",
		len(h.events), faults, c.ended.Load(), c.deliveredAgain(), quiet.Round(100*time.Millisecond))
	return h
}

// acknowledged is how many videos clients have created.
func (c *reactorChaos) acknowledged() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.created)
}

// deliveredAgain is how often messages came again.
func (c *reactorChaos) deliveredAgain() (n int) {
	for _, m := range c.pubsub.Published() {
		n += max(0, m.Deliveries-1)
	}
	return n
}

// freeAddress is an address on which nobody listened a moment ago. A process comes back to it, so it is below the ports that
// systems give to connections.
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(15_000+rand.IntN(17_000)))
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err == nil {
			_ = listener.Close() // it was only a try
			return address
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// random returns one of the sequences of numbers that the seed makes.
func random(sequence uint64) *rand.Rand { return rand.New(rand.NewPCG(*reactorSeed, sequence)) }

// keep runs a process, and starts it again when it was killed, until ctx ends.
func (c *reactorChaos) keep(ctx context.Context, t *testing.T, slot int, environ []string) {
	log, err := os.Create(filepath.Join(c.logs, strconv.Itoa(slot)))
	if err != nil {
		t.Error(err)
		return
	}
	defer log.Close()
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, c.program)
		cmd.Env, cmd.Stderr = environ, log
		c.mu.Lock()
		err := cmd.Start()
		c.running[slot] = cmd.Process
		c.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		_ = cmd.Wait() // how it ended is in its state
		c.ended.Add(1)
		if cmd.ProcessState.ExitCode() == 1 { // a start without the database
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Errorf("process %d ended by itself: %s", slot, cmd.ProcessState)
			return
		}
	}
}

// kill kills a process.
func (c *reactorChaos) kill(slot int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[slot] != nil {
		_ = c.running[slot].Kill() // it may have ended
	}
}

// forget has the inbox forget events until ctx ends.
func (c *reactorChaos) forget(ctx context.Context) {
	for ctx.Err() == nil {
		if conn, err := pgx.Connect(ctx, c.network.URL); err == nil { // the database may be down
			for err == nil {
				_, err = conn.Exec(ctx, "UPDATE video_catalog.inbox SET consumer = gen_random_uuid()::text WHERE consumer = 'reminders'")
				time.Sleep(10 * time.Millisecond)
			}
			_ = conn.Close(ctx)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// killOften kills a process at random moments until ctx ends, many of them between the commit of a batch and its acknowledgement.
func (c *reactorChaos) killOften(ctx context.Context, r *rand.Rand, slot int) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(200+r.IntN(1500)) * time.Millisecond)
		c.kill(slot)
	}
}

// use is a client. It creates videos until ctx ends, and stops the timers of some. A call that fails may have succeeded: the
// events show it.
func (c *reactorChaos) use(ctx context.Context, r *rand.Rand, stops *sync.WaitGroup) {
	for ctx.Err() == nil {
		video, err := c.videos.CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		if err == nil {
			c.mu.Lock()
			c.created = append(c.created, uuid.MustParse(strings.TrimPrefix(video.GetName(), "videos/")))
			c.mu.Unlock()
			if after := time.Duration(r.IntN(3000)) * time.Millisecond; after < 1500*time.Millisecond {
				stops.Go(func() {
					time.Sleep(after)
					_, _ = c.videos.UpdateVideo(ctx, &videov1.UpdateVideoRequest{
						Video: &videov1.Video{Name: video.GetName(), Description: stop}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"description"}},
					})
				})
			}
		}
		time.Sleep(40 * time.Millisecond)
	}
}

// harm makes faults until it is enough, and each once at least. It returns how many.
func (c *reactorChaos) harm(t *testing.T, r *rand.Rand, enough func() bool) (made int) {
	t.Helper()
	killOne := func() { c.kill(r.IntN(len(c.running))) }
	faults := []func(){
		killOne, killOne, killOne, c.network.Cut,
		func() { // the database crashes, and comes back elsewhere with its data
			if err := c.database.Kill(); err != nil {
				t.Fatal(err)
			}
			c.startDatabase(t)
			c.network.Move(t, c.database.DSN("postgres"))
		},
		func() { // the broker is unavailable
			c.pubsub.SetDown(true)
			time.Sleep(time.Duration(200+r.IntN(1000)) * time.Millisecond)
			c.pubsub.SetDown(false)
		},
		func() { // messages come again after their acknowledgement
			if err := c.pubsub.Duplicate("projects/"+project+"/subscriptions/"+reminders, 10); err != nil {
				t.Error(err)
			}
		},
		func() { // everything is killed
			for slot := range c.running {
				c.kill(slot)
			}
		},
	}
	time.Sleep(time.Second)
	for began := time.Now(); made == 0 || !enough(); made += len(faults) {
		if time.Since(began) > 3*time.Minute {
			t.Fatal("too little has happened to show anything")
		}
		r.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, fault := range faults {
			fault()
			time.Sleep(time.Duration(100+r.IntN(900)) * time.Millisecond)
		}
	}
	return made
}

// waiting returns what still waits for something.
func (c *reactorChaos) waiting(t *testing.T) []string {
	t.Helper()
	return ask[string](t, c.database.DSN("postgres"), `
		SELECT 'event ' || id || ' is not published' FROM video_catalog.outbox_pending
		UNION ALL SELECT 'event ' || id || ' is not published' FROM video_catalog.outbox_deferred
		UNION ALL SELECT 'aggregate ' || aggregate_id || ' is blocked' FROM video_catalog.outbox_blocked
		UNION ALL SELECT 'timer of ' || aggregate_id FROM video_catalog.timers
		UNION ALL SELECT 'event ' || id || ' was not reacted to' FROM video_catalog.outbox o
			WHERE NOT EXISTS (SELECT FROM video_catalog.inbox i WHERE i.event_id = o.id)
		UNION ALL SELECT 'message ' || message_id || ' is in quarantine: ' || reason FROM video_catalog_read.quarantine`)
}

// history collects what there is at the end.
func (c *reactorChaos) history(t *testing.T) reactorHistory {
	t.Helper()
	h := reactorHistory{created: c.created, versions: make(map[uuid.UUID]int64), published: make(map[string][]string), waiting: c.waiting(t)}
	conn, err := pgx.Connect(t.Context(), c.database.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var e happened
	var payload []byte
	rows, _ := conn.Query(t.Context(), `SELECT id, aggregate_id::uuid, event_type, version, causation_id, correlation_id, payload
		FROM video_catalog.outbox ORDER BY aggregate_id, version`)
	_, err = pgx.ForEachRow(rows, []any{&e.id, &e.of, &e.typ, &e.version, &e.cause, &e.root, &payload}, func() error {
		e.state = new(videov1.VideoEvent)
		h.events = append(h.events, e)
		return proto.Unmarshal(payload, e.state)
	})
	if err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	var version int64
	rows, _ = conn.Query(t.Context(), "SELECT id, version FROM video_catalog.videos")
	if _, err := pgx.ForEachRow(rows, []any{&id, &version}, func() error { h.versions[id] = version; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.pubsub.Published() {
		if id := m.Attributes[envelope.AttrEventID]; !slices.Contains(h.published[m.OrderingKey], id) {
			h.published[m.OrderingKey] = append(h.published[m.OrderingKey], id)
		}
	}
	return h
}

// logFailures shows the ends of the logs of all processes, if the test has failed.
func (c *reactorChaos) logFailures(t *testing.T) {
	if !t.Failed() {
		return
	}
	for slot := range c.running {
		log, err := os.ReadFile(filepath.Join(c.logs, strconv.Itoa(slot)))
		t.Logf("end of the log of process %d (%v):\n%s", slot, err, log[max(0, len(log)-3000):])
	}
}

func ask[T any](t *testing.T, target, sql string) []T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), target)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer conn.Close(t.Context())
	rows, _ := conn.Query(t.Context(), sql)
	got, err := pgx.CollectRows(rows, pgx.RowTo[T]) // has the error of the query, too
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}
