package scaffold

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"example.com/videocatalog/lab/entity"
	"example.com/videocatalog/lab/internal/clone"
	"example.com/videocatalog/lab/internal/size"
	"example.com/videocatalog/lab/internal/truth"
)

// partWords match what files say of a part of the template.
var partWords = map[string]string{
	"chinese":   `zh-CN`,
	"console":   `options/console/`,
	"decisions": `docs/decisions|\]\([^)]*decisions/`,
	"examples":  `films\.jsonl|examples/`,
	"lab":       `make chaos`,
	"observe":   `deploy/observe|--observe|alerts\.md|runbooks\.md`,
	"pools":     `pools\.[a-z*]+\.yaml`,
	"terraform": `deploy/terraform/`,
}

// checkParts checks that a service has no word of a part that it lacks, no mark of a part, and
// no broken link.
func checkParts(t *testing.T, service string, with ...string) {
	t.Helper()
	words := []string{`only [a-z]+: (begin|end)`}
	for part, w := range partWords {
		if !slices.Contains(with, part) {
			words = append(words, w)
		}
	}
	left := regexp.MustCompile(strings.Join(words, "|"))
	eachFile(t, service, func(name, content string) {
		// Lines that only delete a part, or check it if it is there, stay.
		if strings.HasPrefix(name, "third_party/kit/") || slices.Contains([]string{"Makefile", ".gitattributes", ".golangci.yml", "template.json"}, name) {
			return
		}
		if found := left.FindString(content); found != "" {
			t.Errorf("%s has %q", name, found)
		}
	})
	checkLinks(t, service)
}

// order is the entity of the services of tests.
var order = []string{
	"--entity", "order", "--fields", "customer:string! total_cents:int64 note:string", "--transitions", "draft→placed:place placed→canceled:cancel",
}

// A service with one option passes the option's tests. One command takes the option away, and then another
// adds all options. LAB_OPTION names the first option; else it is drawn.
func TestWith(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	template, service := newTemplate(t, dir), filepath.Join(dir, "service")
	all := []string{"console", "cors", "kafka", "oidc", "reactions", "relay-http", "repair", "replay", "tenancy", "wal"}
	alone := cmp.Or(os.Getenv("LAB_OPTION"), all[rand.IntN(len(all))])
	t.Logf("LAB_OPTION=%s", alone)
	if alone == "tenancy" {
		alone = "oidc,tenancy" // it needs verified tokens
	}
	newService(t, template, service, "--module", "gitlab.example.org/group/procurement", "--domain", "procurement.acme.example", "--schema", "buying",
		"--entity", "purchase_order", "--fields", "customer:string! total_cents:int64", "--transitions", "draft→placed:place placed→canceled:cancel", "--with", alone)
	checkNames(t, service)
	checkWords(t, service)
	checkRecord(t, service)
	if alone == "oidc,tenancy" {
		clone.Run(t, service, "go", "run", "./cmd/entity", "add", "purchase_order", "--tenant")
		clone.Run(t, service, "go", "test", "./db", "./internal/archtest", "./internal/domain", "./internal/event", "./internal/store")
		commit(t, service)
	}
	clone.Run(t, service, "go", "vet", "./...")
	clone.Run(t, service, "go", "test", "./options/...", "./cmd/server")
	checkParts(t, service, strings.Split(alone, ",")...)
	if alone == "oidc,tenancy" {
		loseTenants(t, service)
	}
	clone.Run(t, service, "go", "run", "./cmd/upgrade", "--without", alone)
	if alone == "oidc,tenancy" {
		dropTenants(t, service)
	}
	clone.Run(t, service, "go", "run", "./cmd/entity", "add", "parcel", "--fields", "grams:int32")
	clone.Run(t, service, "go", "vet", "./...")
	commit(t, service)

	places := map[string]string{"pools": "deploy/run/pools.service.yaml", "terraform": "deploy/terraform"}
	all = append(all, slices.Collect(maps.Keys(places))...)
	clone.Run(t, service, "go", "run", "./cmd/upgrade", "--with", strings.Join(all, ","))
	clone.Run(t, service, "go", "run", "./cmd/entity", "add", "payment", "--fields", "purchase_order_id:uuid!", "--transitions", "asked→captured:capture", "--timers", "asked:15m:capture")
	clone.Run(t, service, "go", "run", "./cmd/entity", "react", "purchase_order", "payment", "--on", "captured:purchase_order_id:place")
	clone.Run(t, service, "go", "vet", "./...")
	checkDead(t, service)
	clone.Run(t, service, "go", "test", "./internal/archtest", "./internal/domain", "./cmd/server", "-run", "PurchaseOrder|Option|Import|Ring|Subscription")
	checkParts(t, service, "console", "pools", "terraform")
	for _, there := range all {
		if _, err := os.Stat(filepath.Join(service, cmp.Or(places[there], "options/"+there))); err != nil {
			t.Error(err)
		}
	}
	loseReactions(t, service)
}

// loseTenants does what the page of the option says before it is taken away, and dropTenants what it says after that.
func loseTenants(t *testing.T, service string) {
	t.Helper()
	path := filepath.Join(service, "internal/entities/purchase_order.yaml")
	text, err := os.ReadFile(path)
	must(t, err)
	write(t, path, regexp.MustCompile(`(?m)^tenant: .*\n|^tenant_indexes:\n(  .*\n)+`).ReplaceAllString(string(text), ""))
	migrateTenants(t, service, "01098_tenants_are_optional.sql", "ALTER TABLE %[1]s ALTER COLUMN tenant_id DROP NOT NULL")
	clone.Run(t, service, "go", "run", "./cmd/entity", "render")
	clone.Run(t, service, "go", "vet", "./...")
	clone.Run(t, service, "go", "test", "./internal/store", "-run", "PurchaseOrder")
	commit(t, service)
}

func dropTenants(t *testing.T, service string) {
	t.Helper()
	migrateTenants(t, service, "01099_no_tenants.sql", "ALTER TABLE %[1]s NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY",
		"DROP POLICY calls ON %[1]s", "DROP POLICY loops ON %[1]s", "DROP POLICY owner ON %[1]s")
	clone.Run(t, service, "go", "test", "./internal/store", "-run", "PurchaseOrder")
	migrateTenants(t, service, "01100_no_tenant_id.sql", "ALTER TABLE %[1]s DROP COLUMN tenant_id")
	clone.Run(t, service, "go", "run", "./cmd/entity", "render")
	clone.Run(t, service, "go", "test", "./internal/store", "-run", "PurchaseOrder")
}

func migrateTenants(t *testing.T, service, name string, up ...string) {
	t.Helper()
	text := "-- +goose Up\nSET LOCAL lock_timeout = '2s';\n"
	for _, table := range []string{"buying.purchase_orders", "buying_read.purchase_order_projection"} {
		for _, statement := range up {
			text += fmt.Sprintf("-- contract: no build sets a tenant any more\n"+statement+";\n", table)
		}
	}
	write(t, filepath.Join(service, "db/migrations", name), text+"\n-- +goose Down\nSELECT 1;\n")
}

// loseReactions takes the option reactions away, of which the owner has edited a file, after what needs it. The printed steps end in a
// service that builds.
func loseReactions(t *testing.T, service string) {
	t.Helper()
	const edited = "options/reactions/reactions.go"
	clone.Run(t, service, "go", "run", "./cmd/entity", "add", "payment", "--timers", "none")
	edit(t, filepath.Join(service, "internal/entities/purchase_order.yaml"), `reactions:
  - to: payment
    consumer: purchase-order-payment
    rules:
      - event: captured
        field: purchase_order_id
        command: place
`, "")
	edit(t, filepath.Join(service, "cmd/server/registrations.go"), "\t\tpurchaseOrdersOnPayments(),\n", "")
	clone.Run(t, service, "git", "add", "--all")
	clone.Run(t, service, "git", "rm", "--quiet", "--force", "internal/domain/purchase_order_payment.go", "internal/domain/purchase_order_payment_test.go",
		"cmd/server/purchase_orders_payments.go", "cmd/server/purchase_orders_payments_test.go")
	clone.Run(t, service, "go", "run", "./cmd/entity", "render")
	clone.Run(t, service, "go", "vet", "./...")
	edit(t, filepath.Join(service, edited), "// Package reactions ", "// Package reactions, which we like, ")
	commit(t, service)
	cmd := exec.CommandContext(t.Context(), "go", "run", "./cmd/upgrade", "--without", "reactions")
	cmd.Dir = service
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), edited+", which the template removed: git rm "+edited) ||
		!strings.Contains(string(out), "then make generate, go vet ./..., git add --all, and git commit") {
		t.Fatalf("upgrade = %v, want the conflict of %s and the next steps:\n%s", err, edited, out)
	}
	clone.Run(t, service, "git", "rm", "--quiet", edited)
	clone.Run(t, service, "make", "--silent", "generate")
	clone.Run(t, service, "go", "vet", "./...")
	commit(t, service)
	if subject := clone.Run(t, service, "git", "log", "-1", "--format=%s", "template"); !strings.HasSuffix(subject, ", without reactions\n") {
		t.Errorf("the commit of the branch template is %q, want the option in it", subject)
	}
}

// A service has no word of the example. With two drawn entities of the matrix, it passes its checks,
// passes its tests without a module proxy, and serves calls.
func TestLean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	template, service := newTemplate(t, dir), filepath.Join(dir, "orders")
	newService(t, template, service, append(order, "--module", "github.com/acme/orders")...)
	checkSize(t, service)
	checkNames(t, service)
	checkWords(t, service)
	checkRecord(t, service)
	checkParts(t, service)
	checkTruth(t, service)
	checkDead(t, service)
	for _, gone := range []string{"kit", "third_party/kit/pubsublocal/conformance", "docs/decisions", "lab"} {
		if _, err := os.Stat(filepath.Join(service, gone)); err == nil {
			t.Errorf("a service has %s", gone)
		}
	}
	if used := clone.Run(t, service, "go", "list", "-deps", "./cmd/server"); strings.Contains(used, "franz-go") || strings.Contains(used, "pglogrepl") {
		t.Error("the default program has a library of Kafka, or of the log")
	}
	if unformatted := clone.Run(t, service, "gofmt", "-l", "."); unformatted != "" {
		t.Errorf("gofmt would change %s", unformatted)
	}
	drawn := entity.Drawn(t, 2)
	addRows(t, service, drawn)
	clone.Run(t, service, "make", "--silent", "drift", "breaking", "lint")
	clone.Run(t, service, "env", "GOPROXY=off", "go", "test", "./...")
	if changes := clone.Run(t, service, "git", "status", "--porcelain"); changes != "" {
		t.Errorf("the tests changed %s", changes)
	}
	refusesMistakes(t, service)
	create := startDev(t, service)
	useOrders(t, service, create)
	for _, row := range drawn {
		row.Use(t, "http://"+create[2]+"/v1/")
	}
	kitByVersion(t, service)
}

// addRows adds entities of the matrix to a service.
func addRows(t *testing.T, service string, rows []entity.Row) {
	t.Helper()
	for _, row := range rows {
		clone.Run(t, service, "go", append([]string{"run", "./cmd/entity", "add", row.Name}, row.Flags()...)...)
	}
	commit(t, service)
}

// refusesMistakes checks that the tests of a service find mistakes of its owner, and report each in a sentence.
func refusesMistakes(t *testing.T, service string) {
	t.Helper()
	const event = "api/proto/order/v1/order_event.proto"
	migration := func(up, down string) func() {
		return func() {
			write(t, filepath.Join(service, "db/migrations/01099_mistake.sql"), "-- +goose Up\n"+up+"\n\n-- +goose Down\n"+down+"\n")
		}
	}
	for _, test := range []struct {
		mistake    func()
		tests, say string
	}{
		{migration("ALTER TABLE orders_db.orders RENAME COLUMN note TO remark;", "ALTER TABLE orders_db.orders RENAME COLUMN remark TO note;"),
			"./db", "01099_mistake.sql:2: rename: the previous build has only the old name"},
		{migration("GRANT DELETE ON orders_db.orders TO orders_db_rw;", "REVOKE DELETE ON orders_db.orders FROM orders_db_rw;"),
			"./db", "orders_db_rw has DELETE on orders_db.orders, which its work does not need"},
		{func() {
			edit(t, filepath.Join(service, event), "package order.v1;\n", "package order.v1;\n\nimport \"google/protobuf/timestamp.proto\";\n")
		}, "./cmd/server", "imports are not supported"},
		{func() {
			edit(t, filepath.Join(service, "internal/app/config.go"), "\tOutboxRetention time.Duration", "\tCurrency string `env:\"CURRENCY\"`\n\n\tOutboxRetention time.Duration")
		}, "./internal/app", "CURRENCY has no help"},
	} {
		test.mistake()
		cmd := exec.CommandContext(t.Context(), "go", "test", test.tests)
		cmd.Dir = service
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), test.say) {
			t.Errorf("go test %s of a mistake = %v, want %q:\n%s", test.tests, err, test.say, out)
		}
		clone.Run(t, service, "git", "checkout", "--quiet", ".")
		clone.Run(t, service, "git", "clean", "--quiet", "--force", "db")
	}
}

// useOrders makes an order over REST by the command that cmd/dev of a service prints, and finds it over gRPC.
func useOrders(t *testing.T, service string, create []string) {
	t.Helper()
	url, address, order := create[1], create[2], create[3]
	if order != `{"customer": "text", "totalCents": 1200, "note": "text"}` {
		t.Errorf("the printed order is %s", order)
	}
	contains(t, filepath.Join(service, "README.md"), order)
	response, err := http.Post(url, "application/json", strings.NewReader(order))
	must(t, err)
	defer response.Body.Close()
	var created struct{ Name string }
	content, err := io.ReadAll(response.Body)
	must(t, err)
	if err := json.Unmarshal(content, &created); err != nil || created.Name == "" {
		t.Fatalf("POST /v1/orders = %s: %s, %v", response.Status, content, err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	// The lab has no generated code of this contract: an empty message keeps its fields as unknown ones.
	page := new(emptypb.Empty)
	if err := conn.Invoke(t.Context(), "/order.v1.OrderService/ListOrders", new(emptypb.Empty), page); err != nil || !strings.Contains(string(page.ProtoReflect().GetUnknown()), created.Name) {
		t.Errorf("ListOrders() = %q, %v, want %s", page.ProtoReflect().GetUnknown(), err, created.Name)
	}
}

// startDev starts cmd/dev of a service, and returns the parts of the command that makes an order: the URL, the
// address in it, and the order; then where to get a token, if calls need one.
func startDev(t *testing.T, service string) []string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "dev")
	clone.Run(t, service, "go", "build", "-o", program, "./cmd/dev")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	cmd := exec.CommandContext(ctx, program, "--state", filepath.Join(service, ".local"))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Dir, cmd.Env = service, append(os.Environ(), "PORT=0", "NO_COLOR=1", "GOPROXY=off")
	screen, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was told to end
	})
	var text strings.Builder
	create := regexp.MustCompile(`curl -s (http://(localhost:\d+)/v1/orders) -d '(.*)'`)
	for buffer := make([]byte, 1000); ; {
		n, err := screen.Read(buffer)
		text.Write(buffer[:n])
		if found := create.FindStringSubmatch(text.String()); found != nil {
			go io.Copy(io.Discard, screen) //nolint:errcheck // until it ends
			return append(found, regexp.MustCompile(`http://\S+/token\?tenant=acme`).FindString(text.String()))
		}
		if err != nil {
			t.Fatalf("cmd/dev ended: %v\n%s", err, &text)
		}
	}
}

// checkLinks looks for links of Markdown to files that are not there.
func checkLinks(t *testing.T, dir string) {
	t.Helper()
	link := regexp.MustCompile(`\]\(([^)#: ]+)(?:#[^)]*)?\)`)
	eachFile(t, dir, func(name, content string) {
		if filepath.Ext(name) != ".md" {
			return
		}
		for _, found := range link.FindAllStringSubmatch(content, -1) {
			if _, err := os.Stat(filepath.Join(dir, filepath.Dir(name), found[1])); err != nil {
				t.Errorf("%s has a link to %s: %v", name, found[1], err)
			}
		}
	})
}

// checkTruth looks in pages and comments for names of things that the service does not have.
func checkTruth(t *testing.T, dir string) {
	t.Helper()
	lies, err := truth.Lies(t.Context(), dir, clone.Run(t, dir, "go", "run", "./cmd/server", "help"))
	must(t, err)
	for _, lie := range lies {
		t.Error(lie)
	}
}

// checkSize checks that a default service is within its budget.
func checkSize(t *testing.T, dir string) {
	t.Helper()
	tree, err := size.Of(t.Context(), dir)
	must(t, err)
	var table strings.Builder
	must(t, tree.Print(&table))
	t.Logf("the size of a service:\n%s", &table)
	over, err := tree.Over("clone")
	overKit, kitErr := size.Tree{Total: tree.Kit}.Over("kit")
	over, err = append(over, overKit...), errors.Join(err, kitErr)
	if err != nil || len(over) > 0 {
		t.Errorf("the service is larger than its budget: %q, %v", over, err)
	}
}

// eachFile calls use with every file that git has.
func eachFile(t *testing.T, dir string, use func(name, content string)) {
	t.Helper()
	for name := range strings.SplitSeq(strings.TrimSuffix(clone.Run(t, dir, "git", "ls-files", "-z"), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		use(name, string(content))
	}
}
