package entity

import (
	"archive/zip"
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// owner makes the service of a replica's owner, and returns its folder.
func owner(t *testing.T, e entity) string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	must(t, err)
	t.Chdir(dir)
	must(t, e.save(new(undo)))
	for path, content := range map[string]string{
		"internal/names/parcel.go":                                   "package names\n\nvar ParcelTopic = add(Topic{\n\tName:      \"parcel.events\",\n\tConsumers: []string{\"parcel-views\"},\n})\n",
		"api/proto/parcel/v1/parcel_event.proto":                     "syntax = \"proto3\";\noption go_package = \"github.com/acme/theirs\";\noption java_package = \"acme.theirs\";\n// Edited by its owner.\n",
		"internal/event/testdata/parcel/01000/ParcelCreated.binpb":   "created",
		"internal/event/testdata/parcel/01004/ParcelCreated.binpb":   "created later",
		"internal/event/testdata/parcel/01000/README.md":             "no sample",
		"internal/event/testdata/other/01000/OtherCreated.binpb":     "of another",
		"internal/event/testdata/parcel_x/01000/ParcelCreated.binpb": "of another",
	} {
		must(t, writeFile(path, []byte(content)))
	}
	t.Chdir(here)
	return dir
}

var parcel = entity{
	Name: "parcel", Plural: "parcels", Migration: 1000,
	Fields:      []field{{Name: "grams", Type: typeInt32, Number: 10, Migration: 1000}, {Name: "label", Type: typeString, Number: 11, Migration: 1004}},
	Transitions: []transition{{From: "packed", To: "shipped", Command: "ship"}},
	Timers:      []stateTimer{{State: "packed", After: "1h", Command: "ship"}}, // a replica has none, and needs no option
}

// A replica has the owner's fields with their numbers, migrations of its own, and copies of
// the contract and the samples. Run again, it adds a migration for what is new.
func TestReplica(t *testing.T) {
	service(t)
	dir := owner(t, parcel)
	first, err := replica("parcel", dir, "")
	must(t, err)
	if first.ReplicaOf != "parcel.events" || !strings.HasSuffix(first.Reader, "-parcel") || first.Migration != 1001 {
		t.Errorf("replica = %+v, want one of parcel.events in migration 1001", first)
	}
	for path, content := range first.copies {
		if strings.Contains(string(content), "theirs") {
			t.Errorf("%s has packages of the owner:\n%s", path, content)
		}
	}
	want := []string{
		"api/proto/parcel/v1/parcel_event.proto",
		"internal/event/testdata/parcel/01000/ParcelCreated.binpb", "internal/event/testdata/parcel/01004/ParcelCreated.binpb",
	}
	same(t, "copies", want, slices.Sorted(maps.Keys(first.copies)))
	if contract := string(first.copies[want[0]]); !strings.Contains(contract, "Edited by its owner") || !strings.Contains(contract, "parcelv1") {
		t.Errorf("contract = %s, want the owner's text with our package", contract)
	}

	must(t, first.save(new(undo)))
	must(t, writeFile("db/migrations/01001_parcels.sql", nil))
	grown := parcel
	grown.Fields = append(grown.Fields, field{Name: "height", Type: typeInt32, Number: 12, Migration: 1009})
	second, err := replica("parcel", owner(t, grown), "")
	must(t, err)
	var got []int
	for _, f := range second.Fields {
		got = append(got, f.Number, f.Migration)
	}
	if diff := cmp.Diff([]int{10, 1001, 11, 1001, 12, 1002}, got); diff != "" || second.Migration != 1001 {
		t.Errorf("numbers and migrations of the fields (-want +got):\n%s", diff)
	}

	changed := parcel
	changed.Fields = []field{{Name: "grams", Type: typeInt64, Number: 10, Migration: 1000}, parcel.Fields[1]}
	renumbered := parcel
	renumbered.Fields = []field{{Name: "grams", Type: typeInt32, Number: 19, Migration: 1000}, parcel.Fields[1]}
	shrunk := parcel
	shrunk.Fields = parcel.Fields[:1]
	for _, test := range []struct {
		theirs entity
		want   string
	}{{changed, `"grams" had another type or number`}, {renumbered, `"grams" had another type or number`}, {shrunk, `"label" is gone`}} {
		if _, err := replica("parcel", owner(t, test.theirs), ""); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("replica() = %v, want %s", err, test.want)
		}
	}
}

// A replica takes the values, the states and the numbers of its owner, and needs no migration for
// them. It remembers the project of the owner's topic.
func TestReplicaGrowsLikeItsOwner(t *testing.T) {
	service(t)
	colored := func(values ...string) entity {
		e := parcel
		e.Fields = append(slices.Clone(parcel.Fields), field{Name: "color", Type: typeEnum, Values: values, Number: 12, Migration: 1004})
		return e
	}
	first, err := replica("parcel", owner(t, colored("red", "green")), "other-project")
	must(t, err)
	topic, err := first.execute("topic.go")
	if err != nil || !strings.Contains(string(topic), "\tForeign:        true,\n\tProject:        \"other-project\",\n") {
		t.Errorf("topic = %s, %v, want the project of its owner", topic, err)
	}
	must(t, first.save(new(undo)))
	must(t, writeFile("db/migrations/01001_parcels.sql", nil))
	more := colored("red", "green", "blue")
	more.Transitions = append(slices.Clone(parcel.Transitions), transition{From: "shipped", To: "lost", Command: "lose"})
	more.LastNumber = 14
	second, err := replica("parcel", owner(t, more), "")
	if err != nil || len(second.Fields[2].Values) != 3 || len(second.States()) != 3 || second.OwnerProject != "other-project" {
		t.Fatalf("replica() = %+v, %v, want three values, three states, and the project of before", second, err)
	}
	same(t, "migrations", []int{1001}, second.allMigrations())
	same(t, "reserved numbers", []string{"13", "14"}, second.Reserved())
	more.Audited, more.Batch = 1007, true
	for range 2 { // the second time it has them already
		third, err := replica("parcel", owner(t, more), "")
		if err != nil || third.Audited != 1002 || third.Batch || !strings.Contains(strings.Join(third.Columns(""), " "), " create_user update_user ") {
			t.Fatalf("replica() = %d, %t, %v, want who wrote a row, by our own migration, and no batches", third.Audited, third.Batch, err)
		}
		must(t, errors.Join(third.save(new(undo)), writeFile("db/migrations/01002_parcels_create_user.sql", nil)))
	}
	if _, err := replica("parcel", owner(t, colored("green", "red")), ""); err == nil || !strings.Contains(err.Error(), `"color" had another type`) {
		t.Errorf("replica() with other numbers of values = %v", err)
	}
}

// Wrong arguments for a replica are refused.
func TestReplicaIsRefused(t *testing.T) {
	service(t)
	dir := owner(t, parcel)
	replicaOfReplica := parcel
	replicaOfReplica.ReplicaOf, replicaOfReplica.Reader = "parcel.events", "x"
	ordersToo := parcel
	ordersToo.Name, ordersToo.Plural = "order", "orders"
	for _, test := range []struct{ name, dir, want string }{
		{"parcel", filepath.Join(dir, "nowhere"), "no entity"},
		{"letter", dir, "no entity"},
		{"parcel", owner(t, replicaOfReplica), "take it from its owner"},
		{"order", owner(t, ordersToo), "an entity \"order\" of its own"},
	} {
		if _, err := replica(test.name, test.dir, ""); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("replica(%s) = %v, want %q", test.name, err, test.want)
		}
	}
	must(t, writeFile("db/queries/parcels.sql", nil))
	if _, err := replica("parcel", dir, ""); err == nil || !strings.Contains(err.Error(), "db/queries/parcels.sql exists") {
		t.Errorf("replica() over a file of the owner = %v", err)
	}
	must(t, os.Remove("db/queries/parcels.sql"))
	e, err := replica("parcel", dir, "")
	must(t, err)
	must(t, e.save(new(undo)))
	for _, project := range []string{"projects/other", "Other-project", "short"} {
		if _, err := replica("parcel", dir, project); err == nil || !strings.Contains(err.Error(), "--project") {
			t.Errorf("replica() of a topic in %q = %v", project, err)
		}
	}
	if _, err := described(t, "parcel", "--fields=grams:int32", "--project=other-project"); err == nil || !strings.Contains(err.Error(), "--project is for replicate") {
		t.Errorf("an entity of our own in another project = %v", err)
	}
	if o, err := parse([]string{"replicate", "parcel", dir, "--project", "other-project"}); err != nil || o.project != "other-project" {
		t.Errorf("parse() = %+v, %v, want the project", o, err)
	}
	if _, err := described(t, "parcel", "--fields=grams:int32 label:string more:string"); err == nil || !strings.Contains(err.Error(), "is a replica") {
		t.Errorf("fields of our own for a replica = %v", err)
	}
}

// The owner of a replica can be a Go module. A version that does not exist is an error.
func TestOwnerIsModule(t *testing.T) {
	proxy := t.TempDir()
	for name, value := range map[string]string{
		"GOPROXY": "file://" + filepath.ToSlash(proxy), "GOSUMDB": "off", "GOMODCACHE": t.TempDir(), "GOFLAGS": "-modcacherw", "GONOPROXY": "none",
	} {
		t.Setenv(name, value)
	}
	const module, version = "acme.example.com/parcels", "v1.2.0"
	var content bytes.Buffer
	archive := zip.NewWriter(&content)
	for name, text := range map[string]string{"go.mod": "module " + module + "\n", "internal/entities/parcel.yaml": "name: parcel\n"} {
		w, err := archive.Create(module + "@" + version + "/" + name)
		must(t, err)
		_, err = w.Write([]byte(text))
		must(t, err)
	}
	must(t, archive.Close())
	versions := filepath.Join(proxy, module, "@v", version)
	for path, text := range map[string][]byte{
		versions + ".info": []byte(`{"Version": "` + version + `"}`), versions + ".mod": []byte("module " + module + "\n"), versions + ".zip": content.Bytes(),
	} {
		must(t, writeFile(path, text))
	}
	dir, err := ownerDir(t.Context(), module+"@"+version)
	must(t, err)
	if text, err := os.ReadFile(filepath.Join(dir, pathOf("parcel"))); err != nil || string(text) != "name: parcel\n" {
		t.Errorf("the module has %q, %v, want the description", text, err)
	}
	if _, err := ownerDir(t.Context(), module+"@v9.9.9"); err == nil || !strings.Contains(err.Error(), "go mod download "+module+"@v9.9.9") {
		t.Errorf("an unknown version: %v, want an error that names it", err)
	}
	if dir, err := ownerDir(t.Context(), "../orders"); dir != "../orders" || err != nil {
		t.Errorf("a folder: %q, %v, want the same", dir, err)
	}
}
