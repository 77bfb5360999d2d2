package repair

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
)

// The log reports a replaced database at once, and again every hour, until it is known.
// It does not report an unavailable database.
func TestReplacedDatabaseIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		found, err := identity{Live: "a", Known: "a"}, error(nil)
		moves := 0
		d := &watched{database: &database{Side: "queries", look: func(context.Context) (identity, error) { return found, err }}}
		d.state.Store(-1)
		w := &watch{log: logger, databases: []*watched{d}, moves: []func(context.Context) (bool, error){func(context.Context) (bool, error) {
			moves++
			return moves == 1, nil
		}}}
		run := func(d time.Duration) {
			ctx, stop := context.WithTimeout(t.Context(), d)
			defer stop()
			if err := w.run(ctx); err != nil {
				t.Errorf("run() = %v, want nil once ctx is done", err)
			}
		}
		expect := func(name string, state int64, lines int) {
			t.Helper()
			if got := d.state.Load(); got != state {
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
		if moves < 13 || moves > 16 { // one in 10 s, and one more at once
			t.Errorf("%d moves in two minutes, want 14", moves)
		}
		found.Live = "b"
		run(90 * time.Minute)
		expect("replaced", 1, 2)
		found.Known = "b"
		run(time.Minute)
		expect("known", 0, 0)
	})
}
