package chaos

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// A frozen publisher settles after another has taken its lanes, or one of them, and another claims leased lanes.
// With fence and lease, none of this is a trespass. Without one of them, it is, once for each lane.
func TestLanesAreWatched(t *testing.T) {
	for _, tt := range []struct {
		name    string
		lanes   int      // with events
		ended   int      // leases of the frozen publisher
		want    []string // process and kind of each trespass
		settled map[string]int64
	}{
		{"as it is", 2, 2, nil, map[string]int64{"successor": 4}},
		{"as it is, of one lane", 1, 1, nil, map[string]int64{"successor": 2}},
		{"as it is, one of two lanes lost", 2, 1, nil, map[string]int64{"zombie": 1, "successor": 3}},
		{"without fence", 2, 2, []string{"zombie settled", "zombie settled", "successor settled", "successor settled"}, map[string]int64{"zombie": 2, "successor": 2}},
		{"without lease", 2, 2, []string{"other taken", "other taken", "successor taken", "successor taken"}, map[string]int64{"successor": 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.URL(t)
			lab := openAs(t, dsn, "lab")
			watch(t, lab)
			aggregates := inLanes("video", tt.lanes)
			appendEvents(t, lab, 1, aggregates)
			claim := func(name string) (outbox.Settlement, *pg.Outbox) {
				publisher := pg.NewOutbox(openAs(t, dsn, name))
				claim, err := publisher.ClaimEvents(t.Context(), outbox.Limits{Lanes: outbox.Lanes, Events: 10, Bytes: 1 << 20, Lease: time.Minute})
				must(t, err)
				return outbox.Settlement{Lease: claim.Lease}, publisher
			}
			settle := func(s outbox.Settlement, publisher *pg.Outbox) {
				_, err := publisher.SettleClaim(t.Context(), s)
				must(t, err)
			}
			lost, zombie := claim("zombie")
			for _, a := range aggregates[:tt.ended] {
				execute(t, lab, fmt.Sprintf("UPDATE video_catalog.outbox_lanes SET leased_until = clock_timestamp() WHERE lane = %d", outbox.Lane(a)))
			}
			held, successor := claim("successor")
			if len(lost.Spans) != tt.lanes || len(held.Spans) != tt.ended {
				t.Fatalf("claims are %+v and %+v, want %d lanes and %d of them again", lost, held, tt.lanes, tt.ended)
			}
			if tt.name == "without fence" { // they settle as if tokens were not compared
				lost.Token = held.Token
			}
			settle(lost, zombie)
			if tt.name == "without lease" {
				for _, name := range []string{"other", "successor"} {
					execute(t, openAs(t, dsn, name), fmt.Sprintf("-- name: LeaseLanes :many\nUPDATE video_catalog.outbox_lanes SET token = %[1]d WHERE token = %[1]d", held.Token))
				}
			}
			if tt.name != "as it is, one of two lanes lost" { // the other lane is free again, and has its event
				other, _ := claim("other")
				if tt.name == "without fence" {
					held.Token = other.Token
				}
			}
			settle(held, successor)
			if tt.want == nil {
				appendEvents(t, lab, 2, aggregates)
				settle(claim("successor"))
			}

			conn, err := lab.Acquire(t.Context())
			must(t, err)
			defer conn.Release()
			trespasses, err := readTrespasses(t.Context(), conn.Conn())
			must(t, err)
			var got []string
			for _, o := range trespasses {
				got = append(got, o.Who+" "+o.What)
			}
			if strings.Join(got, ", ") != strings.Join(tt.want, ", ") {
				t.Errorf("trespasses: got %q, want %q", got, tt.want)
			}
			settled, err := readSettlements(t.Context(), conn.Conn())
			if err != nil || !maps.Equal(settled, tt.settled) {
				t.Errorf("readSettlements() = %v, %v, want %v", settled, err, tt.settled)
			}
		})
	}
}

// A process that dies may have published its share of each lane, and nothing of a lane that it has settled.
func TestHeldBy(t *testing.T) {
	t.Parallel()
	dsn := pgtest.URL(t)
	lab := openAs(t, dsn, "lab")
	watch(t, lab)
	aggregates := inLanes("video", 2)
	for version := range int64(20) {
		appendEvents(t, lab, version+1, aggregates[:1])
	}
	appendEvents(t, lab, 1, aggregates[1:])
	check := func(after string, want int) {
		t.Helper()
		conn, err := lab.Acquire(t.Context())
		must(t, err)
		defer conn.Release()
		if n, err := heldBy(t.Context(), conn.Conn(), []string{"victim", "other"}, 10); n != want || err != nil {
			t.Errorf("heldBy() after %s = %d, %v, want %d", after, n, err, want)
		}
	}
	victim := pg.NewOutbox(openAs(t, dsn, "victim"))
	claim := func(lanes int) outbox.Settlement {
		t.Helper()
		claim, err := victim.ClaimEvents(t.Context(), outbox.Limits{Lanes: lanes, Events: 10, Bytes: 1 << 20, Lease: time.Minute})
		must(t, err)
		return outbox.Settlement{Lease: claim.Lease}
	}
	check("nothing", 0)
	both := claim(outbox.Lanes)
	check("a claim of two lanes", 5+1)
	if held, err := victim.SettleClaim(t.Context(), both); !held || err != nil {
		t.Fatal(held, err)
	}
	check("its settlement", 0)
	claim(1)
	claim(1)
	check("two claims of a lane", 10+1)
}

// openAs opens a database as a process of the lab.
func openAs(t *testing.T, dsn, name string) *pgxpool.Pool {
	t.Helper()
	u, err := url.Parse(dsn)
	must(t, err)
	query := u.Query()
	query.Set("application_name", name)
	u.RawQuery = query.Encode()
	return pgtest.Open(t, u.String(), 1)
}

func watch(t *testing.T, lab *pgxpool.Pool) {
	t.Helper()
	conn, err := lab.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	must(t, watchLanes(t.Context(), conn.Conn(), time.Minute))
}

// inLanes returns n aggregates, each in a lane of its own.
func inLanes(aggregateType string, n int) (aggregates []envelope.Aggregate) {
	taken := make(map[int16]bool)
	for id := 'a'; len(aggregates) < n; id++ {
		a := envelope.Aggregate{Type: aggregateType, ID: string(id)}
		if !taken[outbox.Lane(a)] {
			taken[outbox.Lane(a)] = true
			aggregates = append(aggregates, a)
		}
	}
	return aggregates
}

func appendEvents(t *testing.T, to pgtest.DB, version int64, aggregates []envelope.Aggregate) {
	t.Helper()
	for _, a := range aggregates {
		pgtest.Append(t, to, envelope.Message{ID: uuid.Must(uuid.NewV7()), AggregateType: a.Type, AggregateID: a.ID, Type: "VideoUpdated", Version: version, OccurredAt: time.Now()})
	}
}
