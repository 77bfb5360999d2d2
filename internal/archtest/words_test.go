package archtest

import (
	"cmp"
	"go/version"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/videocatalog/internal/names"
)

// machineryMigrations matches the migrations of the machinery. The numbers 4, 5 and 9 are the example's, and
// 1000 and above the owner's.
const machineryMigrations = "db/migrations/0000[^459]_*.sql"

// example matches the words of the example, which an owner replaces.
var example = regexp.MustCompile(`(?i)video|(^|[^_])catalog|film`) // pg_catalog is a word of PostgreSQL

// The machinery is the same in every service: it does not have the words of
// the example, except in the files of testdata/words.txt.
func TestMachineryIsEntityBlind(t *testing.T) {
	list, err := os.ReadFile("testdata/words.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for line := range strings.Lines(string(list)) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); name != "" && name != "#" {
			listed[name] = false
		}
	}
	migrations, err := fs.Glob(os.DirFS(root), machineryMigrations)
	if err != nil || len(migrations) == 0 {
		t.Errorf("no file is like %s: %v", machineryMigrations, err)
	}
	for _, dir := range append(slices.Clone(machinery), migrations...) {
		for _, name := range filesWithWords(t, dir) {
			if _, ok := listed[name]; !ok {
				t.Errorf("%s has a word of the example: the machinery is the same for every entity", name)
			}
			listed[name] = true
		}
	}
	for name, found := range listed {
		if !found {
			t.Errorf("%s has no word of the example any more: remove it from testdata/words.txt", name)
		}
	}
}

// filesWithWords returns the sources that match example, below a folder or of one file. The
// module path, which an owner renames with the imports, does not count. The names of
// internal/names and the schemas of PostgreSQL do not count either.
func filesWithWords(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	var schemas []string
	for _, sql := range sqlFiles(t, "db/migrations") {
		for _, m := range createsSchema.FindAllStringSubmatch(sql, -1) {
			schemas = append(schemas, m[1])
		}
	}
	named := namesOfService(names.Service, schemas, names.Topics())
	err := fs.WalkDir(os.DirFS(root), dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == "deploy/terraform" || entry.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".sh", ".sql", ".tmpl", ".yaml"}, path.Ext(name)) {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if example.MatchString(named.ReplaceAllString(strings.ReplaceAll(string(text), module, ""), "")) {
			found = append(found, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// createsSchema matches SQL that makes a schema.
var createsSchema = regexp.MustCompile(`CREATE SCHEMA "?(\w+)`)

// namesOfService matches the names of a service, its schemas, its topics, its
// subscriptions and their dead letters, in any case and with other separators,
// also as a part of a variable or a role. It matches no part of a longer word.
func namesOfService(service string, schemas []string, topics []names.Topic) *regexp.Regexp {
	all := append([]string{service}, schemas...)
	for _, topic := range topics {
		all = append(all, topic.Name)
		for _, consumer := range topic.Consumers {
			all = append(all, topic.Subscription(consumer), topic.Subscription(consumer)+".dead")
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) }) // longest first: an expression takes the first alternative that matches
	separator := regexp.MustCompile(`[^A-Za-z0-9]+`)
	for i, name := range all {
		all[i] = separator.ReplaceAllLiteralString(name, "[._-]")
	}
	return regexp.MustCompile(`(?i)(?:\b|_)(?:` + strings.Join(all, "|") + `)(?:\b|_)`)
}

// A name of the service is found in every form. A word that only looks like a
// name stays.
func TestNamesOfService(t *testing.T) {
	named := namesOfService("my-shop", []string{"shelf"}, []names.Topic{{Name: "order.events", Consumers: []string{"billing"}}})
	for text, want := range map[string]string{
		"my-shop":                    "",
		"my_shop_read":               "read",
		"shelf.outbox":               ".outbox",
		"shelf_rw":                   "rw",
		"MY_SHOP_TEST":               "TEST",
		"TEST_MY_SHOP":               "TEST",
		"order.events":               "",
		"order-events-billing":       "",
		"order.events.billing.dead":  "",
		"order.events.billing.later": ".later",
		"order.events.search":        ".search",
		"my-shops":                   "my-shops",
		"myshop":                     "myshop",
		"order.v1":                   "order.v1",
		"preorder.events":            "preorder.events",
		"order events":               "order events",
	} {
		if got := named.ReplaceAllString(text, ""); got != want {
			t.Errorf("%q without names is %q, want %q", text, got, want)
		}
	}
}

// The go.mod of the root has the oldest Go that works: net/http of an older version ends HTTP/2
// streams at the timeout of a header. Other modules and the pages have the same version, and
// images have the same or a newer version.
func TestOldestGoIsNamedOnce(t *testing.T) {
	goDirective := regexp.MustCompile(`(?m)^go (\S+)$`)
	text, err := os.ReadFile(root + "/go.mod")
	if err != nil || !goDirective.Match(text) {
		t.Fatalf("go.mod has no version of Go: %v", err)
	}
	oldest := string(goDirective.FindSubmatch(text)[1])
	if version.Compare("go"+oldest, "go1.26.7") < 0 {
		t.Errorf("go.mod has go %s, want 1.26.7 or newer", oldest)
	}
	for _, tt := range []struct {
		files, says *regexp.Regexp
		newer       bool // whether the version may be newer
	}{
		{regexp.MustCompile(`(^|/)go\.mod$`), goDirective, false},
		{regexp.MustCompile(`\.md$`), regexp.MustCompile(`\bGo (1[0-9.]*[0-9])( or newer| 或更新)`), false},
		{regexp.MustCompile(`(^|/)(Dockerfile|cloudbuild\.yaml|check\.yml|\.gitlab-ci\.yml)$`), regexp.MustCompile(`\bgolang:([0-9.]+)`), true},
	} {
		found := 0
		err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() && name != "." && name != ".github" && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata") {
				return cmp.Or(err, fs.SkipDir)
			}
			if !tt.files.MatchString(name) {
				return nil
			}
			text, err := os.ReadFile(filepath.Join(root, name))
			for _, said := range tt.says.FindAllSubmatch(text, -1) {
				found++
				if order := version.Compare("go"+string(said[1]), "go"+oldest); order < 0 || order > 0 && !tt.newer {
					t.Errorf("%s has Go %s, and go.mod %s", name, said[1], oldest)
				}
			}
			return err
		})
		if err != nil || found == 0 {
			t.Errorf("files %s: %d versions of Go, error %v", tt.files, found, err)
		}
	}
}
