package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// A database that is replaced is told once, and again every hour, until it is
// known. One that is unavailable is neither.
func TestReplacedDatabaseIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		database, err := store.Database{Live: "a", Known: "a"}, error(nil)
		repairs := 0
		s := &side{name: "queries", look: func(context.Context) (store.Database, error) { return database, err }, repairs: []Step{func(context.Context) (bool, error) {
			repairs++
			return repairs == 1, nil
		}}}
		s.state.Store(-1)
		run := func(d time.Duration) {
			ctx, stop := context.WithTimeout(t.Context(), d)
			defer stop()
			if err := watchDatabases(ctx, []*side{s}, logger); err != nil {
				t.Errorf("watchDatabases() = %v, want nil once ctx is done", err)
			}
		}
		expect := func(name string, state int64, lines int) {
			t.Helper()
			if got := s.state.Load(); got != state {
				t.Errorf("%s: state = %d, want %d", name, got, state)
			}
			if got := strings.Count(log.String(), "level=ERROR"); got != lines {
				t.Errorf("%s: %d errors in the log, want %d:\n%s", name, got, lines, log.String())
			}
			log.Reset()
		}
		err = problem.Errorf(problem.Unavailable, "a standby")
		run(time.Minute)
		expect("unavailable", -1, 0)
		err = errors.New("permission denied")
		run(5 * time.Second)
		expect("broken", -1, 1)
		err = nil
		run(time.Minute)
		expect("as it was", 0, 0)
		if repairs < 6 || repairs > 8 { // two at once, and one in 10 s
			t.Errorf("%d repairs in a minute, want 7", repairs)
		}
		database.Live = "b"
		run(90 * time.Minute)
		expect("replaced", 1, 2)
		database.Known = "b"
		run(time.Minute)
		expect("known", 0, 0)
	})
}
