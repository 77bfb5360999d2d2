package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/store/storetest"
)

// Many more goroutines than a new process has are a leak. No goroutines at all
// are an error of the count.
func TestGoroutinesAreJudged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		found, fresh int
		want         string
	}{
		{40, 30, ""},
		{30 + manyMore, 30, ""},
		{31 + manyMore, 30, string(GoroutineLeaked)},
		{0, 30, string(NotCounted)},
		{30, 0, string(NotCounted)},
	} {
		var got []string
		Routines{Process: "api-1", Found: tt.found, Fresh: tt.fresh}.judge(func(rule Rule, _ string, _ ...any) { got = append(got, string(rule)) })
		if strings.Join(got, ", ") != tt.want {
			t.Errorf("%d beside %d: %q, want %q", tt.found, tt.fresh, got, tt.want)
		}
	}
}

// A process with too many connections is found, and so is a transaction that
// stays open.
func TestConnectionsAreCounted(t *testing.T) {
	pool := storetest.Pool(t, 4)
	looks, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer looks.Release()
	for _, name := range []string{"api-1", "api-1", "api-2"} {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if _, err := conn.Exec(t.Context(), "SET application_name = '"+name+"'"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
	}
	connections, open, err := readConnections(t.Context(), looks.Conn())
	if want := map[string]int{"api-1": 2, "api-2": 1}; err != nil || !maps.Equal(connections, want) || len(open) > 0 {
		t.Errorf("readConnections() = %v, %q, %v, want %v and nothing that stands open", connections, open, err, want)
	}
	if got := tooMany(connections, []string{"open"}, 1); len(got) != 2 || !strings.Contains(got[0], "api-1") || got[1] != "open" {
		t.Errorf("tooMany() = %q, want api-1 and what stands open", got)
	}
	if got := tooMany(connections, nil, 2); len(got) != 0 {
		t.Errorf("tooMany() = %q, want nothing", got)
	}
}

// After a failure, the directory has every message with the time when the broker
// accepted it, even without a receiver. It also has the reads, the copies of
// watchers and the acks.
func TestHistoryIsDumped(t *testing.T) {
	t.Parallel()
	dir, h := t.TempDir(), sound()
	h.Publications["unheard"] = time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)
	h.Acks = []Ack{{Published: h.Publications["unheard"], At: h.Publications["unheard"].Add(time.Second)}}
	if err := h.dump(dir); err != nil {
		t.Fatal(err)
	}
	lines := func(name string) []string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	var messages []string
	for _, line := range lines("heard.jsonl") {
		var m heard
		if err := json.Unmarshal([]byte(line), &m); err != nil || !m.Taken.Equal(h.Publications[m.Message]) || m.Heard != (m.Event != uuid.Nil) {
			t.Errorf("%s, %v; taken at %s", line, err, h.Publications[m.Message])
		}
		messages = append(messages, fmt.Sprint(m.Message, " ", m.Heard))
	}
	if want := []string{"1 true", "2 true", "3 true", "4 true", "5 true", "6 true", "unheard false"}; !slices.Equal(messages, want) {
		t.Errorf("messages: got %q, want %q", messages, want)
	}
	if reads := lines("reads.jsonl"); len(reads) != 2 || !strings.Contains(reads[0], `"Asked":2`) {
		t.Errorf("reads: %q, want 2", reads)
	}
	if copies := lines("copies.jsonl"); len(copies) != 1 || !strings.Contains(copies[0], uuid.UUID{0: 1}.String()) {
		t.Errorf("copies: %q, want one, with its entries", copies)
	}
	if acks, want := lines("acks.jsonl"), []string{`{"Published":"2026-01-02T03:04:06Z","At":"2026-01-02T03:04:07Z"}`}; !slices.Equal(acks, want) {
		t.Errorf("acks: %q, want %q", acks, want)
	}
}
