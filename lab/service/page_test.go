package service

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/codes"

	"example.com/servicekit/localpg"
	"example.com/servicekit/pubsublocal"
	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg/pgtest"
)

// blocks returns the blocks of code of a language below a heading of a page.
func blocks(t *testing.T, page, heading, language string) []string {
	t.Helper()
	_, section, found := strings.Cut(read(t, page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var all []string
	for {
		_, after, found := strings.Cut(section, "\n```"+language+"\n")
		if !found {
			return all
		}
		block, rest, found := strings.Cut(after, "\n```\n")
		if !found {
			t.Fatalf("%s: a block below %q has no end", page, heading)
		}
		all, section = append(all, block), rest
	}
}

// reader runs the commands of failover.md as somebody who reads it does.
type reader struct {
	dir string
	env []string
}

func newReader(t *testing.T, s *stack, programs, source, target string) *reader {
	t.Helper()
	return &reader{dir: t.TempDir(), env: append(s.environ(),
		"PATH="+filepath.Dir(server(t))+":"+programs+":"+os.Getenv("PATH"), "SOURCE_URL="+source, "TARGET_URL="+target)}
}

func (r *reader) run(t *testing.T, script string, extra ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = r.dir, append(r.env, extra...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	return string(out)
}

// as returns a URL for another user.
func as(target, user string) string { return target + "&user=" + user }

const failoverPage = root + "/options/repair/failover.md"

// The commands of failover.md move the service, with all that it has, to another cluster: by dump and restore, and by
// logical replication. There it runs as users with only their roles, and watchers begin again.
func TestMove(t *testing.T) {
	for _, way := range []struct {
		heading string
		running int // how many blocks are run before the service is stopped
	}{
		{"## Moving by dump and restore", 0},
		{"## Moving by logical replication", 2},
	} {
		t.Run(strings.TrimPrefix(way.heading, "## "), func(t *testing.T) {
			t.Parallel()
			server, source := newServer(t, localpg.Config{Settings: map[string]string{"wal_level": "logical"}})
			_, err := db.Migrate(t.Context(), source, slog.New(slog.DiscardHandler), pgtest.Options()...)
			must(t, err)
			_, target := newServer(t, localpg.Config{})
			roles := blocks(t, root+"/docs/database.md", "### Users, and their time limits", "sql")
			for _, block := range append(roles, blocks(t, root+"/options/tenancy/README.md", "## Users", "sql")[0]) {
				for statement := range strings.SplitSeq(block, ";\n") {
					ask[int](t, target, statement)
				}
			}

			s := &stack{url: source, pubsub: newBroker(t)}
			p := s.start(t)
			watcher := s.fill(t, p, source)
			had, token := watcher.copy(), watcher.position()

			read, commands := newReader(t, s, server.Programs(), source, target), blocks(t, failoverPage, way.heading, "sh")
			for _, script := range commands[:way.running] {
				read.run(t, script)
				p.create(t, "made while the database moves")
			}
			p.stop(t)
			for _, script := range append(commands[way.running:], blocks(t, failoverPage, "## Before the service starts", "sh")...) {
				read.run(t, script)
			}
			const sequences = "SELECT format('%I.%I %s', schemaname, sequencename, last_value) FROM pg_sequences ORDER BY 1"
			pgtest.Same(t, "sequences", ask[string](t, source, sequences), ask[string](t, target, sequences))

			s.url = as(target, "video_catalog_app")
			catalog := "READ_DATABASE_URL=" + as(target, "video_catalog_read_app")
			p = s.start(t, catalog, "TELEMETRY_ADDR=127.0.0.1:0")
			p.checkReplaced(t, "commands", "queries")
			late := p.watch(t, token, had)
			for _, script := range blocks(t, failoverPage, "## Afterwards", "sh")[:1] { // the repair
				t.Log(read.run(t, script, "DATABASE_URL="+s.url, catalog))
			}
			p.checkRepaired(t, late)
			if late.restarts() == 0 {
				t.Error("a watch with the token of the source was not told to begin again")
			}
			s.useAll(t, p, target)
			p.checkRepaired(t, late)
		})
	}
}

// fill gives a service something of everything: published and deleted videos, one that the broker refuses, and a message
// in the quarantine. It returns a watcher that has the catalog.
func (s *stack) fill(t *testing.T, p *process, target string) *watcher {
	t.Helper()
	for range 5 {
		p.create(t, "published")
	}
	p.delete(t, p.create(t, "deleted"))
	s.publish(t, &pubsub.Message{Attributes: map[string]string{"name": "no event"}})
	s.settled(t, target)
	refuse := s.pubsub.Inject(pubsublocal.Fault{Method: "Publish", Code: codes.InvalidArgument})
	p.create(t, "refused")
	eventually(t, time.Minute, "an aggregate is blocked", func() bool {
		return ask[int](t, target, "SELECT count(*)::int FROM video_catalog.outbox_blocked")[0] == 1
	})
	ask[int](t, target, "UPDATE video_catalog.outbox_blocked SET parked_at = now(), next_retry_at = NULL") // as after many attempts
	refuse()
	w := p.watch(t, "", nil)
	eventually(t, time.Minute, "the watcher has the catalog", func() bool { return len(w.copy()) >= 5 })
	return w
}

// useAll uses each table and sequence of a service that was moved.
func (s *stack) useAll(t *testing.T, p *process, target string) {
	t.Helper()
	ask[int](t, target, "UPDATE video_catalog.outbox_blocked SET parked_at = NULL, next_retry_at = now()") // as an operator does
	p.rename(t, p.create(t, "made on the target"), "changed on the target")
	s.publish(t, &pubsub.Message{Attributes: map[string]string{"name": "no event either"}})
	s.settled(t, target)
	if got := ask[int](t, target, "SELECT count(*)::int FROM video_catalog_read.quarantine")[0]; got != 2 {
		t.Errorf("messages in the quarantine = %d, want 2", got)
	}
	if got := ask[int](t, target, "SELECT (SELECT count(*)::int FROM video_catalog.outbox_pending) + (SELECT count(*)::int FROM video_catalog.outbox_deferred)")[0]; got != 0 {
		t.Errorf("pending events = %d, want 0", got)
	}
	if got := len(p.published(t)); got < 7 {
		t.Errorf("published videos = %d, want at least 7", got)
	}
}
