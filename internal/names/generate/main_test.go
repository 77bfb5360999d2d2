package main

import (
	"maps"
	"os"
	"strings"
	"testing"

	"example.com/videocatalog/internal/names"
)

// What is in the tree is what the files of internal/names say.
func TestNamesAreUpToDate(t *testing.T) {
	t.Chdir("../../..")
	const remedy = "run make generate"
	for path, want := range map[string]string{
		script:            string(render(names.Topics())),
		"cloudbuild.yaml": "  _SERVICE: " + names.Service() + " ",
	} {
		got, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s is stale (%v): %s", path, err, remedy)
		}
	}
}

// The topics and schemas of other services are not created, only subscribed to.
func TestForeignTopics(t *testing.T) {
	t.Parallel()
	script := string(render([]names.Topic{
		{Name: "letter.events", Schema: "letter.proto", Consumers: []string{"post"}, Foreign: true, Project: "other-project"},
		{Name: "order.events", Schema: "order.proto", Consumers: []string{"search"}}, {Name: "cart.events", Schema: "cart.proto", Consumers: []string{"billing"}, Foreign: true},
	}))
	for _, want := range []string{"TOPICS=(order.events)", "SUBSCRIPTIONS=(letter.events.post order.events.search cart.events.billing)", "SCHEMA_FILES=(order.proto)", "REMOTE_TOPICS=(projects/other-project/topics/letter.events)"} {
		if !strings.Contains(script, want) {
			t.Errorf("the script has no %s:\n%s", want, script)
		}
	}
}

// Names that changed are found by their place among those that changed. Nothing is renamed
// where a name was added or removed, nor where names only changed places.
func TestRenamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, before, now string
		want              map[string]string
	}{
		{"the same", "a b", "a b", nil},
		{"one", "a b", "a c", map[string]string{"b": "c"}},
		{"all", "a b", "c d", map[string]string{"a": "c", "b": "d"}},
		{"added in front", "b", "a b", nil},
		{"removed", "a b", "b", nil},
		{"other places", "a b", "b a", nil},
		{"one, and other places", "a b", "b c", map[string]string{"a": "c"}},
	} {
		got := renamed([][]string{strings.Fields(tt.before)}, [][]string{strings.Fields(tt.now)})
		if !maps.Equal(got, tt.want) {
			t.Errorf("%s: renamed = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A name may contain another one, before or after the change: each place gets its own.
func TestReplace(t *testing.T) {
	t.Parallel()
	const text = "order.events, order.events.search, order.events2, orders, of orders.example.com and example.com/orders"
	for _, tt := range []struct {
		to   map[string]string
		want string
	}{
		{
			map[string]string{"order.events": "orders.order.events", "order.events.search": "orders.order.events.search", "orders": "orders"},
			"orders.order.events, orders.order.events.search, order.events2, orders, of orders.example.com and example.com/orders",
		},
		{
			map[string]string{"order.events": "order.events", "order": "thing", "orders": "billing", "order.events.search": "order.events.search"},
			"order.events, order.events.search, thing.events2, billing, of orders.example.com and example.com/orders",
		},
	} {
		if got := string(replace([]byte(text), tt.to)); got != tt.want {
			t.Errorf("replace() =\n%s, want\n%s", got, tt.want)
		}
	}
}
