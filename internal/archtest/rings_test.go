package archtest

import (
	"slices"
	"testing"
)

// The rings of the tree, as README.md lists them. A folder belongs to the ring
// of the longest path that it is below.
var rings = map[string][]string{
	"yours": {"api", "cmd/server", "db", "internal/app", "internal/domain", "internal/event", "internal/operate", "internal/search", "internal/server", "internal/store"},
	"machinery": {
		"cmd/new",
		"cmd/dev", "cmd/entity", "cmd/upgrade", "deploy", "internal/consumer", "internal/envelope", "internal/localtopics",
		"internal/admin", "internal/aip", "internal/names", "internal/outbox", "internal/port", "internal/problem", "internal/reconnect", "internal/store/storetest", "internal/telemetry",
		"internal/auth", // last: what follows it would look like a key to the scan for secrets
	},
	"options": {"options"}, // may be missing
}

// inwards are the rings that a ring may import besides itself.
var inwards = map[string][]string{
	"yours":     {"machinery", "options"}, // see TestOptionsStandAlone
	"options":   {"machinery", "yours"},
	"machinery": {},
}

// outwards are the imports that still go outwards, with the reason. Remove an
// entry with its last import; add none.
var outwards = map[string]string{
	"deploy/smoke imports api":                        "the smoke test calls the contract",
	"internal/store/storetest imports db":             "a database of a test has the schema",
	"internal/store/storetest imports internal/store": "an event of a test is appended by the query of the service",
	"internal/localtopics imports api":                "topics have the schemas of the contract",
}

// A ring imports only inwards, and every package has a ring.
func TestRingsImportInwards(t *testing.T) {
	for _, f := range source(t) {
		from, _ := ringOf(f.dir)
		if from == "" {
			t.Errorf("%s belongs to no ring", f.dir)
		}
		if f.test {
			continue
		}
		for _, used := range f.ours {
			to, folder := ringOf(used)
			if to == from || slices.Contains(inwards[from], to) {
				continue
			}
			_, user := ringOf(f.dir)
			if within(f.dir, "deploy") {
				user = f.dir
			}
			edge := user + " imports " + folder
			if _, ok := outwards[edge]; !ok {
				t.Errorf("%s: %s, from %s outwards to %s", f.path, edge, from, to)
			}
		}
	}
}

// ringOf returns the ring of a folder, and the path that decides it.
func ringOf(dir string) (ring, folder string) {
	for name, folders := range rings {
		for _, f := range folders {
			if within(dir, f) && len(f) > len(folder) {
				ring, folder = name, f
			}
		}
	}
	return ring, folder
}
