package names_test

import (
	"os"
	"strings"
	"testing"

	"example.com/videocatalog/internal/names"
)

// The schemas of names.yaml are files.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, topic := range names.Topics() {
		if _, err := os.Stat("../../" + topic.Schema); err != nil {
			t.Errorf("schema of topic %s: %v", topic.Name, err)
		}
	}
}

// A mistake is an error that names the field; all mistakes are reported at once.
func TestParse(t *testing.T) {
	t.Parallel()
	const good = `
service: shopping
error_domain: shopping.example.com
topics:
  - {name: order.events, aggregate_types: [order], schema: order.proto, consumers: [billing, search]}
  - {name: cart.events, aggregate_types: [cart], schema: cart.proto}
`
	n, err := names.Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := n.Topics[0].DeadLetters(n.Topics[0].Consumers[1]), "order.events.search.dead"; got != want {
		t.Errorf("dead letters = %q, want %q", got, want)
	}
	for _, tt := range []struct{ name, from, to, want string }{
		{"unknown field", "service:", "servise:", "servise"},
		{"short service", "shopping", "shop", "service"},
		{"long service", "shopping", "a-name-of-21-character", "service"},
		{"upper case", "shopping", "Shopping", "service"},
		{"topic's name", "order.events", "1.events", "topics[0].name"},
		{"topic twice", "cart.events", "order.events", `topic "order.events"`},
		{"aggregate type twice", "[cart]", "[order]", `aggregate type "order"`},
		{"no aggregate type", "[cart]", "[]", "topics[1]"},
		{"consumer's name", "billing", "bill.ing", "topics[0].consumers"},
		{"consumer twice", "billing", "search", `subscription "order.events.search"`},
		{"no schema", "schema: cart.proto", `schema: ""`, "topics[1]"},
	} {
		_, err := names.Parse([]byte(strings.ReplaceAll(good, tt.from, tt.to)))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", tt.name, err, tt.want)
		}
	}
	if _, err := names.Parse([]byte("service: x\n")); err == nil || strings.Count(err.Error(), "names.yaml: ") != 3 {
		t.Errorf("error = %v, want the service, the domain and the topics in it", err)
	}
}
