package app

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
)

// A statement that hangs is given up after ten seconds, and tried again about a
// minute later. Then there is nothing to do for half an hour at least.
func TestMaintenanceThatHangsIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Minute)
		defer stop()
		start := time.Now()
		var calls []time.Duration
		var log bytes.Buffer
		s := Process{Log: slog.New(slog.NewTextHandler(&log, nil)), group: new(errgroup.Group), loops: ctx}
		s.maintain("test", maintainInterval, func(ctx context.Context) (bool, error) {
			calls = append(calls, time.Since(start))
			if len(calls) > 1 {
				return false, nil
			}
			<-ctx.Done()
			return false, ctx.Err()
		})
		if err := s.group.Wait(); err != nil {
			t.Errorf("the loop returns %v, want nil once ctx is done", err)
		}
		if len(calls) != 2 || calls[1] < 40*time.Second || calls[1] > 100*time.Second {
			t.Errorf("calls came after %s, want one at once and one after 40 to 100 seconds", calls)
		}
		if got := strings.Count(log.String(), "maintenance failed"); got != 1 {
			t.Errorf("log tells %d failures, want 1:\n%s", got, log.String())
		}
	})
}
