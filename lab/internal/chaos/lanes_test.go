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

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
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
			dsn := pgtest.URL(t)
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
				pgtest.Append(t, lab, envelope.Message{ID: uuid.Must(uuid.NewV7()), AggregateType: "video", AggregateID: "a", Type: "VideoUpdated", Version: version, OccurredAt: time.Now()})
			}
			appendEvent(1)
			claim := func(name string, lease time.Duration) (outbox.Settlement, *pg.Outbox) {
				publisher := pg.NewOutbox(open(name))
				claim, err := publisher.ClaimEvents(t.Context(), tt.lane, 10, 1<<20, lease)
				if err != nil {
					t.Fatal(err)
				}
				return outbox.Settlement{Lane: claim.Lane, Token: claim.Token}, publisher
			}
			settle := func(s outbox.Settlement, publisher *pg.Outbox) {
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
