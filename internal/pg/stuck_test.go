package pg_test

import (
	"encoding/json"
	"testing"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
)

// The JSON of a blocked aggregate names its ids as the log and the attributes of a message do.
func TestBlockedNamesIDsAsTheLogDoes(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(pg.Blocked{Aggregate: envelope.Aggregate{Type: "note", ID: "7"}})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if _, short := got["id"]; short || got[envelope.AttrAggregateType] != "note" || got[envelope.AttrAggregateID] != "7" {
		t.Errorf("JSON = %s, want %s and %s, and no id", text, envelope.AttrAggregateType, envelope.AttrAggregateID)
	}
}
