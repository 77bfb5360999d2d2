package chaos

import (
	"context"
	"os"
	"testing"
	"time"
)

func startForTest(t *testing.T) *postgres {
	t.Helper()
	p, err := startPostgres(t.Context(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.remove(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// The clock of PostgreSQL follows the offset, in old and new connections and
// after a restart. Pauses keep their length. Where the library cannot be built,
// the clock cannot be set.
func TestClockOfPostgresJumps(t *testing.T) {
	p := startForTest(t)
	if compiler() == "" {
		if p.programs != "" {
			t.Errorf("without the library PostgreSQL is run by %s, want its own programs", p.programs)
		}
		return
	}
	old, err := p.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close(context.WithoutCancel(t.Context()))
	shows := func(c conn, ahead time.Duration) bool {
		const rounded = time.Millisecond
		var at time.Time
		before := time.Now()
		if err := c.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at.Sub(before) >= ahead-rounded && time.Until(at) <= ahead+rounded
	}
	for _, want := range []time.Duration{time.Hour, -time.Hour, 4*time.Second + 200*time.Millisecond, 0, -5 * time.Second} {
		if err := p.setClock(want); err != nil {
			t.Fatal(err)
		}
		fresh, err := p.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := fresh.Exec(t.Context(), "SELECT pg_sleep(0.1)"); err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		if a, b := shows(old, want), shows(fresh, want); !a || !b || took < 100*time.Millisecond || took > 2*time.Second {
			t.Errorf("the clock is ahead by %s: %t, and for a new session: %t; 100 ms took %s", want, a, b, took)
		}
		_ = fresh.Close(t.Context()) // all queries are done
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.start(t.Context(), func(string) {}); err != nil {
		t.Fatal(err)
	}
	again, err := p.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close(context.WithoutCancel(t.Context()))
	if !shows(again, -5*time.Second) {
		t.Error("after a restart the clock is not back by 5s any more")
	}
}

// If PostgreSQL does not use the library for its clock, it is restarted
// without.
func TestLibraryThatDoesNotObey(t *testing.T) {
	before := wallClock
	t.Cleanup(func() { wallClock = before })
	wallClock = []byte("int nothing;")
	p := startForTest(t)
	if p.programs != "" {
		t.Errorf("PostgreSQL is run by %s, want its own programs", p.programs)
	}
	if _, set := os.LookupEnv("POSTGRES_BIN_DIR"); set {
		t.Error("POSTGRES_BIN_DIR is still set")
	}
}
