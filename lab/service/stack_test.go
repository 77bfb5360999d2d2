package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example.com/servicekit/localbroker"
	"example.com/servicekit/localpg"
	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

// repeat makes a call until it is no longer UNAVAILABLE, as clients do: after a failover connections of a pool are still
// broken, and each fails one call.
func repeat(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := invoke(ctx, method, request, response, conn, opts...)
		if status.Code(err) != codes.Unavailable {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stack is what a server needs: a database with the schema, and Pub/Sub.
type stack struct {
	url    string
	pool   *pgxpool.Pool // of newStack
	pubsub *localbroker.Server
}

func newStack(t *testing.T) *stack {
	t.Helper()
	pool := pgtest.Pool(t, 4)
	return &stack{url: pool.Config().ConnString(), pool: pool, pubsub: newBroker(t)}
}

func (s *stack) count(t *testing.T, sql string) int { t.Helper(); return pgtest.Count(t, s.pool, sql) }

func (s *stack) environ(extra ...string) []string {
	return environ(append([]string{"DATABASE_URL=" + s.url, "PUBSUB_PROJECT=" + project, "PUBSUB_EMULATOR_HOST=" + s.pubsub.Addr()}, extra...)...)
}

// start starts a server and waits until it is ready.
func (s *stack) start(t testing.TB, extra ...string) *process {
	t.Helper()
	p := startService(t, s.environ(extra...)...)
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(repeat))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // whatever the test did to the server
	p.videos, p.catalog = videov1.NewVideoServiceClient(conn), catalogv1.NewCatalogServiceClient(conn)
	eventually(t, 10*time.Second, "the server is ready", func() bool {
		code, _ := getURL(t, "http://"+p.addr+"/health/ready")
		return code == http.StatusOK
	})
	return p
}

// private returns the address of the private port, from the log.
func (p *process) private(t *testing.T) (addr string) {
	t.Helper()
	eventually(t, 10*time.Second, "the private port is open", func() bool {
		addr = p.addrOf("telemetry: private port open")
		return addr != ""
	})
	return addr
}

func getURL(t testing.TB, url string) (code int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(text)
}

// publish publishes a message to the topic of the videos, as some other
// program might.
func (s *stack) publish(t *testing.T, message *pubsub.Message) {
	t.Helper()
	client, err := s.pubsub.Client(t.Context(), project)
	must(t, err)
	defer client.Close()
	publisher := client.Publisher(names.VideoTopic.Name)
	publisher.EnableMessageOrdering = true
	defer publisher.Stop()
	_, err = publisher.Publish(t.Context(), message).Get(t.Context())
	must(t, err)
}

// newServer starts a PostgreSQL server with an empty database, named like the service, and returns it with the URL of the database.
func newServer(t *testing.T, cfg localpg.Config) (*localpg.Server, string) {
	t.Helper()
	server, err := localpg.Start(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { must(t, server.Stop()) })
	if _, err := os.Stat(filepath.Join(server.Programs(), "pg_basebackup")); err != nil {
		t.Skipf("the PostgreSQL here has no programs but its server: %v", err)
	}
	if cfg.StandbyOf == nil {
		ask[int](t, server.DSN("postgres"), "CREATE DATABASE "+names.Service)
	}
	return server, server.DSN(names.Service)
}

// ask runs a statement on a connection of its own, and returns the only column of its rows.
func ask[T any](t *testing.T, target, sql string, args ...any) []T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), target)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer conn.Close(t.Context())
	return pgtest.Column[T](t, conn, sql, args...)
}

// cluster is a database with an asynchronous standby, and a network to the primary.
type cluster struct {
	primary, standby       *localpg.Server
	primaryURL, standbyURL string
	network                *rig.Network
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := new(cluster)
	c.primary, c.primaryURL = newServer(t, localpg.Config{})
	_, err := db.Migrate(t.Context(), c.primaryURL, slog.New(slog.DiscardHandler), pgtest.Options()...)
	must(t, err)
	c.standby, c.standbyURL = newServer(t, localpg.Config{StandbyOf: c.primary})
	c.network = rig.NewNetwork(t, c.primaryURL)
	return c
}

// cut ends the replication once the standby has all that was committed: what is committed from now on is on the primary only.
func (c *cluster) cut(t *testing.T) {
	t.Helper()
	holds := func(target, condition string, args ...any) func() bool {
		return func() bool { return ask[bool](t, target, "SELECT "+condition, args...)[0] }
	}
	eventually(t, time.Minute, "the standby follows", holds(c.primaryURL, "EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')"))
	ask[int](t, c.primaryURL, "CHECKPOINT") // flushes what was committed asynchronously, too
	position := ask[string](t, c.primaryURL, "SELECT pg_current_wal_flush_lsn()::text")[0]
	eventually(t, time.Minute, "the standby has what was committed", holds(c.standbyURL, "pg_last_wal_replay_lsn() >= $1::pg_lsn", position))
	ask[int](t, c.standbyURL, "ALTER SYSTEM SET primary_conninfo = ''")
	ask[bool](t, c.standbyURL, "SELECT pg_reload_conf()")
	eventually(t, time.Minute, "the standby follows no more", holds(c.standbyURL, "current_setting('primary_conninfo') = '' AND NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"))
	eventually(t, time.Minute, "the primary has no standby", holds(c.primaryURL, "NOT EXISTS (SELECT FROM pg_stat_replication)"))
}

// failOver kills the primary, promotes the standby, and moves the network there.
func (c *cluster) failOver(t *testing.T) {
	t.Helper()
	must(t, c.primary.Kill())
	if promoted := ask[bool](t, c.standbyURL, "SELECT pg_promote(wait_seconds => 60)")[0]; !promoted {
		t.Fatal("the standby was not promoted")
	}
	c.network.Move(t, c.standbyURL)
}

// settled waits until every event is published, projected and acknowledged.
func (s *stack) settled(t *testing.T, owner string) {
	t.Helper()
	eventually(t, time.Minute, "all events are published and acknowledged", func() bool {
		if ask[int](t, owner, "SELECT (SELECT count(*)::int FROM video_catalog.outbox_pending) + (SELECT count(*)::int FROM video_catalog.outbox_deferred)")[0] > 0 {
			return false
		}
		return !slices.ContainsFunc(s.pubsub.Published(), func(m localbroker.Message) bool { return m.Acks == 0 })
	})
}

// eventsOf returns the ids of the events that were published with one version of a video, each once.
func (s *stack) eventsOf(name string, version int) []string {
	ids := map[string]bool{}
	for _, m := range s.pubsub.Published() {
		if m.OrderingKey == strings.TrimPrefix(name, "videos/") && m.Attributes[envelope.AttrVersion] == strconv.Itoa(version) {
			ids[m.Attributes[envelope.AttrEventID]] = true
		}
	}
	return slices.Collect(maps.Keys(ids))
}

// create makes a video, publishes it, and returns its name.
func (p *process) create(t *testing.T, title string) string {
	t.Helper()
	video, err := p.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{RequestId: uuid.NewString(), Video: &videov1.Video{Title: title}})
	must(t, err)
	_, err = p.videos.PublishVideo(t.Context(), &videov1.PublishVideoRequest{Name: video.GetName()})
	must(t, err)
	return video.GetName()
}

// rename changes the title of a video.
func (p *process) rename(t *testing.T, name, title string) {
	t.Helper()
	_, err := p.videos.UpdateVideo(t.Context(), &videov1.UpdateVideoRequest{Video: &videov1.Video{Name: name, Title: title}})
	must(t, err)
}

// delete deletes a video.
func (p *process) delete(t *testing.T, name string) {
	t.Helper()
	_, err := p.videos.DeleteVideo(t.Context(), &videov1.DeleteVideoRequest{Name: name})
	must(t, err)
}

// entries is a copy of the catalog: title and version by id.
type entries map[string]string

// published returns the entries that the catalog should have, as the owner says.
func (p *process) published(t *testing.T) entries {
	t.Helper()
	response, err := p.videos.ListVideos(t.Context(), &videov1.ListVideosRequest{PageSize: 1000})
	must(t, err)
	all := entries{}
	for _, v := range response.GetVideos() {
		if v.GetState() == videov1.Video_STATE_PUBLISHED {
			all[strings.TrimPrefix(v.GetName(), "videos/")] = fmt.Sprintf("%s v%d", v.GetTitle(), v.GetVersion())
		}
	}
	return all
}

// listed returns the entries that the catalog has.
func (p *process) listed(t *testing.T) entries {
	t.Helper()
	response, err := p.catalog.ListCatalogEntries(t.Context(), &catalogv1.ListCatalogEntriesRequest{PageSize: 1000})
	must(t, err)
	all := entries{}
	for _, e := range response.GetCatalogEntries() {
		all.update(e)
	}
	return all
}

func (e entries) update(entry *catalogv1.CatalogEntry) {
	e[strings.TrimPrefix(entry.GetName(), "catalogEntries/")] = fmt.Sprintf("%s v%d", entry.GetTitle(), entry.GetVersion())
}

// checkRepaired compares the owner with the catalog, and with the copies of watchers.
func (p *process) checkRepaired(t *testing.T, watchers ...*watcher) {
	t.Helper()
	want := p.published(t)
	pgtest.Same(t, "catalog", want, p.listed(t))
	for i, w := range watchers {
		eventually(t, time.Minute, fmt.Sprintf("watcher %d has what the owner has, not %v", i, w.copy()), func() bool {
			return maps.Equal(want, w.copy())
		})
	}
}

// watcher keeps a copy of the catalog, only from WatchCatalogEntries, and resumes when a stream breaks.
type watcher struct {
	mu        sync.Mutex
	entries   entries // guarded by mu
	token     string  // guarded by mu
	restarted int     // guarded by mu: how often it was told to begin again
}

// watch starts a watcher, with an old token and what it had then, or with neither. It ends with the test.
func (p *process) watch(t *testing.T, token string, had entries) *watcher {
	t.Helper()
	w := &watcher{entries: maps.Clone(had), token: token}
	if had == nil {
		w.entries = entries{}
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			w.follow(ctx, p)
			time.Sleep(20 * time.Millisecond) // the server is unavailable
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return w
}

// follow reads one stream to its end.
func (w *watcher) follow(ctx context.Context, p *process) {
	stream, err := p.catalog.WatchCatalogEntries(ctx, &catalogv1.WatchCatalogEntriesRequest{ResumeToken: w.position()})
	for err == nil {
		var response *catalogv1.WatchCatalogEntriesResponse
		if response, err = stream.Recv(); err == nil {
			w.apply(response)
		}
	}
}

func (w *watcher) apply(response *catalogv1.WatchCatalogEntriesResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch change := response.GetChange().(type) {
	case *catalogv1.WatchCatalogEntriesResponse_Updated:
		w.entries.update(change.Updated)
	case *catalogv1.WatchCatalogEntriesResponse_Removed:
		delete(w.entries, strings.TrimPrefix(change.Removed, "catalogEntries/"))
	case *catalogv1.WatchCatalogEntriesResponse_Restarted:
		clear(w.entries)
		w.restarted++
	}
	w.token = response.GetResumeToken()
}

func (w *watcher) position() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.token
}

func (w *watcher) copy() entries {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.entries)
}

// restarts returns how often the watcher was told to forget everything and begin again.
func (w *watcher) restarts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restarted
}

// logs reports whether a line of the server's log has all of the words.
func (p *process) logs(words ...string) bool {
	return slices.ContainsFunc(p.lines(), func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

// eventuallyReady waits until the server has found the new primary. A server with one side is ready, too, so each side
// is checked.
func (p *process) eventuallyReady(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the server is ready after the failover", func() bool {
		_, body := getURL(t, "http://"+p.addr+"/health/ready")
		var sides map[string]string
		must(t, json.Unmarshal([]byte(body), &sides))
		return !slices.ContainsFunc(slices.Collect(maps.Values(sides)), func(state string) bool { return state != "ready" })
	})
}

// checkReplaced waits until the server has noticed that the databases of these sides were replaced, and has logged the remedy.
func (p *process) checkReplaced(t *testing.T, sides ...string) {
	t.Helper()
	for _, side := range sides {
		eventually(t, time.Minute, "an error in the log names the side "+side+" and the remedy", func() bool {
			return p.logs(`"severity":"ERROR"`, `"`+side+`"`, "options/repair/failover.md")
		})
		p.checkGauge(t, side, 1)
	}
}

// checkGauge waits until database.replaced of a side has a value.
func (p *process) checkGauge(t *testing.T, side string, want int) {
	t.Helper()
	p.checkMetric(t, "database_replaced", `side="`+side+`"`, want)
}

// checkMetric waits until a series of the private port has a value.
func (p *process) checkMetric(t *testing.T, name, label string, want int) {
	t.Helper()
	private := p.private(t)
	series := regexp.MustCompile(fmt.Sprintf(`(?m)^%s\{[^}]*%s[^}]*\} %d$`, name, label, want))
	eventually(t, time.Minute, fmt.Sprintf("%s{%s} is %d", name, label, want), func() bool {
		_, metrics := getURL(t, "http://"+private+"/metrics")
		return series.MatchString(metrics)
	})
}

// repair runs the command that repairs the catalog. It must find the differences in found. Then nothing differs, and no
// side counts as replaced.
func (s *stack) repair(t *testing.T, p *process, catalogURL, found string) {
	t.Helper()
	repair := func(want string, args ...string) {
		t.Helper()
		out := run(t, s.environ("READ_DATABASE_URL="+catalogURL), server(t), append([]string{"projection", "repair", "--all", "--why", "failover"}, args...)...)
		if !strings.Contains(out, want) {
			t.Errorf("repair %v = %q, want %q", args, out, want)
		}
	}
	repair(found, "--dry-run")
	repair(found)
	repair("missing 0, behind 0, ahead 0, different 0, extra 0", "--dry-run")
	for _, side := range []string{"commands", "queries"} {
		p.checkGauge(t, side, 0)
	}
}
