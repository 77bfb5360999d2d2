package entity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const root = "../.." // of the repository

// described returns the entity that a command line describes, and writes nothing.
func described(t *testing.T, args ...string) (entity, error) {
	t.Helper()
	o, err := parse(append([]string{"add"}, args...))
	if err != nil {
		return entity{}, err
	}
	return o.entity(t.Context())
}

// The fields of a command line have their types, rules, values and parts.
func TestParseFields(t *testing.T) {
	got, err := parseFields("customer_id:uuid!,note:string?\n\tcolor:enum(red,green)! place:{street:string,floor:int32} tags:strings lines:[{title:string,quantity:int32}]!")
	want := []field{
		{Name: "customer_id", Type: typeUUID, Required: true},
		{Name: "note", Type: typeString, Optional: true},
		{Name: "color", Type: typeEnum, Values: []string{"red", "green"}, Required: true},
		{Name: "place", Type: typeMessage, Parts: []field{{Name: "street", Type: typeString}, {Name: "floor", Type: typeInt32}}},
		{Name: "tags", Type: "strings"},
		{Name: "lines", Type: typeMessages, Parts: []field{{Name: "title", Type: typeString}, {Name: "quantity", Type: typeInt32}}, Required: true},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(field{})); diff != "" || err != nil {
		t.Errorf("parseFields() = %v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{"title", "title:", "place:{street}", "lines:[{title}]"} {
		if got, err := parseFields(text); err == nil {
			t.Errorf("parseFields(%q) = %v, want an error", text, got)
		}
	}
}

// Transitions are read with either arrow, and other words are refused.
func TestParseTransitions(t *testing.T) {
	got, err := parseTransitions(" draft→placed:place,\n placed->canceled:cancel ")
	want := []transition{{From: "draft", To: "placed", Command: "place"}, {From: "placed", To: "canceled", Command: "cancel"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("parseTransitions() = %v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{"draft", "draft→placed", "draft:place"} {
		if got, err := parseTransitions(text); err == nil {
			t.Errorf("parseTransitions(%q) = %v, want an error", text, got)
		}
	}
}

// Each mistake in a description has an error of one sentence that names the place and the
// rule.
func TestDescriptionsAreChecked(t *testing.T) {
	t.Chdir(root)
	const title = "--fields=title:string"
	for _, c := range []struct {
		args []string
		want string
	}{
		// Names.
		{[]string{"Order", title}, `entity "Order": the name must be lower_snake_case`},
		{[]string{"order__item", title}, `entity "order__item": the name must be lower_snake_case`},
		{[]string{strings.Repeat("a", 25), title}, `at most 24 characters`},
		{[]string{"vendor", title}, `"vendor" is a folder that the go command or buf treats differently`},
		{[]string{"audit", title}, `"audit" is a name of the machinery: choose another, such as audit_record`},
		{[]string{"turnip", "--plural=requests", title}, `"requests" is a name of the machinery`},
		{[]string{"b2b_contract", title}, `entity "b2b_contract": the name must be lower_snake_case without digits`},
		{[]string{"_order", title}, `entity "_order": the name must be lower_snake_case`},
		{[]string{".order", title}, `entity ".order": the name must be lower_snake_case`},
		{[]string{"descriptor", title}, `"descriptor" would be a field of messages, which have a method of this name`},
		{[]string{"class", title}, `"class" is a word of Java`},
		{[]string{"api_key", title}, `"api_key" has a word, such as id, that Go and the API linter write in different ways`},
		{[]string{"turnip", "--plural=private", title}, `"private" is a word of Java`},
		{[]string{"turnip", title, "--transitions=draft→ready:get_ready"}, `command "get_ready": the API linter refuses the verb of a standard method`},
		{[]string{"turnip", "--plural=reset", title}, `"reset" would be a field of messages`},
		{[]string{"order_test", title}, `"order_test" ends in _test, which in the name of a Go file says where it is built`},
		{[]string{"order_linux", title}, `"order_linux" ends in _linux`},
		{[]string{"news", "--plural=news", title}, `plural "news" is equal to the singular`},
		{[]string{"turnip", "--plural=Orders", title}, `plural "Orders" must be lower_snake_case`},
		{[]string{"turnip", "--plural=table", title}, `plural "table" is a word of SQL`},
		{[]string{"turnip", "--plural=order_arm", title}, `"order_arm" ends in _arm,`},
		// Fields.
		{[]string{"turnip"}, `an entity needs at least one field, from a file or --fields`},
		{[]string{"turnip", "turnip.proto", title}, `want the fields from the file turnip.proto, or from --fields, and not both: a list with spaces needs quotes`},
		{[]string{"turnip", "--fields= "}, `an entity needs at least one field`},
		{[]string{"turnip", "--fields=Title:string"}, `field "Title": the name must be lower_snake_case`},
		{[]string{"turnip", "--fields=version:int64"}, `field "version": every entity has this name`},
		{[]string{"turnip", "--fields=proto_reflect:string"}, `field "proto_reflect": every entity has this name, or needs it`},
		{[]string{"turnip", "--fields=xmin:double"}, `field "xmin": every entity has this name, or needs it`},
		{[]string{"turnip", "--fields=user:string"}, `field "user": the name is a keyword of SQL`},
		{[]string{"turnip", "--fields=class:bool"}, `field "class": the name is a keyword of Python: choose another, such as turnip_class`},
		{[]string{"turnip", "--fields=order:int32"}, `field "order": the name is a keyword of SQL: choose another, such as sort_order`},
		{[]string{"turnip", "--fields=line_1:enum(a,b)"}, `field "line_1": the name of a message or an enum must be lower_snake_case, with digits only`},
		{[]string{"turnip", "--fields=b2b:bool b2_b:bool"}, `field "b2_b": the field "b2b" has this name`},
		{[]string{"turnip", "--fields=turnip_id:uuid"}, `field "turnip_id": the entity itself has this name`},
		{[]string{"turnip", "--fields=turnip_details:string"}, `field "turnip_details": the entity itself has this name`},
		{[]string{"turnip", "--fields=title:string title:int64"}, `field "title": the field "title" has this name`},
		{[]string{"turnip", "--fields=delay:duration delay_ms:int64"}, `field "delay_ms": the field "delay" has this name`},
		{[]string{"turnip", "--fields=note:string get_note:string"}, `field "get_note": the field "note" has this name`},
		{[]string{"turnip", "--fields=due_ms:time"}, `field "due_ms": the suffix _ms is added in events`},
		{[]string{"turnip", "--fields=total:money"}, `field "total": unknown type "money", want one of string, bool`},
		{[]string{"turnip", "--fields=due:time?"}, `field "due": time cannot be optional`},
		{[]string{"turnip", "--fields=tags:strings?"}, `field "tags": strings cannot be optional`},
		{[]string{"turnip", "--fields=total:int64!"}, `field "total": int64 cannot be required`},
		{[]string{"turnip", "--fields=delay:duration!"}, `field "delay": duration cannot be required`},
		{[]string{"turnip", "--fields=color:enum()"}, `field "color": an enum has two values or more`},
		{[]string{"turnip", "--fields=color:enum(red)"}, `field "color": an enum has two values or more`},
		{[]string{"turnip", "--fields=color:enum"}, `field "color": an enum has two values or more`},
		{[]string{"turnip", "--fields=color:enum(red,red)"}, `field "color": the value "red" must be lower_snake_case, other than unspecified, and listed once`},
		{[]string{"turnip", "--fields=color:enum(red,Green)"}, `field "color": the value "Green" must be lower_snake_case`},
		{[]string{"turnip", "--fields=color:enum(red,unspecified)"}, `field "color": the value "unspecified"`},
		{[]string{"turnip", "--fields=snapshot:enum(red,green)"}, `field "snapshot": the event has a message of this name`},
		{[]string{"turnip", "--fields=snapshots:[{title:string}]"}, `field "snapshots": the event has a message of this name`},
		{[]string{"turnip", "--fields=lines:[]"}, `field "lines": unknown type "[]"`},
		{[]string{"turnip", "--fields=lines:[{tags:strings}]"}, `field "lines": the part "tags" must be one of string`},
		{[]string{"turnip", "--fields=lines:[{title:string}]?"}, `field "lines": messages cannot be optional`},
		{[]string{"turnip", "--fields=line:{title:string} lines:[{title:string}]"}, `field "lines": the field "line" has this name, or needs it`},
		{[]string{"turnip", "--fields=place:{}"}, `field "place": a message has parts`},
		{[]string{"turnip", "--fields=place:{Street:string}"}, `field "place": the name of the part "Street"`},
		{[]string{"turnip", "--fields=place:{street:time}"}, `field "place": the part "street" must be one of string`},
		{[]string{"turnip", "--fields=place:{street:string!}"}, `field "place": the part "street" must be one of string, bool, int32, int64, double, without ! and ?`},
		{[]string{"turnip", "--fields=place:{a:string,a:bool}"}, `field "place": the part "a" is listed twice`},
		{[]string{"turnip", "--fields=place:{reset:string}"}, `field "place": the part "reset" has the name of a method`},
		{[]string{"turnip", "--fields=place:{class:string}"}, `field "place": the part "class" is a keyword of Python: choose another, such as place_class`},
		{[]string{"turnip", "--fields=title"}, `field "title": want NAME:TYPE`},
		// Transitions.
		{[]string{"turnip", title, "--transitions=draft:place"}, `transition "draft:place": want FROM→TO:COMMAND`},
		{[]string{"turnip", title, "--transitions=draft→Placed:place"}, `"Placed" must be lower_snake_case`},
		{[]string{"turnip", title, "--transitions=draft→draft:place"}, `transition draft→draft:place: it changes nothing`},
		{[]string{"turnip", title, "--transitions=draft→deleted:drop"}, `the state "deleted" is no state`},
		{[]string{"turnip", title, "--transitions=draft→placed:update"}, `the command "update" is one that every entity has`},
		{[]string{"turnip", title, "--transitions=draft→placed:place draft→placed:place"}, `it is listed twice`},
		{[]string{"turnip", title, "--transitions=draft→placed:go draft→canceled:go"}, `the command "go" leads to placed too: a command has one target`},
		{[]string{"turnip", title, "--transitions=draft→placed:place sent→done:finish"}, `transition sent→done:finish: no transition leads from draft to sent`},
		{[]string{"turnip", title, "--transitions=draft→reopened:x reopened→draft:reopen"}, `its event would be TurnipReopened, as that of the command "x"`},
		{[]string{"turnip", title, "--transitions=draft→reset:clear"}, `the field "reset" of its event has the name of a method of messages`},
		{[]string{"turnip", title, "--transitions=draft→snapshot:take"}, `the event has a message or an enum for "snapshot" already`},
		{[]string{"turnip", "--fields=ripe:enum(yes,no)", "--transitions=draft→ripe:ripen"}, `the event has a message or an enum for "ripe" already`},
		{[]string{"turnip", title, "--transitions=draft→version:freeze"}, `symbol "turnip.v1.TurnipEvent.version" already defined`},
		{[]string{"turnip", title, "--transitions=draft→type:classify"}, `symbol "turnip.v1.TurnipEvent.type" already defined`},
		// Filters.
		{[]string{"turnip", "--fields=title:string owner_id:uuid", "--refs=owner_id,title"}, `--refs title: no field of the type uuid has this name`},
		// Timers.
		{[]string{"turnip", title, "--transitions=draft→placed:place", "--timers=draft:15m"}, `timer "draft:15m": want STATE:DURATION:COMMAND`},
		{[]string{"turnip", title, "--transitions=draft→placed:place", "--timers=draft:soon:place"}, `"soon" must be a duration`},
		{[]string{"turnip", title, "--transitions=draft→placed:place", "--timers=draft:0s:place"}, `"0s" must be a duration of a millisecond or more`},
		{[]string{"turnip", title, "--transitions=draft→placed:place", "--timers=placed:15m:place"}, `no command "place" leads from placed to another state`},
		{[]string{"turnip", title, "--timers=draft:15m:place"}, `no command "place" leads from draft`},
		{[]string{"turnip", title, "--transitions=draft→placed:place", "--timers=draft:15m:place draft:16m:place"}, `the state draft has a timer already`},
	} {
		e, err := described(t, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q = %v, %v, want an error with %q", c.args, e.Name, err, c.want)
			continue
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: more than one error: %v", c.args, err)
		}
	}
}

// Each name that is refused has a proposal, which is accepted.
func TestNamesAreProposed(t *testing.T) {
	proposal := regexp.MustCompile(`choose another, such as (\w+)$`)
	propose := func(word string, check func(word string) error) {
		t.Helper()
		err := check(word)
		if found := proposal.FindStringSubmatch(fmt.Sprint(err)); found == nil {
			t.Errorf("%q = %v, want an error with a proposal", word, err)
		} else if err := check(found[1]); err != nil {
			t.Errorf("instead of %q: %v", word, err)
		}
	}
	for _, word := range slices.Concat(machinery, folders, strings.Fields("reset string class api api_key key_id order_test requests")) {
		propose(word, func(word string) error { return Check(word, "", "title:string", "", "", "", false) })
		propose(word, func(word string) error { return Check("turnip", word, "title:string", "", "", "", false) })
	}
	for _, word := range slices.Concat(taken, strings.Fields("order group user end from to default limit class turnip_id")) {
		propose(word, func(word string) error { return Check("turnip", "", word+":bool", "", "", "", false) })
	}
}

// The error has all mistakes, one per line.
func TestMistakesAreToldTogether(t *testing.T) {
	t.Chdir(root)
	_, err := described(t, "Order", "--fields=Title:string user:money", "--plural=table")
	if err == nil || strings.Count(err.Error(), "\n") < 3 {
		t.Errorf("four mistakes = %v, want four lines", err)
	}
}

// Names of packages, files, tables and queries that the service has are refused. The error names the place.
func TestNamesThatExistAreRefused(t *testing.T) {
	t.Chdir(root)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"letter", "--plural=projection", "--fields=title:string"}, "db/queries/projection.sql exists: choose another name than letter"},
		{[]string{"letter", "--plural=blocked", "--fields=title:string"}, "internal/pg/queries/blocked.sql has ListBlocked, which is a name of letter, too"},
		{[]string{"entry", "--fields=title:string"}, "internal/domain/catalog.go has domain.Entry, which internal/domain/entry.go would declare"},
		{[]string{"envoy", "--fields=details:enum(red,green)"}, "internal/domain/envoy.go has domain.EnvoyDetails"},
		{[]string{"envoy", "--fields=cursors:[{title:string}]"}, "internal/domain/envoy.go has domain.EnvoyCursor"},
		{[]string{"plan", "--plural=program", "--fields=title:string"}, "has main.program, which cmd/server/program.go would declare"},
		{[]string{"outbox_lane", "--fields=title:string"}, "db/migrations/00002_outbox.sql has video_catalog.outbox_lanes, which is a name of outbox_lane, too"},
		{[]string{"lane", "--plural=outbox_pending", "--fields=title:string"}, "db/migrations/00002_outbox.sql has video_catalog.outbox_pending"},
		{[]string{"projection", "--fields=title:string"}, "db/queries/projection.sql has LockProjections, which is a name of projection, too"},
		{[]string{"base", "--plural=known_database", "--fields=title:string"}, "options/repair/migrations/00101_databases.sql has video_catalog.known_database"},
	} {
		if _, err := described(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q = %v, want an error with %q", c.args, err, c.want)
		}
	}
}

// An entity has files in folders of the owner only: it touches no machinery.
func TestFilesAreTheOwners(t *testing.T) {
	t.Chdir(root)
	e, err := described(t, "turnip", "--fields=title:string")
	must(t, err)
	owned := regexp.MustCompile(`^(api/proto|cmd/server|db/queries|internal/(domain|event|names|sample|server|store)|options/replay)/`)
	for _, f := range e.files() {
		if !owned.MatchString(f.path) {
			t.Errorf("%s is in a folder of the machinery", f.path)
		}
	}
}

// A REST path that another service has is refused.
func TestPathThatExistsIsRefused(t *testing.T) {
	t.Chdir(root)
	e, err := described(t, "turnip", "--fields=title:string")
	must(t, err)
	t.Chdir(t.TempDir())
	const other = "api/proto/root/v1/root_service.proto"
	must(t, errors.Join(os.MkdirAll(filepath.Dir(other), 0o750), os.WriteFile(other, []byte(`{get: "/v1/turnips"}`), 0o600)))
	if err := e.checkProto(); err == nil || !strings.Contains(err.Error(), other+" has /v1/turnips, which is a name of turnip, too") {
		t.Errorf("checkProto() = %v, want an error with the path", err)
	}
}

// Names that only look like names of the tools or the machinery are accepted.
func TestNamesAreAccepted(t *testing.T) {
	t.Chdir(root)
	for _, name := range []string{
		"linux", "test", "syntax", "vendor_turnip", "outbox_turnip", "turnip_confirmation_abc", "bill_of_lading",
		"subscription", "event", "message", "topic", "group", "schema", "lease", "server", "service", "domain", "client", "view", "func",
	} {
		if _, err := described(t, name, "--fields=type:string value:int64 lines:int32 internal:bool "+
			"position:int32 values:strings interval:duration precision:double none:bool package:string address_line_1:string b2b:bool",
			"--transitions=draft→placed:place placed→canceled:cancel placed→draft:reopen draft→paid:mark_paid paid→void:void", "--timers=placed:15m:cancel"); err != nil {
			t.Errorf("%s = %v, want no error", name, err)
		}
	}
}

// An import of the entity's own messages is where buf wants it, also before google.
func TestImportsAreSorted(t *testing.T) {
	t.Chdir(root)
	for _, name := range []string{"account", "customer_turnip", "turnip"} {
		e, err := described(t, name, "--fields=title:string")
		must(t, err)
		text, err := e.execute("service.proto")
		if lines := regexp.MustCompile(`(?m)^import .*$`).FindAllString(string(text), -1); err != nil || !slices.IsSorted(lines) || len(lines) != 8 {
			t.Errorf("imports of %s: %v\n%s", name, err, strings.Join(lines, "\n"))
		}
	}
}

// A command of several words turns off a rule of the API linter, which takes only the first word for the name.
func TestCommandsOfSeveralWords(t *testing.T) {
	t.Chdir(root)
	e, err := described(t, "turnip", "--fields=title:string", "--transitions=draft→paid:mark_paid paid→sent:send")
	must(t, err)
	const want = "core::0136::http-uri-suffix=disabled"
	if text, err := e.execute("service.proto"); err != nil || strings.Count(string(text), want) != 1 {
		t.Errorf("service.proto = %s, %v, want %s once", text, err, want)
	}
}

// Two commands to one state have an event each. Entities without EventPerCommand have one for both.
func TestEventsDifferByCommand(t *testing.T) {
	service(t)
	e, err := described(t, "plan", "--fields=title:string", "--transitions=trial→active:activate active→paused:pause paused→active:resume trial→paused:pause")
	for _, want := range [][]string{{"active", "paused", "resumed"}, {"active", "paused"}} {
		var got []string
		for _, event := range e.Events()[4:] {
			got = append(got, event.Field)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("events = %q, %v, want %q", got, err, want)
		}
		e.EventPerCommand = false
	}
}

// If the service has a file of the same name, the file of an entity gets another name, and keeps it.
func TestFilesBesideOthers(t *testing.T) {
	service(t)
	const other = "internal/domain/parcel.go"
	must(t, writeFile(other, []byte("package domain\n")))
	e, err := described(t, "parcel", "--fields=title:string")
	must(t, err)
	const beside = "internal/domain/parcel_entity.go"
	for range 2 {
		if found := written(t, &e); !found.are(edits{}) || e.Rendered[beside] == "" || e.Rendered[other] != "" {
			t.Errorf("written() = %+v, and made %v, want %s", found, e.Rendered, beside)
		}
		must(t, removeFile(other))
	}
}

// readProto returns the fields of a message with their types, comments and rules, without
// the fields that every entity has.
func TestReadProto(t *testing.T) {
	t.Chdir(root)
	got, err := readProto(t.Context(), "kit/entity/testdata/purchase_order.proto", "purchase_order")
	must(t, err)
	want := []field{
		{Name: "supplier_id", Type: typeUUID, Comment: "Who delivers, one of our suppliers."},
		{Name: "payment", Type: typeEnum, Values: []string{"invoice", "credit_card"}},
		{Name: "address", Type: typeMessage, Parts: []field{
			{Name: "street", Type: typeString, Comment: "The street and the number."}, {Name: "city", Type: typeString, OutputOnly: true}, {Name: "home_url", Type: typeString},
			{Name: "floor", Type: typeInt32}, {Name: "code", Type: typeInt64}, {Name: "latitude", Type: typeDouble}, {Name: "verified", Type: typeBool},
		}},
		{Name: "note", Type: typeString, Optional: true},
		{Name: "floor", Type: typeInt32, Optional: true},
		{Name: "weight", Type: typeInt64, Optional: true},
		{Name: "discount", Type: typeDouble, Optional: true},
		{Name: "urgent", Type: typeBool, Optional: true},
		{Name: "attachment", Type: typeBytes, Required: true},
		{Name: "delivery", Type: typeDuration},
		{Name: "due_time", Type: typeTime},
		{Name: "labels", Type: "strings"},
		{Name: "flags", Type: "bools"},
		{Name: "counts", Type: "int32s"},
		{Name: "totals", Type: "int64s"},
		{Name: "prices", Type: "doubles"},
		{Name: "item_ids", Type: "uuids"},
		{Name: "parcels", Type: typeMessages, Parts: []field{{Name: "barcode", Type: typeString}, {Name: "grams", Type: typeInt32, OutputOnly: true}}},
		{Name: "title", Type: typeString, Required: true},
		{Name: "open", Type: typeBool},
		{Name: "lines", Type: typeInt32},
		{Name: "total_cents", Type: typeInt64},
		{Name: "rate", Type: typeDouble, OutputOnly: true},
	}
	same(t, "readProto()", want, got, cmpopts.IgnoreUnexported(field{}))
	if err := (entity{Name: "purchase_order", Plural: "purchase_orders", Fields: got}).check(); err != nil {
		t.Errorf("check() = %v", err)
	}
}

// Messages with something that no field can have are refused, and the error names the field.
func TestUnsupportedMessagesAreRefused(t *testing.T) {
	t.Chdir(root)
	for _, c := range []struct{ name, file, want string }{
		{"map_order", "unsupported", `field "labels": maps and oneofs are not supported`},
		{"oneof_order", "unsupported", `field "card": maps and oneofs are not supported`},
		{"unsigned_order", "unsupported", `field "total": uint32 is not supported`},
		{"tree_order", "unsupported", `field "parent": its part "parent" must be a string`},
		{"deep_order", "unsupported", `field "address": its part "lines" must be a string`},
		{"wrapped_order", "unsupported", `field "note": google.protobuf.StringValue is not supported`},
		{"zero_order", "unsupported", `field "color": the first value of the enum Color must end in UNSPECIFIED`},
		{"optional_order", "unsupported", `field "picture": bytes cannot be optional`},
		{"named_order", "unsupported", `field "name": every entity has a field of this name with another meaning`},
		{"state_order", "unsupported", `field "state": every entity has a field of this name with another meaning`},
		{"ruled_order", "unsupported", `field "total_cents": rules of buf.validate other than string.uuid are not taken over`},
		{"other_order", "unsupported", `has no message OtherOrder`},
		{"broken_order", "broken", `compile: `},
		{"order", "missing", `no such file`},
	} {
		if _, err := described(t, c.name, "kit/entity/testdata/"+c.file+".proto"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s = %v, want an error with %q", c.name, err, c.want)
		}
	}
}

// Names have the forms of Go, of protoc-gen-go, of sqlc, of JSON and of prose.
func TestWords(t *testing.T) {
	for _, c := range []struct{ name, camel, unexported, proto, sql, json string }{
		{"order", "Order", "order", "Order", "Order", "order"},
		{"customer_id", "CustomerID", "customerID", "CustomerId", "CustomerID", "customerId"},
		{"home_url", "HomeURL", "homeURL", "HomeUrl", "HomeUrl", "homeUrl"},
		{"item_ids", "ItemIDs", "itemIDs", "ItemIds", "ItemIds", "itemIds"},
		{"url_item", "URLItem", "urlItem", "UrlItem", "UrlItem", "urlItem"},
		{"vm_ttl", "VMTTL", "vmTTL", "VmTtl", "VmTtl", "vmTtl"},
		{"line2", "Line2", "line2", "Line2", "Line2", "line2"},
		{"line_2", "Line2", "line2", "Line_2", "Line2", "line2"},
		{"b2b_code", "B2bCode", "b2bCode", "B2BCode", "B2bCode", "b2bCode"},
	} {
		got := [...]string{camel(c.name), unexported(c.name), protoCamel(c.name), sqlCamel(c.name), lowerCamel(c.name)}
		if want := [...]string{c.camel, c.unexported, c.proto, c.sql, c.json}; got != want {
			t.Errorf("%s = %q, want %q", c.name, got, want)
		}
	}
	for name, want := range map[string]string{
		"order": "an order", "view": "a view", "unit": "a unit", "user": "a user", "hour": "an hour", "uninstall": "an uninstall", "invoice": "an invoice", "euro_price": "a euro price",
	} {
		if got := article(words(name)); got != want {
			t.Errorf("article of %s = %q, want %q", name, got, want)
		}
	}
	for command, want := range map[string]string{"reopen": "reopened", "release": "released"} {
		if got := participle(command); got != want {
			t.Errorf("participle(%s) = %q, want %q", command, got, want)
		}
	}
}

// A field without a comment gets one that is made of its name.
func TestComments(t *testing.T) {
	for _, c := range []struct {
		field      field
		api, event string
	}{
		{field{Name: "total_cents", Type: typeInt64}, "The total cents.", "The total cents."},
		{field{Name: "note", Type: typeString}, "The note, at most 200 characters.", "The note."},
		{field{Name: "note", Type: typeString, Required: true}, "The note; required.", "The note."},
		{field{Name: "note", Type: typeString, Comment: "For the cook."}, "For the cook.", "The note."},
		{field{Name: "open", Type: typeBool}, "Whether it is open.", "Whether it is open."},
		{field{Name: "is_open", Type: typeBool}, "Whether it is open.", "Whether it is open."},
		{field{Name: "auto_renew", Type: typeBool}, "Whether auto renew is set.", "Whether auto renew is set."},
		{field{Name: "ended_on", Type: typeString}, "When it was ended, at most 200 characters.", "When it was ended."},
		{field{Name: "has_lines", Type: typeBool}, "Whether it has lines.", "Whether it has lines."},
		{field{Name: "placed_at", Type: typeTime}, "When it was placed.", "When it was placed, in milliseconds since 1970-01-01 UTC; 0: not set."},
		{field{Name: "due_time", Type: typeTime}, "The due time.", "The due time, in milliseconds since 1970-01-01 UTC; 0: not set."},
		{field{Name: "delay", Type: typeDuration}, "The delay.", "The delay, in milliseconds."},
	} {
		if got, want := [...]string{c.field.Doc(), c.field.EventDoc()}, [...]string{c.api, c.event}; got != want {
			t.Errorf("comments of %s = %q, want %q", c.field.Name, got, want)
		}
	}
}

// Lists are broken before a line gets too long.
func TestListsAreWrapped(t *testing.T) {
	items := slices.Repeat([]string{"abcdefgh"}, 30)
	for line := range strings.SplitSeq("\t"+wrap("\t", ", ", items), "\n") {
		if width(line) > lineWidth || !strings.HasPrefix(line, "\t") || strings.HasSuffix(line, " ") {
			t.Errorf("line %q", line)
		}
	}
	if got := literal("\t", "[]string", items[:2]); got != "[]string{abcdefgh, abcdefgh}" {
		t.Errorf("literal() = %q", got)
	}
	if got := literal("\t", "[]string", items); strings.Count(got, "\n") != 31 {
		t.Errorf("literal() of a long list = %q, want a line per item", got)
	}
}

// A description is checked without a service.
func TestCheck(t *testing.T) {
	const fields = "customer_id:uuid! color:enum(red,green)! note:string? place:{street:string,floor:int32} due_time:time tags:strings! ok:bool after:duration"
	if err := Check("order", "orders", fields, "", "draft->placed:place", "draft:15m:place", false); err != nil {
		t.Errorf("Check() = %v", err)
	}
	for want, err := range map[string]error{
		"the singular":              Check("order", "order", fields, "", "", "", false),
		"unknown type":              Check("order", "orders", "a:b", "", "", "", false),
		"want FROM→TO":              Check("order", "orders", fields, "", "draft", "", false),
		"API linter":                Check("order", "orders", fields, "", "draft->placed:get_it", "", false),
		"must be lower":             Check("order", "orders", fields, "", "→:", "", false),
		"no command":                Check("order", "orders", fields, "", "", "draft:15m:place", false),
		"at least one":              Check("order", "orders", "", "", "", "", false),
		"STATE:DURATION":            Check("order", "orders", fields, "", "", "draft", false),
		"lower_snake_case":          Check("", "", fields, "", "", "", false),
		"no field of the type uuid": Check("order", "orders", fields, "tags", "", "", false),
		"two values or mor":         Check("order", "orders", "color:enum(red)", "", "", "", false),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want %q", err, want)
		}
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same checks that two values are equal.
func same(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
