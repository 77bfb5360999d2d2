package chaos

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// A frozen publisher settles after another has taken its lane, and another claims a leased lane. With fence and lease,
// none of this is a trespass. Without one of them, it is.
func TestLanesAreWatched(t *testing.T) {
	every, one := outbox.AnyLane, outbox.Lane(envelope.Aggregate{Type: "video", ID: "a"})
	for _, tt := range []struct {
		name    string
		lane    int16    // of the claims
		want    []string // process and kind of each trespass
		settled map[string]int64
	}{
		{"as it is", every, nil, map[string]int64{"successor": 2}},
		{"as it is, of one lane", one, nil, map[string]int64{"successor": 2}},
		{"without fence", every, []string{"zombie settled", "successor settled"}, map[string]int64{"zombie": 1, "successor": 1}},
		{"without lease", every, []string{"other taken", "successor taken"}, map[string]int64{"successor": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dsn := storetest.URL(t)
			open := func(name string) *pgxpool.Pool {
				u, err := url.Parse(dsn)
				if err != nil {
					t.Fatal(err)
				}
				query := u.Query()
				query.Set("application_name", name)
				u.RawQuery = query.Encode()
				pool, err := db.Open(t.Context(), u.String(), 1, nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				return pool
			}
			lab := open("lab")
			conn, err := lab.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := watchLanes(t.Context(), conn.Conn(), time.Minute); err != nil {
				t.Fatal(err)
			}
			conn.Release()
			appendEvent := func(version int64) {
				storetest.Append(t, lab, envelope.Message{ID: uuid.Must(uuid.NewV7()), AggregateType: "video", AggregateID: "a", Type: "VideoUpdated", Version: version, OccurredAt: time.Now()})
			}
			appendEvent(1)
			claim := func(name string, lease time.Duration) (outbox.Settlement, *store.Outbox) {
				publisher := store.NewOutbox(open(name))
				claim, err := publisher.ClaimEvents(t.Context(), tt.lane, 10, 1<<20, lease)
				if err != nil {
					t.Fatal(err)
				}
				return outbox.Settlement{Lane: claim.Lane, Token: claim.Token}, publisher
			}
			settle := func(s outbox.Settlement, publisher *store.Outbox) {
				if _, err := publisher.SettleClaim(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			lost, zombie := claim("zombie", time.Millisecond)
			time.Sleep(20 * time.Millisecond)
			held, successor := claim("successor", time.Minute)
			if lost.Token == 0 || held.Token == 0 || held.Lane != lost.Lane {
				t.Fatalf("claims are %+v and %+v, want the same lane", lost, held)
			}
			if tt.name == "without fence" { // they settle as if tokens were not compared
				lost.Token = held.Token
			}
			settle(lost, zombie)
			if tt.name == "without lease" {
				for _, name := range []string{"other", "successor"} {
					execute(t, open(name), fmt.Sprintf("-- name: LeaseLane :one\nUPDATE video_catalog.outbox_lanes SET token = %d WHERE lane = %d", held.Token, held.Lane))
				}
			}
			other, _ := claim("other", time.Minute)
			if tt.name == "without fence" {
				held.Token = other.Token
			}
			settle(held, successor)
			if tt.want == nil {
				appendEvent(2)
				settle(claim("successor", time.Minute))
			}

			conn, err = lab.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			trespasses, err := readTrespasses(t.Context(), conn.Conn())
			if err != nil {
				t.Fatal(err)
			}
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

// A lane is stuck if one claim holds it for longer than a lease can last. It is reported once. A lane with new claims
// is not stuck.
func TestLeasesThatStayAreFound(t *testing.T) {
	t.Parallel()
	seen, start := newLeases(), time.Now()
	var found []leased
	for second := range 30 {
		now := []leased{{1, 7}, {2, int64(second / 3)}}
		if second%5 == 0 {
			now = now[1:] // lane 1 is free for a moment
		}
		if second > 12 {
			now = append(now, leased{3, 9})
		}
		for _, claim := range seen.saw(start.Add(time.Duration(second)*time.Second), now) {
			found = append(found, claim)
			if second <= 12+int(laneStays.Seconds()) {
				t.Errorf("claim %v was found after %d seconds", claim, second)
			}
		}
	}
	if want := []leased{{3, 9}}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

// heldBy counts what is pending or deferred in the lanes that a process holds. A lease that has ended by a changed clock does not
// count.
func TestLeasesAreRead(t *testing.T) {
	pool := storetest.Pool(t, 1)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	c := conn.Conn()
	if err := watchLanes(t.Context(), c, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`UPDATE video_catalog.outbox_lanes SET token = 40 + lane, leased_until = clock_timestamp() + CASE lane
			WHEN 1 THEN interval '1 minute' WHEN 2 THEN interval '-1 ms' WHEN 3 THEN interval '5 s' ELSE interval '-1 day' END`,
		`INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT n % 4, gen_random_uuid(), 'video', 'a', 'VideoUpdated', n, 1, '', now() FROM generate_series(1, 40) n`,
		`INSERT INTO video_catalog.outbox_deferred (lane, seq, id, aggregate_type, aggregate_id, event_type, version, schema_version, payload, occurred_at)
			SELECT 1 + n % 2, 100 + n, gen_random_uuid(), 'video', 'b' || n % 2, 'VideoUpdated', n, 1, '', now() FROM generate_series(1, 12) n`,
		`INSERT INTO chaos.holders (lane, who, held) VALUES (0, 'a', true), (1, 'a', false), (2, 'b', true), (3, 'c', true)`,
	} {
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	got, err := readLeases(t.Context(), c)
	if want := []leased{{3, 43}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("readLeases() = %v, %v, want %v", got, err, want)
	}
	for _, tt := range []struct {
		names []string
		batch int
		want  int
	}{
		{[]string{"a"}, 100, 10}, {[]string{"a"}, 4, 4}, {[]string{"a", "b", "c"}, 100, 36}, {[]string{"b"}, 5, 8}, {[]string{"nobody"}, 100, 0},
	} {
		if n, err := heldBy(t.Context(), c, tt.names, tt.batch); err != nil || n != tt.want {
			t.Errorf("heldBy(%q, %d) = %d, %v, want %d", tt.names, tt.batch, n, err, tt.want)
		}
	}
}
