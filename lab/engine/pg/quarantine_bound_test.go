package pg_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// leaveRoom changes the stored size of the quarantine, as if other messages had left room bytes.
func leaveRoom(t *testing.T, pool *pgxpool.Pool, room int) {
	t.Helper()
	execute(t, pool, "INSERT INTO video_catalog_read.quarantine_size (bytes) SELECT $1 - coalesce(sum(bytes), 0) FROM video_catalog_read.quarantine_size", pg.QuarantineBytes-room)
}

// checkQuarantineSize checks that the stored size is the sum of all sizes, plus others.
func checkQuarantineSize(t *testing.T, pool *pgxpool.Pool, others int) {
	t.Helper()
	kept := count(t, pool, "SELECT coalesce(sum(bytes), 0) FROM video_catalog_read.quarantine_size")
	sum := count(t, pool, "SELECT coalesce(sum(coalesce(octet_length(payload), 0) + octet_length(attributes::text) + octet_length(reason)), 0) FROM video_catalog_read.quarantine")
	if kept != sum+others {
		t.Errorf("size of the quarantine = %d, want %d", kept, sum+others)
	}
}

// heavy returns a large message that cannot be decoded.
func heavy(n int) envelope.Quarantined {
	m := quarantined(fmt.Sprint(n))
	m.Payload = bytes.Repeat([]byte{byte(n)}, 16<<10)
	m.Reason = strings.Repeat("é", 2_000)
	m.Attributes["long"] = strings.Repeat("x", 1_000)
	m.Attributes[envelope.AttrVersion] = strings.Repeat("1", 1_000)
	return m
}

// However many messages are quarantined at once, the quarantine keeps payloads up to its
// bound. Of each further message it keeps the parts that identify it. It refuses none,
// and deleted messages make room.
func TestQuarantineIsBounded(t *testing.T) {
	t.Parallel()
	const messages, workers, bound = 200, 4, 1 << 20
	pool := pgtest.Pool(t, workers)
	inbox := pg.NewInbox(pool)
	const others = pg.QuarantineBytes - bound
	leaveRoom(t, pool, bound)
	setAside := func(n int) {
		must(t, inbox.Quarantine(t.Context(), "consumer", heavy(n)))
	}
	for range 2 { // every message is delivered twice
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for n := worker; n < messages; n += workers {
					setAside(n)
				}
			})
		}
		wg.Wait()
	}
	checkQuarantineSize(t, pool, others)
	rows, err := listWhole(t, inbox, "consumer")
	if err != nil || len(rows) != messages {
		t.Fatalf("ListQuarantine() = %d messages, %v, want %d", len(rows), err, messages)
	}
	whole, wholeBytes := 0, 0
	for _, row := range rows {
		var n int
		_, err := fmt.Sscan(row.MessageID, &n)
		must(t, err)
		want := pg.Quarantined{Quarantined: heavy(n)}
		if row.Payload != nil {
			whole++
			wholeBytes += len(row.Payload)
		} else {
			want.PayloadSize, want.PayloadSHA256 = int64(len(want.Payload)), fmt.Sprintf("%x", sha256.Sum256(want.Payload))
			want.Payload = nil
			want.Reason = strings.Repeat("é", 500)
			delete(want.Attributes, "long")
			want.Attributes[envelope.AttrVersion] = strings.Repeat("1", 100)
		}
		same(t, fmt.Sprint("message ", n), want, row, ignoreReceived)
	}
	const message = 24 << 10 // more bytes than one message has
	if wholeBytes > bound+workers*message || wholeBytes < bound/2 {
		t.Errorf("%d payloads are kept with %d bytes, want about %d", whole, wholeBytes, bound)
	}
	t.Logf("%d of %d messages are whole", whole, messages)

	// Messages without a payload count as well, so there is no room before they are deleted. Calls at the same time
	// also keep a few more whole messages than the bound allows.
	for _, row := range rows {
		if row.Payload == nil || row.ID%2 == 0 {
			must(t, discard(t, inbox, row.ID))
		}
	}
	checkQuarantineSize(t, pool, others)
	setAside(messages)
	kept, err := listWhole(t, inbox, "consumer")
	if last := kept[len(kept)-1]; err != nil || last.ID <= rows[len(rows)-1].ID || last.Payload == nil {
		t.Errorf("after some were deleted the last message is %d, %v, want a new one, whole", last.ID, err)
	}
	checkQuarantineSize(t, pool, others)
}

// Quarantine does not wait for an open transaction.
func TestQuarantineWaitsForNobody(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 2)
	inbox := pg.NewInbox(pool)
	setAside := func(n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		must(t, inbox.Quarantine(ctx, "consumer", heavy(n)))
	}
	setAside(1)
	person, err := pool.Begin(t.Context())
	must(t, err)
	execute(t, person, "DELETE FROM video_catalog_read.quarantine")
	setAside(2)
	checkQuarantineSize(t, pool, 0)
	must(t, person.Commit(t.Context()))
	setAside(3)
	checkQuarantineSize(t, pool, 0)
	pgtest.WantCount(t, pool, 2, "rows of the sum, one for each transaction at a time", "SELECT count(*) FROM video_catalog_read.quarantine_size")
}

// A message that alone is larger than the bound is kept without its payload,
// and one more byte than there is room for is too much.
func TestQuarantineIsFullAtItsBound(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	inbox := pg.NewInbox(pool)
	for i, tt := range []struct {
		room int // beyond the message
		want bool
	}{{0, true}, {-1, false}, {0, true}, {-1 << 30, false}} {
		m := envelope.Quarantined{MessageID: fmt.Sprint(i), Payload: []byte("payload"), Reason: "reason"}
		leaveRoom(t, pool, len("payload")+len("{}")+len("reason")+tt.room)
		must(t, inbox.Quarantine(t.Context(), "consumer", m))
		if got := count(t, pool, "SELECT count(payload) FROM video_catalog_read.quarantine WHERE message_id = $1", m.MessageID) == 1; got != tt.want {
			t.Errorf("message %d, with %d bytes of room left: whole = %t, want %t", i, tt.room, got, tt.want)
		}
	}
}

// Old messages of every consumer are deleted, the oldest first, and at most maxRows
// at a time. Younger messages stay.
func TestQuarantineIsPruned(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, 1)
	inbox := pg.NewInbox(pool)
	for n := range 7 {
		must(t, inbox.Quarantine(t.Context(), fmt.Sprint("consumer", n%2), quarantined(fmt.Sprint(n))))
	}
	execute(t, pool, "UPDATE video_catalog_read.quarantine SET received_at = now() - interval '2 hours' WHERE message_id < '5'")
	for _, want := range []int64{3, 2, 0} {
		if n, err := inbox.PruneQuarantine(t.Context(), time.Hour, 3); n != want || err != nil {
			t.Errorf("PruneQuarantine() = %d, %v, want %d, nil", n, err, want)
		}
		checkQuarantineSize(t, pool, 0)
	}
	same(t, "messages", []string{"5", "6"}, column(t, pool, "SELECT message_id FROM video_catalog_read.quarantine ORDER BY id"))
}
