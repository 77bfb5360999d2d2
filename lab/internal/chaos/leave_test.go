package chaos

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/db"
)

// A failed run leaves the received messages and the database. If the database
// cannot be dumped, its files are kept.
func TestFailedRunLeavesItsEvidence(t *testing.T) {
	t.Parallel()
	p, err := startPostgres(t.Context(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(p.dir) })
	if _, err := db.Migrate(t.Context(), p.dsn(databaseName), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	conn, err := p.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := watchLanes(t.Context(), conn, lease); err != nil {
		t.Fatal(err)
	}
	id := uuid.New()
	for _, test := range []struct {
		name string
		away bool
	}{{"database", false}, {"no database", true}} {
		l := &lab{cfg: Config{Out: t.TempDir()}, postgres: p, timeline: &timeline{to: io.Discard, start: time.Now()}}
		if test.away {
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
		}
		err := l.leave(&History{Sightings: []Sighting{{MessageID: "m", Event: id}}})
		if test.away != (err != nil) || test.away && !strings.Contains(err.Error(), p.dir) {
			t.Errorf("%s: leave() = %v", test.name, err)
		}
		if b, err := os.ReadFile(filepath.Join(l.cfg.Out, "heard.jsonl")); err != nil || !bytes.Contains(b, []byte(id.String())) {
			t.Errorf("%s: heard.jsonl = %s, %v, want the event that was heard", test.name, b, err)
		}
		files, err := filepath.Glob(filepath.Join(l.cfg.Out, "*"))
		dumped := true
		for _, table := range []string{"video_catalog.outbox", "video_catalog_read.inbox", "chaos.holders"} {
			dumped = dumped && slices.Contains(files, filepath.Join(l.cfg.Out, table+".csv"))
		}
		if err != nil || dumped == test.away {
			t.Errorf("%s: files = %q, %v, want the tables of all schemas among them: %t", test.name, files, err, !test.away)
		}
	}
	if err := p.remove(); err != nil && !strings.Contains(err.Error(), "no server running") {
		t.Errorf("remove() = %v", err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "data")); err != nil {
		t.Errorf("files of a server that was not dumped: %v, want them kept", err)
	}
}

// A slow recovery fails only a long run. That leaves the same files as a
// violation.
func TestSlowRecoveryFailsLongRuns(t *testing.T) {
	t.Parallel()
	missed := Verdict{Misses: []Miss{{}}}
	if (Report{Verdict: missed}).Slow() || !(Report{Verdict: missed, Long: true}).Slow() || (Report{Long: true}).Slow() {
		t.Error("Slow() = wrong, want true for a long run with a miss alone")
	}
}

// A second run in the same directory is refused, because it would overwrite
// files of the first.
func TestRunTakesNoFolderOfAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "timeline.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Config{Out: dir, Duration: time.Second}); err == nil || !strings.Contains(err.Error(), "timeline.jsonl") {
		t.Errorf("Run() = %v, want that there is a timeline already", err)
	}
}
