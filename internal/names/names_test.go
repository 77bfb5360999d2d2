package names_test

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"example.com/videocatalog/internal/names"
)

// There are topics, and their schemas are files.
func TestNames(t *testing.T) {
	t.Parallel()
	if len(names.Topics()) == 0 {
		t.Error("topics has no file, want one per topic")
	}
	for _, topic := range names.Topics() {
		if _, err := os.Stat("../../" + topic.Schema); err != nil {
			t.Errorf("schema of topic %s: %v", topic.Name, err)
		}
	}
}

// A mistake is an error that names the file and the field; all mistakes are reported at
// once. Topics are in the order of their files.
func TestParse(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"names.yaml":        "service: shopping\nerror_domain: shopping.example.com\n",
		"topics/order.yaml": "name: order.events\naggregate_types: [order]\nschema: order.proto\nconsumers: [billing, search]\n",
		"topics/cart.yaml":  "name: cart.events\naggregate_types: [cart]\nschema: cart.proto\n",
		"topics/README.md":  "no topic",
	}
	parse := func(from, to string) (names.Names, error) {
		files := make(fstest.MapFS)
		for name, content := range good {
			files[name] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(content, from, to))}
		}
		return names.Parse(files)
	}
	n, err := parse("", "")
	if err != nil || len(n.Topics) != 2 || n.Topics[0].Name != "cart.events" {
		t.Fatalf("Parse() = %+v, %v, want two topics, cart.events first", n, err)
	}
	if got, want := n.Topics[1].DeadLetters(n.Topics[1].Consumers[1]), "order.events.search.dead"; got != want {
		t.Errorf("dead letters = %q, want %q", got, want)
	}
	if n, err := parse("schema: order.proto", "schema: order.proto\nforeign: true"); err != nil || n.Topics[0].Foreign || !n.Topics[1].Foreign {
		t.Errorf("Parse() = %+v, %v, want order.events to be foreign", n, err)
	}
	if n, err := parse("schema: order.proto", "schema: order.proto\nforeign: true\nproject: other-project"); err != nil || n.Topics[1].Project != "other-project" {
		t.Errorf("Parse() = %+v, %v, want order.events to be of other-project", n, err)
	}
	const cart, order = "topics/cart.yaml: ", "topics/order.yaml: "
	for _, tt := range []struct{ name, from, to, want string }{
		{"unknown field", "service:", "servise:", "names.yaml: "},
		{"topic in names.yaml", "service:", "topics: []\nservice:", "names.yaml: "},
		{"short service", "shopping", "shop", "names.yaml: service"},
		{"long service", "shopping", "a-name-of-21-character", "names.yaml: service"},
		{"upper case", "shopping", "Shopping", "names.yaml: service"},
		{"unknown field of a topic", "consumers:", "consumer:", order},
		{"a list of topics", "name: cart.events", "- name: cart.events", cart},
		{"two topics in a file", "schema: cart.proto\n", "schema: cart.proto\n---\nname: more.events\n", cart + "there is a second document"},
		{"topic's name", "order.events", "1.events", order + "name"},
		{"topic of Google", "order.events", "google.events", order + "name"},
		{"topic twice", "cart.events", "order.events", order + `topic "order.events" is also in topics/cart.yaml`},
		{"aggregate type twice", "[cart]", "[order]", order + `aggregate type "order" is also in topics/cart.yaml`},
		{"no aggregate type", "[cart]", "[]", cart + "aggregate_types"},
		{"consumer's name", "billing", "bill.ing", order + "consumers"},
		{"consumer twice", "billing", "search", order + `subscription "order.events.search"`},
		{"foreign without consumers", "schema: cart.proto", "schema: cart.proto\nforeign: true", cart + "consumers is empty"},
		{"a project of our own topic", "schema: cart.proto", "schema: cart.proto\nproject: other-project", cart + "project is set"},
		{"project's name", "schema: order.proto", "schema: order.proto\nforeign: true\nproject: projects/other", order + `project is "projects/other"`},
		{"no schema", "schema: cart.proto", `schema: ""`, cart + "schema"},
	} {
		_, err := parse(tt.from, tt.to)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", tt.name, err, tt.want)
		}
	}
	_, err = names.Parse(fstest.MapFS{"names.yaml": {Data: []byte("service: x\n")}})
	if err == nil || strings.Count(err.Error(), ".yaml: ") != 2 {
		t.Errorf("error = %v, want the service and the domain in it", err)
	}
}
