package pg_test

import (
	"encoding/json"
	"testing"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
)

// The JSON of a blocked aggregate names its ids as the log and the attributes of a message do.
func TestBlockedNamesIDsAsTheLogDoes(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(pg.Blocked{Aggregate: envelope.Aggregate{Type: "note", ID: "7"}})
	pgtest.Must(t, err)
	var got map[string]any
	pgtest.Must(t, json.Unmarshal(text, &got))
	if _, short := got["id"]; short || got[envelope.AttrAggregateType] != "note" || got[envelope.AttrAggregateID] != "7" {
		t.Errorf("JSON = %s, want %s and %s, and no id", text, envelope.AttrAggregateType, envelope.AttrAggregateID)
	}
}
