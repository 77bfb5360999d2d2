package entity

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/internal/clone"
)

var must = pgtest.Must

const root = "../.."

const (
	orderFields      = "customer_id:uuid! currency:string total_cents:int64 tags:strings placed_at:time"
	orderTransitions = "draft→placed:place placed→cancelled:cancel"
	orderTimers      = "placed:15m:cancel"
	statusFields     = "label:string! color:enum(%s)! place:{street:string,floor:int32}"
)

// Without paths in the compiled packages, all copies share the build cache.
func TestMain(m *testing.M) {
	_ = os.Setenv("GOFLAGS", "-trimpath") // fails only for names and values with a NUL
	m.Run()
}

// Aggregate types of different shapes cost a command each. They pass all checks and their
// own tests, serve calls, and grow beside the edits of their owner.
func TestEntities(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "clone")
	clone.Tree(t, root, dir, "lab")
	clone.Run(t, dir, "git", "init", "--quiet")
	clone.Run(t, dir, "git", "add", "--all")
	clone.Run(t, dir, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message", "before")
	program := filepath.Join(t.TempDir(), "entity")
	clone.Run(t, dir, "go", "build", "-o", program, "./cmd/entity")

	interrupt(t, dir, program)
	add := func(args ...string) string { return clone.Run(t, dir, program, append([]string{"add"}, args...)...) }
	add("order", "--fields", orderFields, "--transitions", orderTransitions, "--timers", orderTimers)
	add("purchase_order", "kit/entity/testdata/purchase_order.proto", "--transitions",
		"open→sent:send sent→open:reopen sent→received:receive open→cancelled:cancel sent→cancelled:cancel")
	add("status", "--fields", fmt.Sprintf(statusFields, "red,green"))
	add("receipt", "--fields", "weight:int64? attachment:bytes delivery:duration due_time:time labels:strings item_ids:uuids title:string! lines:int32", "--audited", "--batch")
	clone.Run(t, dir, program, "react", "order", "purchase_order", "--on", "sent:supplier_id:place received:supplier_id:cancel")
	clone.Run(t, dir, program, "react", "receipt", "purchase_order", "--on", "received:id:create")
	changesOnlyGenerated(t, dir)
	check(t, dir)

	api, console, stop := startStack(t, dir)
	order := useOrders(t, api, console)
	useOthers(t, api)
	callGRPC(t, dir, api, order)
	repairViews(t, dir)
	stop()

	grow(t, dir, add)
	api, _, _ = startStack(t, dir)
	useGrownOrders(t, api, order)
	breakLayers(t, dir)
}

// interrupt stops the command while protogen and sqlc generate, and checks that nothing is left.
func interrupt(t *testing.T, dir, program string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "add", "order", "--fields", orderFields)
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "generate Go from them") { // the names are next
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the command ended well in spite of the interrupt")
	}
	if changes := clone.Run(t, dir, "git", "status", "--porcelain"); changes != "" {
		t.Errorf("the interrupted command left:\n%s", changes)
	}
}

// changesOnlyGenerated checks that new types change no file that people write.
func changesOnlyGenerated(t *testing.T, dir string) {
	t.Helper()
	generated := regexp.MustCompile(`^(api/openapi\.json|cmd/server/registrations\.go|options/repair/projections\.go|options/replay/(aggregates\.go|internal/sqlcgen/models\.go)|deploy/names\.sh|deploy/observe/.*\.json|internal/store/internal/sqlcgen/models\.go)$`)
	for name := range strings.FieldsSeq(clone.Run(t, dir, "git", "diff", "--name-only")) {
		if !generated.MatchString(name) {
			t.Errorf("%s has changed, and is not generated", name)
		}
	}
}

// check runs what make check runs, as far as it concerns the new files.
func check(t *testing.T, dir string) {
	t.Helper()
	clone.Run(t, dir, "make", "--silent", "drift", "breaking", "lint",
		"PACKAGES=./internal/domain/... ./internal/event/... ./internal/sample/... ./internal/store/... ./internal/server/... ./cmd/server/...")

	const ours = "Order|PurchaseOrder|Status"
	clone.Run(t, dir, "go", "test", "./internal/archtest", "./internal/names/...", "./internal/domain", "./internal/event")
	clone.Run(t, dir, "go", "test", "./db", "-run", "TestMigrationsAreSafe|TestGrantsFitTheirSide|TestEveryMigrationGoesDownAndUpAgain")
	clone.Run(t, dir, "go", "test", "./internal/store", "-run", ours+"|TestRolesHaveLeastPrivilege|TestDataAPISeesNothing|TestSupportRoleLooks")
	clone.Run(t, dir, "go", "test", "./cmd/server", "-run", ours+"|TestSubscriptionsAreInNames")
}

const customer = "01890a5d-ac96-7f00-8b02-0c0d0e0f1003"

// useOrders takes an order through its commands, restores it at the end, and returns its name.
func useOrders(t *testing.T, api, console string) string {
	t.Helper()
	created := call(t, http.StatusOK, "POST", api+"orders", fmt.Sprintf(`{"customerId": %q, "currency": "EUR", "totalCents": "1200", "tags": ["a", "b"]}`, customer))
	name, _ := created["name"].(string)
	for field, body := range map[string]string{
		"order.customer_id":   `{"customerId": "nobody"}`,
		"order.customer_id: ": `{}`, // required
		"order.currency":      fmt.Sprintf(`{"customerId": %q, "currency": %q}`, customer, strings.Repeat("x", 201)),
		"order.placed_at":     fmt.Sprintf(`{"customerId": %q, "placedAt": "1970-01-01T00:00:00Z"}`, customer), // its milliseconds are 0
		"color":               fmt.Sprintf(`{"customerId": %q, "color": "red"}`, customer),
	} {
		if refused := call(t, http.StatusBadRequest, "POST", api+"orders", body); !strings.Contains(fmt.Sprint(refused), field) {
			t.Errorf("%s is refused without the name of the field %s: %v", body, field, refused)
		}
	}
	call(t, http.StatusBadRequest, "POST", api+name+":cancel", "{}") // it is a draft
	call(t, http.StatusOK, "POST", api+name+":place", "{}")
	call(t, http.StatusOK, "PATCH", api+name+"?updateMask=currency,tags", `{"currency": "USD", "totalCents": "7"}`)
	want := map[string]any{
		"name": name, "customerId": customer, "currency": "USD", "totalCents": "1200", "tags": []any{}, "state": "STATE_PLACED", "version": "3", "etag": `"3"`,
	}
	without := cmp.FilterPath(func(p cmp.Path) bool {
		return regexp.MustCompile(`"(create|update)Time"`).MatchString(p.Last().String())
	}, cmp.Ignore())
	view := strings.Replace(name, "orders/", "orderViews/", 1)
	await(t, func() string {
		_, got := request(t, "GET", api+view, "")
		return cmp.Diff(map[string]any{"name": view, "order": want}, got, without)
	})
	for filter, n := range map[string]int{"state%20=%20STATE_PLACED": 1, "state%20=%20STATE_DRAFT": 0} {
		if list, _ := call(t, http.StatusOK, "GET", api+"orders?filter="+filter, "")["orders"].([]any); len(list) != n {
			t.Errorf("orders with %s = %v, want %d", filter, list, n)
		}
	}
	call(t, http.StatusOK, "DELETE", api+name, "")
	await(t, func() string {
		if code, got := request(t, "GET", api+view, ""); code != http.StatusNotFound {
			return fmt.Sprintf("the view of a deleted order: %d %v", code, got)
		}
		return ""
	})
	onConsole(t, console, name, "OrderDeleted")
	call(t, http.StatusOK, "POST", api+name+":undelete", "{}")
	onConsole(t, console, name, "OrderUndeleted", "published")
	return name
}

// repairViews damages the views of entities, and repairs them.
func repairViews(t *testing.T, dir string) {
	t.Helper()
	env, err := os.ReadFile(filepath.Join(dir, ".local", "env"))
	must(t, err)
	conn, err := pgx.Connect(t.Context(), strings.Split(string(env), "'")[1])
	must(t, err)
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `UPDATE video_catalog_read.order_projection SET currency = 'damaged', version = version + 5;
		UPDATE video_catalog_read.status_projection SET label = 'damaged'; DELETE FROM video_catalog_read.purchase_order_projection`); err != nil {
		t.Fatal(err)
	}
	out := clone.Run(t, dir, "sh", "-c", ". .local/env && .local/bin/server projection repair --all --why test && .local/bin/server projection compare")
	for _, want := range []string{"order: compared 1 rows: missing 0, behind 0, ahead 1,", "different 2,", "purchase_order: compared 2 rows: missing 2,"} {
		if !strings.Contains(out, want) {
			t.Errorf("repair and compare lack %q:\n%s", want, out)
		}
	}
}

// onConsole waits until the console finds an order by its id, and shows some texts.
func onConsole(t *testing.T, console, order string, texts ...string) {
	t.Helper()
	page := console + "aggregates?q=" + strings.TrimPrefix(order, "orders/")
	await(t, func() string {
		response, body := send(t, "GET", page, "")
		for _, text := range texts {
			if !strings.Contains(string(body), text) {
				return fmt.Sprintf("%s lacks %q:\n%s", response.Request.URL, text, body)
			}
		}
		return ""
	})
}

// callGRPC lists orders with the generated client, in a program of the clone.
func callGRPC(t *testing.T, dir, api, order string) {
	t.Helper()
	const program = `package main

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	orderv1 "example.com/videocatalog/api/proto/order/v1"
)

func main() {
	conn, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	page, err := orderv1.NewOrderServiceClient(conn).ListOrders(context.Background(), &orderv1.ListOrdersRequest{Filter: "state = STATE_PLACED"})
	for _, o := range page.GetOrders() {
		fmt.Println(o.GetName(), o.GetCurrency())
	}
	_, notFound := orderv1.NewOrderServiceClient(conn).GetOrder(context.Background(), &orderv1.GetOrderRequest{Name: "orders/01890a5d-ac96-7f00-8b02-0c0d0e0f1003"})
	fmt.Println(err, notFound)
}
`
	path := filepath.Join(dir, "call", "main.go")
	must(t, os.MkdirAll(filepath.Dir(path), 0o750))
	must(t, os.WriteFile(path, []byte(program), 0o600))
	address := strings.TrimSuffix(strings.TrimPrefix(api, "http://"), "/v1/")
	out := clone.Run(t, dir, "go", "run", "./call", address)
	if !strings.HasPrefix(out, order+" USD\n<nil> rpc error: code = NotFound") {
		t.Errorf("over gRPC: %s\nwant the order %s, and NotFound for another", out, order)
	}
	must(t, os.RemoveAll(filepath.Dir(path)))
}

// useOthers checks that the other types, and the one that was there, work beside orders.
func useOthers(t *testing.T, api string) {
	t.Helper()
	purchase := `{
		"supplierId": "01890a5d-ac96-7f00-8b02-0c0d0e0f1003", "payment": "PAYMENT_CREDIT_CARD", "address": {"street": "Weg 1", "homeUrl": "https://a.example", "floor": 3,
		"code": "7", "latitude": 1.5, "verified": true}, "note": "", "floor": 0, "weight": "0", "discount": 0, "urgent": false, "attachment": "AP8=", "delivery": "1.500s",
		"dueTime": "2026-01-02T03:04:05.678Z", "labels": ["a"], "flags": [true, false], "counts": [1, -2], "totals": ["3", "-4"], "prices": [0.5],
		"itemIds": ["01890a5d-ac96-7f00-8b02-0c0d0e0f1004"], "parcels": [{"barcode": "1", "grams": 2}, {"barcode": "", "grams": 0}], "title": "Paper", "open": true, "lines": 5, "totalCents": "6", "rate": 2.25}`
	for collection, body := range map[string]string{
		"purchaseOrders": purchase, "statuses": `{"label": "ok", "color": "COLOR_GREEN", "place": {"floor": 2}}`,
	} {
		created := call(t, http.StatusOK, "POST", api+collection, body)
		name, _ := created["name"].(string)
		one := map[string]string{"purchaseOrders": "purchaseOrder", "statuses": "status"}[collection]
		await(t, func() string {
			_, got := request(t, "GET", api+strings.Replace(name, collection+"/", one+"Views/", 1), "")
			return cmp.Diff(created, got[one])
		})
	}
	useParts(t, api)
	if made := call(t, http.StatusOK, "POST", api+"purchaseOrders", purchase); made["rate"] != 0.0 || strings.Contains(fmt.Sprint(made), "grams:2") {
		t.Errorf("a purchase order with fields that are OUTPUT_ONLY = %v, want it without their values", made)
	}
	name, _ := call(t, http.StatusOK, "POST", api+"videos", `{"title": "Ran"}`)["name"].(string)
	call(t, http.StatusOK, "POST", api+name+":publish", "{}")
	entry := call(t, http.StatusOK, "GET", api+strings.Replace(name, "videos/", "catalogEntries/", 1)+"?minVersion=2", "")
	if entry["title"] != "Ran" {
		t.Errorf("the entry of the video = %v, want Ran", entry)
	}
}

// useParts changes fields inside a message, with a mask and without one.
func useParts(t *testing.T, api string) {
	t.Helper()
	name, _ := call(t, http.StatusOK, "POST", api+"statuses", `{"label": "ok", "color": "COLOR_GREEN", "place": {"street": "Weg", "floor": 2}}`)["name"].(string)
	for _, change := range []struct {
		query, body string
		want        map[string]any // place
	}{
		{"", `{"place": {"floor": 3}}`, map[string]any{"street": "Weg", "floor": 3.0}},
		{"", `{"place": {"street": ""}}`, map[string]any{"street": "", "floor": 3.0}},
		{"?updateMask=place.street", `{"place": {"street": "Gasse", "floor": 9}}`, map[string]any{"street": "Gasse", "floor": 3.0}},
		{"?updateMask=", `{"place": {"floor": 4}}`, map[string]any{"street": "Gasse", "floor": 4.0}},
		{"?updateMask=place", `{"place": {"floor": 5}}`, map[string]any{"street": "", "floor": 5.0}},
		{"", `{"place": null}`, nil},
	} {
		got, _ := call(t, http.StatusOK, "PATCH", api+name+change.query, change.body)["place"].(map[string]any)
		pgtest.Same(t, fmt.Sprintf("PATCH %s %s: place", change.query, change.body), change.want, got)
	}
	for query, rule := range map[string]string{
		"?updateMask=place.street.x": `update_mask: "place.street.x" goes into "place.street", which can only be changed as a whole`,
		"?updateMask=place.shade":    `update_mask: "place.shade" is no field: "place" has no "shade"`,
	} {
		if refused := call(t, http.StatusBadRequest, "PATCH", api+name+query, "{}"); !strings.Contains(fmt.Sprint(refused), rule) {
			t.Errorf("PATCH %s = %v, want it refused: %s", query, refused, rule)
		}
	}
	for body, rule := range map[string]string{
		`{"place": {"floor": "high"}}`: `floor: cannot be "high"`,
		`{"place": {"shade": 1}}`:      "place.shade: unknown field",
		`{"color": "COLOR_PINK"}`:      `color: cannot be "COLOR_PINK"`,
	} {
		if refused := call(t, http.StatusBadRequest, "PATCH", api+name, body); !strings.Contains(fmt.Sprint(refused), rule) {
			t.Errorf("PATCH %s = %v, want it refused: %s", body, refused, rule)
		}
	}
}

// grow edits two files of orders as their owner would, and adds fields and a state to the
// description. Statuses get another value of an enum.
func grow(t *testing.T, dir string, add func(...string) string) {
	t.Helper()
	add("status", "--fields", fmt.Sprintf(statusFields, "red,green,blue"))
	flags(t, dir, add)
	const domain, server = "internal/domain/order.go", "internal/server/orders.go"
	const rule = "\tcase d.Currency == \"XXX\":\n\t\treturn problem.InvalidField(\"order.currency\", \"must be a currency\")\n"
	edit(t, filepath.Join(dir, domain), `(func \(d OrderDetails\) validate\(\) error \{\n\tswitch \{\n)`, "${1}"+rule)
	edit(t, filepath.Join(dir, server), `// Prefixes of resource names\.`, "// Our prefixes of resource names.")
	migration := content(t, filepath.Join(dir, "db/migrations/01000_orders.sql"))

	out := add("order", "--fields", orderFields+" note:string? picture:bytes channel:enum(web,shop) sizes:int32s lines:[{title:string,quantity:int32}]",
		"--transitions", orderTransitions+" placed→sent:send")
	for path, edited := range map[string]string{domain: rule, server: "// Our prefixes of resource names."} {
		if !strings.Contains(out, "\n  "+path+"\n") || !strings.Contains(content(t, filepath.Join(dir, path)), edited) {
			t.Errorf("%s is not listed, or has lost the edit %q:\n%s", path, edited, out)
		}
	}
	if migration != content(t, filepath.Join(dir, "db/migrations/01000_orders.sql")) {
		t.Error("a migration that was run has changed")
	}
	if text := content(t, filepath.Join(dir, "db/migrations/01007_orders_note.sql")); !strings.Contains(text, "ADD COLUMN note text;") {
		t.Errorf("the migration of the new fields:\n%s", text)
	}
	for _, path := range []string{"01004_statuses_color_values.sql", "01005_statuses_color_valid.sql", "01008_orders_state_valid.sql"} {
		content(t, filepath.Join(dir, "db/migrations", path))
	}
	clone.Run(t, dir, "go", "test", "./internal/domain", "./internal/event")
	clone.Run(t, dir, "go", "test", "./cmd/server", "-run", "Reaction")
	clone.Run(t, dir, "go", "test", "./db", "-run", "TestMigrationsAreSafe|TestGrantsFitTheirSide|TestEveryMigrationGoesDownAndUpAgain")
	clone.Run(t, dir, "go", "test", "./internal/store", "-run", "Order|Status|TestSupportRoleLooks")
	clone.Run(t, dir, "make", "--silent", "breaking")
}

// flags gives purchase orders the flags one after the other: the migration of the first adds its columns, and the other needs none.
func flags(t *testing.T, dir string, add func(...string) string) {
	t.Helper()
	add("purchase_order", "--audited")
	if text := content(t, filepath.Join(dir, "db/migrations/01006_purchase_orders_create_user.sql")); !strings.Contains(text, "ADD COLUMN update_user text NOT NULL DEFAULT '';") {
		t.Errorf("the migration of --audited:\n%s", text)
	}
	add("purchase_order", "--batch")
	if more, err := filepath.Glob(filepath.Join(dir, "db/migrations/01007_*")); err != nil || len(more) > 0 {
		t.Errorf("the migrations of --batch = %v, %v, want none", more, err)
	}
	clone.Run(t, dir, "go", "test", "./internal/store", "./cmd/server", "-run", "PurchaseOrder")
}

// useGrownOrders uses an order of before the new fields, and one with them.
func useGrownOrders(t *testing.T, api, old string) {
	t.Helper()
	read := func(name string) map[string]any { return call(t, http.StatusOK, "GET", api+name, "") }
	if order := read(old); order["currency"] != "USD" || order["note"] != nil {
		t.Errorf("the order of before = %v, want it without a note", order)
	}
	call(t, http.StatusOK, "PATCH", api+old, `{"note": "", "picture": "AP8=", "lines": [{"title": "Ink", "quantity": 2}]}`)
	batch := call(t, http.StatusOK, "POST", api+"receipts:batchCreate", `{"requests": [{"receipt": {"title": "a"}}, {"receipt": {"title": "b"}}]}`)
	if made, _ := batch["receipts"].([]any); len(made) != 2 {
		t.Errorf("a batch of receipts = %v, want two", batch)
	}
	if sent := call(t, http.StatusOK, "POST", api+old+":send", "{}"); sent["state"] != "STATE_SENT" {
		t.Errorf("the order of before, sent = %v", sent)
	}
	if status := call(t, http.StatusOK, "POST", api+"statuses", `{"label": "new", "color": "COLOR_BLUE"}`); status["color"] != "COLOR_BLUE" {
		t.Errorf("a status with a new color = %v", status)
	}
	if refused := call(t, http.StatusBadRequest, "PATCH", api+old, `{"currency": "XXX"}`); !strings.Contains(fmt.Sprint(refused), "order.currency: must be a currency") {
		t.Errorf("the owner's rule: %v", refused)
	}
	want := read(old)
	if note, ok := want["note"]; !ok || note != "" || want["picture"] != "AP8=" {
		t.Errorf("the order of before with a note = %v", want)
	}
	await(t, func() string {
		_, got := request(t, "GET", api+strings.Replace(old, "orders/", "orderViews/", 1), "")
		return cmp.Diff(any(want), got["order"])
	})
}

// breakLayers makes a mistake in each layer of orders, which its generated test must find.
func breakLayers(t *testing.T, dir string) {
	t.Helper()
	for _, m := range []struct{ path, before, after, pkg string }{
		{"internal/domain/order.go", `(OrderPlaced, expected, stamp), OrderStateDraft`, "$1", "./internal/domain"},
		{"internal/domain/order_purchase_order.go", `CancelOrder\(`, "PlaceOrder(", "./internal/domain"},
		{"internal/event/order.go", `(?m)^\s+Currency:\s+snapshot\.GetCurrency\(\),\n`, "", "./internal/event"},
		{"internal/store/orders.go", `(InsertOrderParams\{(?s:.*?)\n)\s+Currency:\s+v\.Currency,\n`, "$1", "./internal/store"},
		{"internal/store/orders.go", `, Version: row\.Version}`, "}", "./internal/store"},
		{"internal/server/orders.go", `(?m)^\s+Currency:\s+v\.GetCurrency\(\),\n`, "", "./cmd/server"},
	} {
		path := filepath.Join(dir, m.path)
		was := content(t, path)
		edit(t, path, m.before, m.after)
		cmd := exec.CommandContext(t.Context(), "go", "test", m.pkg, "-run", "^TestOrder")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--- FAIL: TestOrder") {
			t.Errorf("the tests of %s do not find a mistake in %s: %v\n%s", m.pkg, m.path, err, out)
		}
		must(t, os.WriteFile(path, []byte(was), 0o600))
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// edit replaces what a regular expression finds, which must be once in the file.
func edit(t *testing.T, path, before, after string) {
	t.Helper()
	pattern, text := regexp.MustCompile(before), content(t, path)
	if n := len(pattern.FindAllString(text, -1)); n != 1 {
		t.Fatalf("%s has %d times %s, want once", path, n, before)
	}
	must(t, os.WriteFile(path, []byte(pattern.ReplaceAllString(text, after)), 0o600))
}
