package entity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// slowMake is the environment variable with the path of a file that exists once the slow make has begun to write.
const slowMake = "ENTITY_TEST_STARTED"

// TestMain runs this program as a slow make, if a test wants that: its child writes for ten
// seconds, as a slow buf would.
func TestMain(m *testing.M) {
	started := os.Getenv(slowMake)
	switch {
	case started == "":
		os.Exit(m.Run())
	case len(os.Args) > 1 && os.Args[1] == "child":
		for range 1000 {
			for _, path := range []string{"api/proto/parcel/v1/parcel.pb.go", "api/openapi.json", started} {
				if err := writeFile(path, []byte(time.Now().String())); err != nil {
					panic(err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	default:
		if out, err := exec.Command(os.Args[0], "child").CombinedOutput(); err != nil {
			panic(fmt.Sprint(err, string(out)))
		}
	}
}

// service makes a folder with a description of orders, which is the working directory of
// the test.
func service(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	e := entity{
		Name: "order", Plural: "orders", Migration: 1000,
		Fields:      []field{{Name: "title", Type: typeString, Number: 10, Migration: 1000}, {Name: "color", Type: typeEnum, Values: []string{"red", "green"}, Number: 11, Migration: 1000}},
		Transitions: []transition{{From: "draft", To: "placed", Command: "place"}},
	}
	for path, content := range map[string]string{
		"go.mod": "module example.com/shop\n", "internal/names/names.go": "package names\n\nconst (\n\tService     = \"shop\"\n\tErrorDomain = \"shop.example.com\"\n)\n",
		"db/migrations/00001_roles.sql": "CREATE SCHEMA shop_db;\n", "sqlc.yaml": "", "db/migrations/01000_orders.sql": "-- as it was\n", "api/openapi.json": "{}",
	} {
		must(t, writeFile(path, []byte(content)))
	}
	must(t, e.save(new(undo)))
}

// all returns the files of the working directory.
func all(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := read([]string{"."})
	must(t, err)
	return files
}

// A description grows at its end only, whatever the order in the command line: numbers of
// fields and of events never change.
func TestDescriptionGrowsAtItsEnd(t *testing.T) {
	service(t)
	must(t, writeFile("db/migrations/01007_other.sql", nil))
	e, err := described(t, "order", "--fields=note:string? color:enum(red,green) title:string", "--transitions=placed→draft:reopen draft→placed:place")
	must(t, err)
	var got []string
	for _, f := range e.Fields {
		got = append(got, fmt.Sprint(f.Name, " ", f.Number, " ", f.Migration))
	}
	same(t, "fields", []string{"title 10 1000", "color 11 1000", "note 12 1008"}, got)
	last := e.Events()[len(e.Events())-1]
	if e.States()[0].Name != "draft" || last.Go != "OrderReopened" || last.Number != 21 {
		t.Errorf("the first state is %s, and the last event %+v, want draft and OrderReopened with the next number", e.States()[0].Name, last)
	}
}

// A description keeps the parts that databases and events have, and the lists that are not given. Timers can be removed.
func TestDescriptionsOnlyGrow(t *testing.T) {
	service(t)
	const fields, transitions = "--fields=title:string color:enum(red,green)", "--transitions=draft→placed:place"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--fields=color:enum(red,green)"}, `field "title" is gone`},
		{[]string{"--fields=title:int64 color:enum(red,green)"}, `field "title" had another type, or other rules`},
		{[]string{"--fields=title:string! color:enum(red,green)"}, `field "title" had another type, or other rules`},
		{[]string{"--fields=title:string color:enum(red,blue)"}, `field "color": the value "green" is gone`},
		{[]string{"--fields=title:string color:enum(red,green)!"}, `field "color" had another type, or other rules`},
		{[]string{fields, "--transitions=draft→placed:submit"}, `transition draft→placed:place is gone`},
		{[]string{fields, "--transitions=placed→sent:send draft→sent:place"}, `transition draft→placed:place is gone`},
		{[]string{fields, transitions + " placed→sent:place"}, `the command "place" leads to placed too`},
		{[]string{fields, "--transitions=placed→draft:reopen draft→placed:place placed→reopened:drop"}, `its event would be OrderReopened`},
		{[]string{"--fields=title:string color:enum(red,green) note:string!"}, `field "note" cannot be required`},
		{[]string{fields + " owner_id:uuid", "--refs=owner_id"}, `--refs owner_id: an entity that exists gets a filter by hand`},
		{[]string{fields, "--plural=orderings"}, `the plural of order is orders, and cannot change`},
	} {
		if _, err := described(t, append([]string{"order"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q = %v, want an error with %q", c.args, err, c.want)
		}
	}
	must(t, writeFile("options/reactions/README.md", nil))
	for _, c := range []struct {
		flags  []string
		timers int
	}{{[]string{fields, "--timers=draft:15m:place"}, 1}, {nil, 1}, {[]string{"--timers=none"}, 0}, {nil, 0}} {
		e, err := described(t, append([]string{"order"}, c.flags...)...)
		if err != nil || len(e.Fields) != 2 || len(e.Transitions) != 1 || len(e.Timers) != c.timers {
			t.Errorf("%q = %v, %v, %v, %v, want the other lists of before, and %d timers", c.flags, e.Fields, e.Transitions, e.Timers, err, c.timers)
		}
		must(t, e.save(new(undo)))
	}
}

// The flags are recorded, and stay when they are not given. --audited adds columns by a migration of its own, and they are in the
// row, the event, the resource and the view. Without a flag nothing of it is rendered.
func TestFlags(t *testing.T) {
	service(t)
	rendered := func(e entity) string {
		e.Model, e.ViewModel = "Model", "ViewModel"
		var text strings.Builder
		for _, f := range e.files() {
			content, err := e.content(f)
			must(t, err)
			text.Write(content)
		}
		return text.String()
	}
	e, err := described(t, "order")
	if text := rendered(e); err != nil || strings.Contains(text, "reate_user") || strings.Contains(text, "CreateUser") || strings.Contains(strings.ToLower(text), "batch") {
		t.Errorf("without flags: %v, and users or batches are rendered", err)
	}
	e, err = described(t, "order", "--audited")
	if err != nil || e.Audited != 1001 || e.Batch {
		t.Fatalf("--audited = %d, %t, %v, want the next migration", e.Audited, e.Batch, err)
	}
	must(t, errors.Join(e.writeMigrations(new(undo)), e.save(new(undo))))
	contains(t, "db/migrations/01001_orders_create_user.sql",
		"ALTER TABLE shop_db.orders ADD COLUMN create_user text NOT NULL DEFAULT '';", "ALTER TABLE shop_db_read.order_projection ADD COLUMN update_user")
	text := rendered(e)
	for _, part := range []string{
		"  string create_user = 8 [(google.api.field_behavior) = OUTPUT_ONLY];", "    string update_user = 9;", "CreateUser: stamp.Caller,",
		"pg.Escape(v.UpdateUser),", "snapshot.GetCreateUser(),", "o.UpdateTime, o.UpdateUser = now, stamp.Caller", "Consumers see both",
	} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.TrimSpace(part)) {
			t.Errorf("nothing rendered has %q", part)
		}
	}
	e, err = described(t, "order", "--batch", "--fields=title:string color:enum(red,green) note:string?")
	if err != nil || e.Audited != 1001 || !e.Batch || e.Fields[2].Migration != 1002 {
		t.Errorf("--batch = %d, %t, %v, %v, want the flag of before, too", e.Audited, e.Batch, e.Fields, err)
	}
	if text := rendered(e); !strings.Contains(text, `post: "/v1/orders:batchCreate"`) || !strings.Contains(text, `{get: "/v1/orders:batchGet"}`) || !strings.Contains(text, "-- name: InsertRequests :exec") {
		t.Error("--batch renders no batches")
	}
	same(t, "migrations", []int{1000, 1001, 1002}, e.Migrations())
	before := columns{entity: e, Number: 1001}.Before()
	same(t, "columns before --audited", []string{"id", "title", "color", "state", "version", "create_time", "update_time", "delete_time"}, before.Columns("", "id"))
	for _, name := range []string{"create_user", "update_user"} {
		if err := Check("order", "orders", name+":string", "", "", "", false); err != nil {
			t.Errorf("a field %s without --audited = %v", name, err)
		}
		if err := Check("order", "orders", name+":string", "", "", "", true); err == nil || !strings.Contains(err.Error(), "--audited needs this name") {
			t.Errorf("a field %s with --audited = %v, want it refused", name, err)
		}
	}
}

// Entities with batches share files. The second one takes the files of the first, with its edits.
func TestBatchesShareFiles(t *testing.T) {
	service(t)
	for _, args := range [][]string{{"order", "--batch"}, {"parcel", "--fields=title:string", "--batch"}, {"order"}} {
		e, err := described(t, args...)
		must(t, err)
		e.only = []string{"db/queries/requests.sql"}
		if found := written(t, &e); len(found.merged)+len(found.removed)+len(found.conflicts) > 0 {
			t.Errorf("%q: %+v, want no merge", args, found)
		}
		contains(t, "db/queries/requests.sql", "INSERT INTO shop_db.requests (")
		must(t, e.save(new(undo)))
		if args[0] == "order" { // its owner edits the file
			must(t, writeFile("db/queries/requests.sql", []byte("-- mine\nINSERT INTO shop_db.requests (")))
		}
	}
}

// New states and new values of enums come last, so that the numbers of the old ones stay. One
// migration replaces the constraints of their columns, and the next migration validates the
// constraints. A column that was added later has no constraint.
func TestStatesAndValuesGrow(t *testing.T) {
	service(t)
	const transitions = "--transitions=placed→sent:send draft→placed:place"
	e, err := described(t, "order", "--fields=note:string? color:enum(blue,green,red) title:string", transitions)
	must(t, err)
	same(t, "states", []string{"draft", "placed", "sent"}, e.stateNames())
	same(t, "values", []string{"red", "green", "blue"}, e.Fields[1].Values)
	must(t, e.writeMigrations(new(undo)))
	contains(t, "db/migrations/01001_orders_note.sql",
		"ADD COLUMN note text;", "DROP CONSTRAINT orders_state_check;", "\tCHECK (state IN ('draft', 'placed', 'sent')) NOT VALID;",
		"\tCHECK (color IN ('', 'red', 'green', 'blue')) NOT VALID;", "\tCHECK (color IN ('', 'red', 'green'));")
	contains(t, "db/migrations/01002_orders_color_valid.sql",
		"VALIDATE CONSTRAINT orders_state_check;", "VALIDATE CONSTRAINT orders_color_check;", "'sent')) NOT VALID;")
	must(t, e.save(new(undo)))

	again, err := load(pathOf("order"))
	must(t, err)
	before := all(t)
	if err := again.writeMigrations(new(undo)); err != nil || cmp.Diff(before, all(t)) != "" {
		t.Errorf("writeMigrations() of the same description = %v, and it wrote files", err)
	}
	e, err = described(t, "order", "--fields=note:string? color:enum(red,green,blue) title:string", transitions+" sent→lost:lose")
	must(t, err)
	must(t, e.writeMigrations(new(undo)))
	for _, path := range []string{"db/migrations/01003_orders_state_values.sql", "db/migrations/01004_orders_state_valid.sql"} {
		if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "orders_state_check") || strings.Contains(string(text), "color") {
			t.Errorf("%s = %s, %v, want the states alone", path, text, err)
		}
	}
	if text, err := os.ReadFile(pathOf("order")); err != nil || !strings.Contains(string(text), "\n    migration: 1002\n") {
		t.Errorf("the description = %s, %v, want the migrations in lines of their own, as an upgrade reads them", text, err)
	}
}

// A type that was made without states has no column for them.
func TestFirstStatesAreRefused(t *testing.T) {
	service(t)
	e, err := load(pathOf("order"))
	must(t, err)
	e.Transitions = nil
	must(t, e.save(new(undo)))
	if _, err := described(t, "order", "--fields=title:string color:enum(red,green)", "--transitions=draft→placed:place"); err == nil || !strings.Contains(err.Error(), "order was made without states") {
		t.Errorf("the first states of a type = %v", err)
	}
}

// The names of constraints are those that PostgreSQL chooses.
func TestConstraintNames(t *testing.T) {
	long := strings.Repeat("a", 32)
	for _, c := range []struct{ plural, column, want string }{
		{"orders", "state", "orders_state_check"},
		{long, strings.Repeat("b", 40), strings.Repeat("a", 28) + "_" + strings.Repeat("b", 28) + "_check"},
		{long, strings.Repeat("b", 25), strings.Repeat("a", 31) + "_" + strings.Repeat("b", 25) + "_check"},
	} {
		if got := (columns{entity: entity{Plural: c.plural}}).Constraint(c.column); got != c.want || len(got) > 63 {
			t.Errorf("Constraint(%s, %s) = %s, want %s", c.plural, c.column, got, c.want)
		}
	}
}

// The number of a field that somebody removed from the description is never used again, even if it
// was the highest. The messages reserve it.
func TestNumbersAreNotReused(t *testing.T) {
	service(t)
	e, err := load(pathOf("order"))
	must(t, err)
	must(t, e.save(new(undo)))
	e, err = described(t, "order", "--fields=title:string color:enum(red,green) note:string weight:int32")
	must(t, err)
	e.Fields = append(e.Fields[:1], e.Fields[2]) // without color, 11, and weight, 13
	must(t, e.save(new(undo)))
	e, err = described(t, "order", "--fields=title:string note:string height:int32")
	must(t, err)
	if last := e.Fields[len(e.Fields)-1]; last.Name != "height" || last.Number != 14 {
		t.Errorf("the new field is %+v, want the number 14", last)
	}
	for _, name := range []string{"resource.proto", "event.proto"} {
		if text, err := e.execute(name); err != nil || !strings.Contains(string(text), "reserved 11, 13;") {
			t.Errorf("%s = %s, %v, want it to reserve 11 and 13", name, text, err)
		}
	}
}

// A migration of an earlier run is never written again: it may have another number now.
func TestMissingMigrationIsNotMadeAgain(t *testing.T) {
	service(t)
	e, err := described(t, "order", "--fields=title:string color:enum(red,green) note:string")
	must(t, err)
	must(t, os.Rename("db/migrations/01000_orders.sql", "db/migrations/01009_orders.sql"))
	if err := e.writeMigrations(new(undo)); err == nil || !strings.Contains(err.Error(), "no file with the number 01000 of order") {
		t.Errorf("writeMigrations() = %v, want an error that names the migration", err)
	}
}

// Two branches may have given one number to two migrations. Every command says how to renumber.
func TestNumberOfTwoMigrationsIsRefused(t *testing.T) {
	service(t)
	must(t, writeFile("db/migrations/01000_parcels.sql", []byte("-- of another branch\n")))
	for _, args := range [][]string{{"add", "box", "--fields=title:string"}, {"render"}, {"replicate", "box", "../boxes"}} {
		err := run(t.Context(), args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "git mv db/migrations/01000_parcels.sql db/migrations/01001_parcels.sql\nand write 1001 for 1000 in its description in internal/entities") {
			t.Errorf("%q = %v, want how to renumber", args, err)
		}
	}
}

// A run that fails leaves every file as it was.
func TestFailureLeavesNothing(t *testing.T) {
	service(t)
	before := all(t)
	for _, args := range [][]string{
		{"add", "parcel", "--fields=title:string"}, // a new one
		{"add", "order", "--fields=title:string color:enum(red,green) note:string"},
		{"render"},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out); err == nil || !strings.Contains(err.Error(), "generate Go from them") {
			t.Fatalf("%q = %v, want it to fail because the folder has no tools", args, err)
		}
		if !strings.Contains(out.String(), "messages, migration, queries") {
			t.Errorf("%q failed before it wrote a file:\n%s", args, &out)
		}
		same(t, fmt.Sprintf("%q left", args), before, all(t))
		if _, err := os.Stat("api/proto"); err == nil {
			t.Errorf("%q left folders", args)
		}
	}
}

// An interrupted run leaves every file as it was, and no program that it started is running.
func TestInterruptLeavesNothing(t *testing.T) {
	service(t)
	before := all(t)
	// This program stands for make: see TestMain.
	program, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	must(t, os.Symlink(program, filepath.Join(dir, "make")))
	started := filepath.Join(dir, "started")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv(slowMake, started)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"add", "parcel", "--fields=title:string"}, io.Discard) }()
	for waiting := true; waiting; {
		select {
		case err := <-ended:
			t.Fatalf("the run ended before it was interrupted: %v", err)
		case <-time.After(time.Millisecond):
			_, err := os.Stat(started)
			waiting = err != nil
		}
	}
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("interrupted run = %v, want %v", err, context.Canceled)
	}
	time.Sleep(50 * time.Millisecond) // for what still runs
	same(t, "an interrupted run left", before, all(t))
}

// New lines are merged into edited files, also at a place where the owner has added lines. Lines that are both edited and
// new get the marks of conflicts, as does a file without a known base, and the run fails. A removed file stays removed.
func TestEditedFilesAreMerged(t *testing.T) {
	service(t)
	e, err := load(pathOf("order"))
	must(t, err)
	if found := written(t, &e); !found.are(edits{}) {
		t.Fatalf("first write = %+v", found)
	}
	must(t, e.save(new(undo)))
	const merged, conflict, removed = "api/proto/order/v1/order.proto", "internal/sample/order.go", "db/queries/orders.sql"
	content := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		must(t, err)
		return string(text)
	}
	const mine, value = "  string hue = 1001;\n", `{Title: "hue", `
	for path, text := range map[string]string{
		merged:   strings.TrimSuffix(content(merged), "}\n") + mine + "}\n",
		conflict: strings.Replace(content(conflict), `{Title: "alpha", `, value, 1),
	} {
		must(t, writeFile(path, []byte(text)))
	}
	must(t, os.Remove(removed))
	if found := written(t, &e); !found.are(edits{}) || !strings.Contains(content(merged), mine) {
		t.Errorf("a write of nothing new = %+v, want the edits as they are", found)
	}

	// The owner has moved a query and a type into files of their own.
	must(t, errors.Join(writeFile("db/queries/mine.sql", []byte("-- name: GetOrder :one\n")), writeFile("internal/domain/mine.go", []byte("package domain\n\ntype OrderQuery struct{}\n"))))
	e, err = described(t, "order", "--fields=title:string color:enum(red,green) note:string")
	must(t, err)
	found := written(t, &e)
	if !found.are(edits{merged: []string{merged}, removed: []string{removed}, conflicts: []string{conflict}}) || isThere(removed) {
		t.Errorf("a write with a new field = %+v", found)
	}
	if text := content(merged); !strings.Contains(text, mine+"  // The note") {
		t.Errorf("%s has not what is new and the edit:\n%s", merged, text)
	}
	if text := content(conflict); !strings.Contains(text, "<<<<<<< yours\n\t\t"+value) || !strings.Contains(text, ">>>>>>> new\n") {
		t.Errorf("%s has no marks of the conflict:\n%s", conflict, text)
	}
	var out bytes.Buffer
	if err := found.report(&out, nil); err == nil || !strings.Contains(err.Error(), "choose between the lines") || !strings.Contains(out.String(), "\n  "+conflict+"\n") {
		t.Errorf("the report is %v, want an error and the file:\n%s", err, &out)
	}

	const unknown = "db/queries/parcels.sql"
	must(t, os.Remove(conflict)) // the names of other files are read
	e, err = described(t, "parcel", "--fields=title:string")
	must(t, err)
	must(t, writeFile(unknown, []byte("-- mine\n")))
	if found := written(t, &e); !found.are(edits{conflicts: []string{unknown}}) || !strings.HasPrefix(content(unknown), "<<<<<<< yours\n-- mine\n=======\n") {
		t.Errorf("a write over a file without a base = %+v:\n%s", found, content(unknown))
	}
	must(t, os.Remove(unknown)) // with its description, which has not been saved
	if found := written(t, &e); !found.are(edits{}) || !isThere(unknown) {
		t.Errorf("a write of what was removed with its description = %+v, want the file", found)
	}
}

// written writes the files of an entity that do not depend on generated code.
func written(t *testing.T, e *entity) (found edits) {
	t.Helper()
	must(t, e.write(t.Context(), false, new(undo), &found))
	return found
}

// are reports whether edits name the same files.
func (found edits) are(want edits) bool {
	return slices.Equal(found.merged, want.merged) && slices.Equal(found.removed, want.removed) && slices.Equal(found.conflicts, want.conflicts)
}
