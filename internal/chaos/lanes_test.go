package chaos

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/internal/store/storetest"
)

// A zombie settles after its lane was taken over, and somebody else asks for a
// lane that is leased. That is no trespass while fence and lease are there, and
// one as soon as either is taken out of the SQL of the service.
func TestLanesAreWatched(t *testing.T) {
	for _, tt := range []struct {
		name               string
		function, from, to string
		want               []string // who, what
	}{
		{"as it is", "video.outbox_settle", "", "", nil},
		{"without fence", "video.outbox_settle", " AND lease_token = token", "", []string{"zombie settled", "successor settled"}},
		{"without lease", "video.outbox_claim", "free.leased_until < now()", "true", []string{"other taken"}},
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
			breakFunction(t, lab, tt.function, tt.from, tt.to)
			conn, err := lab.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := watchLanes(t.Context(), conn.Conn(), time.Minute); err != nil {
				t.Fatal(err)
			}
			conn.Release()
			execute(t, lab, `SELECT video.outbox_append($1, 'video', 'a', 'VideoUpdated', 1, 1, '', now(), NULL)`, uuid.Must(uuid.NewV7()).String())
			claim := func(name string, lease time.Duration) (event.Settlement, *store.Videos) {
				publisher := store.NewVideos(open(name), nil)
				claim, err := publisher.ClaimEvents(t.Context(), 10, 1<<20, lease)
				if err != nil {
					t.Fatal(err)
				}
				return event.Settlement{Lane: claim.Lane, Token: claim.Token}, publisher
			}
			settle := func(s event.Settlement, publisher *store.Videos) {
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
			if tt.name != "without lease" {
				settle(lost, zombie)
			}
			claim("other", time.Minute)
			settle(held, successor)

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
		})
	}
}

// breakFunction takes something out of a function of the service.
func breakFunction(t *testing.T, pool *pgxpool.Pool, function, from, to string) {
	t.Helper()
	if from == "" {
		return
	}
	var definition string
	if err := pool.QueryRow(t.Context(), `SELECT pg_get_functiondef($1::regproc)`, function).Scan(&definition); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(definition, from); n != 1 {
		t.Fatalf("%s has %q %d times, want once: adapt the test to the function", function, from, n)
	}
	execute(t, pool, strings.Replace(definition, from, to, 1))
}
