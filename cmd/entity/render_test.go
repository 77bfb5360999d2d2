package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
	for path, content := range map[string]string{"sqlc.yaml": "", "db/migrations/01000_orders.sql": "-- as it was\n", "api/openapi.json": "{}"} {
		if err := writeFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.save(new(undo)); err != nil {
		t.Fatal(err)
	}
}

// all returns the files of the working directory.
func all(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := read([]string{"."})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A description grows at its end only, whatever the order in the command line: numbers of
// fields and of events never change.
func TestDescriptionGrowsAtItsEnd(t *testing.T) {
	service(t)
	if err := writeFile("db/migrations/01007_other.sql", nil); err != nil {
		t.Fatal(err)
	}
	e, err := described(t, "order", "--fields=note:string? color:enum(red,green) title:string", "--transitions=placed→draft:reopen draft→placed:place")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range e.Fields {
		got = append(got, fmt.Sprint(f.Name, " ", f.Number, " ", f.Migration))
	}
	if diff := cmp.Diff([]string{"title 10 1000", "color 11 1000", "note 12 1008"}, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	last := e.Events()[len(e.Events())-1]
	if e.States()[0].Name != "draft" || last.Go != "OrderReopened" || last.Number != 21 {
		t.Errorf("the first state is %s, and the last event %+v, want draft and OrderReopened with the next number", e.States()[0].Name, last)
	}
}

// What databases and events have cannot be taken back.
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
		{[]string{"--fields=title:string color:enum(red,green,blue)"}, `field "color" had another type, or other rules`},
		{[]string{fields, "--transitions=draft→placed:submit"}, `transition draft→placed:place is gone`},
		{[]string{fields, transitions + " placed→sent:send"}, `the states have changed`},
		{[]string{"--fields=title:string color:enum(red,green) note:string!"}, `field "note" cannot be required`},
		{[]string{fields, "--plural=orderings"}, `the plural of order is orders, and cannot change`},
	} {
		if _, err := described(t, append([]string{"order"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q = %v, want an error with %q", c.args, err, c.want)
		}
	}
	if e, err := described(t, "order", fields); err != nil || len(e.Transitions) != 1 {
		t.Errorf("without --transitions = %v, %v, want those of before", e.Transitions, err)
	}
}

// A migration of an earlier run is never written again: it may have another number now.
func TestMissingMigrationIsNotMadeAgain(t *testing.T) {
	service(t)
	e, err := described(t, "order", "--fields=title:string color:enum(red,green) note:string")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename("db/migrations/01000_orders.sql", "db/migrations/01009_orders.sql"); err != nil {
		t.Fatal(err)
	}
	if err := e.writeMigrations(new(undo)); err == nil || !strings.Contains(err.Error(), "no file with the number 01000 of order") {
		t.Errorf("writeMigrations() = %v, want an error that names the migration", err)
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
		if diff := cmp.Diff(before, all(t)); diff != "" {
			t.Errorf("%q left (-before +after):\n%s", args, diff)
		}
		if _, err := os.Stat("api/proto"); err == nil {
			t.Errorf("%q left folders", args)
		}
	}
}

// An interrupted run leaves every file as it was, and no program that it started is running.
func TestInterruptLeavesNothing(t *testing.T) {
	service(t)
	before := all(t)
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	// Instead of the Go command: its child writes for ten seconds, as a slow buf would.
	slow := `#!/bin/sh
(
	for i in $(seq 1000); do
		mkdir -p api/proto/parcel/v1
		echo x >>api/proto/parcel/v1/parcel.pb.go
		echo x >>api/openapi.json
		echo x >>` + started + `
		sleep 0.01
	done
) &
wait
`
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(slow), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"add", "parcel", "--fields=title:string"}, io.Discard) }()
	for {
		if _, err := os.Stat(started); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("interrupted run = %v, want %v", err, context.Canceled)
	}
	time.Sleep(50 * time.Millisecond) // for what still runs
	if diff := cmp.Diff(before, all(t)); diff != "" {
		t.Errorf("an interrupted run left (-before +after):\n%s", diff)
	}
}

// A file that somebody edited or removed is not written; one that has the new content
// already counts as made.
func TestEditedFilesAreKept(t *testing.T) {
	service(t)
	e, err := load(pathOf("order"))
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := e.write(false, new(undo)); err != nil || kept != nil {
		t.Fatalf("first write = %q, %v", kept, err)
	}
	const edited, removed, taken = "db/queries/orders.sql", "internal/domain/order.go", "internal/domain/order_test.go"
	if err := os.Remove(removed); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{edited, taken} {
		if err := writeFile(path, []byte("mine\n")); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := e.write(false, new(undo))
	if diff := cmp.Diff([]string{edited, removed, taken}, kept); diff != "" || err != nil {
		t.Fatalf("kept, %v (-want +got):\n%s", err, diff)
	}
	if content, err := os.ReadFile(edited); err != nil || string(content) != "mine\n" {
		t.Errorf("%s = %q, %v, want it as it was edited", edited, content, err)
	}
	made, err := os.ReadFile(filepath.Join(newFiles, taken))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(taken, made); err != nil {
		t.Fatal(err)
	}
	kept, err = e.write(false, new(undo))
	if diff := cmp.Diff([]string{edited, removed}, kept); diff != "" || err != nil {
		t.Errorf("kept after one was taken, %v (-want +got):\n%s", err, diff)
	}
	if _, err := os.Stat(filepath.Join(newFiles, taken)); err == nil {
		t.Errorf("%s still has %s", newFiles, taken)
	}
}
