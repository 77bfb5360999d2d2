package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The list in the tree is that of the functions in the tree.
func TestRegistrationsAreUpToDate(t *testing.T) {
	t.Chdir("../../..")
	want, err := render(folder)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(list)
	if err != nil || string(got) != string(want) {
		t.Errorf("%s is stale (%v): run make generate", list, err)
	}
}

// A function is listed for its signature alone, in the order of the names.
func TestRender(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"b.go": `package main
func carts(_ config, _ *pgxpool.Pool) registration { return registration{} }
func albums(config, *pgxpool.Pool) (made registration) { return }
func twoPools(a, b *pgxpool.Pool) registration { return registration{} }
func otherResult(cfg config, queries *pgxpool.Pool) []registration { return nil }
func withError(cfg config, queries *pgxpool.Pool) (registration, error) { return registration{}, nil }
func noResult(cfg config, queries *pgxpool.Pool) {}
func generic[T any](cfg config, queries *pgxpool.Pool) registration { return registration{} }
func (c config) method(cfg config, queries *pgxpool.Pool) registration { return registration{} }
`,
		"a.go":      "package main\nfunc orders(c config, pool *pgxpool.Pool) registration { return missing }\n",
		"a_test.go": "package main\nfunc fakes(cfg config, queries *pgxpool.Pool) registration { return registration{} }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := render(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^\t\t(\w+)\(cfg, queries\),$`).FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	if want := []string{"albums", "carts", "orders"}; !slices.Equal(got, want) {
		t.Errorf("listed functions = %q, want %q; the file is\n%s", got, want, text)
	}
	if err := os.WriteFile(filepath.Join(dir, "broken.go"), []byte("package"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := render(dir); err == nil {
		t.Error("render() of a file that does not parse = nil, want its error")
	}
}
