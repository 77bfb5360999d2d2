package scaffold

import (
	"bufio"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"example.com/videocatalog/lab/internal/clone"
)

// A service with changes of its own takes a later version of the template by its own command. Generated
// files that both sides changed are generated again. Other conflicts are refused, or left to git's merge.
// An upgrade that fails before the merge, or is interrupted, leaves the service as it was. One of the
// further steps is drawn, or all are taken with the build tag deep.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	template, orders := newTemplate(t, dir), filepath.Join(dir, "orders")
	newService(t, template, orders, "--module", "github.com/acme/orders", "--full")
	s := upgrading{t: t, dir: orders, program: filepath.Join(dir, "upgrade")}
	clone.Run(t, orders, "go", "build", "-o", s.program, "./cmd/upgrade")
	s.succeeds("up to date")
	editService(t, orders)
	s.refused("not committed")
	commit(t, orders)
	editTemplate(t, template)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		s.interrupted(signal)
	}

	// A clone has the branch template only as origin/template.
	s.dir = filepath.Join(dir, "clone")
	clone.Run(t, dir, "git", "clone", "--quiet", orders, s.dir)
	s.refusedAsItIs("say it with --from PLACE")
	clone.Run(t, s.dir, "git", "config", "template.source", template)
	mine := strings.TrimSpace(s.rev("HEAD"))
	edit(t, filepath.Join(s.dir, "Makefile"), "\n\tgo test ./internal/names ", "\n\t@echo out of order; false\n\tgo test ./internal/names ")
	commit(t, s.dir)
	s.stops("out of order", "git merge --abort")
	clone.Run(t, s.dir, "git", "merge", "--abort")
	s.clean()
	clone.Run(t, s.dir, "git", "reset", "--quiet", "--hard", mine)
	before := s.rev("HEAD:api/baseline.binpb")
	s.succeeds("generated again: api/proto/video/v1/video.pb.go")
	t.Log("conflicts for the owner of the service: 0")
	for file, text := range map[string]string{
		"README.md":                       "Our own section",
		"api/proto/video/v1/video.pb.go":  "GetDirector",
		"api/openapi.json":                "STATE_ARCHIVED",
		"internal/app/config.go":          "20 * time.Second",
		"db/migrations/00004_videos.sql":  "A clearer comment.",
		"db/migrations/00098_later.sql":   "later",
		"db/migrations/01000_invoice.sql": "invoice",
		"deploy/names.sh":                 "video.events.billing",
		"internal/domain/parcel.go":       "// Deleted, in a later version, reports",
		"internal/domain/status.go":       "must be a word",
		"internal/server/parcels.go":      "// The prefixes of resource names, in a later version.",

		"internal/domain/purchase_order.go":                "// Deleted, in a later version, reports",
		"api/proto/parcel/v1/parcel_service.proto":         "of a later version, even",
		"api/proto/parcel/v1/parcel_service_grpc.pb.go":    "WeighParcel",
		"api/proto/purchase_order/v1/purchase_order.pb.go": "in a later version",
		"internal/store/parcels.go":                        "parcels",
		"internal/domain/video.go":                         "year of the far future",
		"internal/transport/transport.go":                  "a later version of github.com/acme/orders",
	} {
		contains(t, filepath.Join(s.dir, filepath.FromSlash(file)), text)
	}
	for file, texts := range map[string][]string{
		"parcel.go":                {"// It costs nothing.", "Alarm, in a later version, returns"},
		"parcel_purchase_order.go": {"// A supplier has one parcel.", "Reaction, in a later version, is how"},
	} {
		for _, text := range texts {
			contains(t, filepath.Join(s.dir, "internal", "domain", file), text)
		}
	}
	clone.Run(t, s.dir, "go", "test", "./internal/domain", "./internal/event", "./internal/archtest", "./internal/names/...")
	clone.Run(t, s.dir, "go", "test", "./db", "-run", "TestMigrationsAreSafe")
	clone.Run(t, s.dir, "go", "test", "./internal/store", "./cmd/server", "-run", "Parcel|PurchaseOrder|Status|TestSubscriptionsAreInNames")
	if after := s.rev("HEAD:api/baseline.binpb"); after != before || after == s.rev("template:api/baseline.binpb") {
		t.Error("the released contract changed, want the service's own")
	}
	s.clean()
	checkRecord(t, s.dir)
	clone.Run(t, s.dir, "go", "build", "./...")

	steps := map[string]func(){
		"grown entity": func() { grownEntity(s, template) }, "conflicts": func() { conflicts(s, template) },
		"shallow": func() { shallow(s, template) },
		"oldest":  func() { oldest(t, dir) },
	}
	drawn := slices.Sorted(maps.Keys(steps))
	if !deep { // each takes up to two minutes
		drawn = []string{cmp.Or(os.Getenv("LAB_UPGRADE"), drawn[rand.IntN(len(drawn))])}
	}
	for _, name := range drawn {
		t.Log("LAB_UPGRADE=" + name)
		if steps[name] == nil {
			t.Fatalf("LAB_UPGRADE must be one of %q", slices.Sorted(maps.Keys(steps)))
		}
		steps[name]()
	}
}

// deep is true with the build tag deep.
var deep bool

// editService makes the changes that the owner of a service typically makes: a field and
// its code, a rule, a setting, a page, a subscription, and a migration.
func editService(t *testing.T, dir string) {
	t.Helper()
	path := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	etag := "  string etag = 14 [(buf.validate.field).string.max_len = 64];\n"
	edit(t, path("api/proto/video/v1/video.proto"), etag, etag+"  // Who made it.\n  string director = 1001 [(google.api.field_behavior) = OUTPUT_ONLY];\n")
	edit(t, path("internal/server/videos.go"), "\t\tLanguageCode: v.LanguageCode,\n", "\t\tLanguageCode: v.LanguageCode,\n\t\tDirector:     \"unknown\",\n")
	validate := "func (d VideoDetails) validate() error {\n"
	edit(t, path("internal/domain/video.go"), validate,
		validate+"\tif d.ReleaseYear > 2100 {\n\t\treturn problem.InvalidField(\"video.release_year\", \"must not be a year of the far future\")\n\t}\n")
	edit(t, path("internal/app/config.go"), "\tOutboxRetention time.Duration", "\tCurrency string `env:\"CURRENCY\" envDefault:\"EUR\" help:\"of all prices\"`\n\n\tOutboxRetention time.Duration")
	edit(t, path("internal/app/config.go"), "startTimeout = 25 * time.Second", "startTimeout = 20 * time.Second")
	edit(t, path("README.md"), "## Read next", "## Our own section\n\nOrders.\n\n## Read next")
	edit(t, path("internal/names/video.go"), `{"catalog"}`, `{"catalog", "billing"}`)
	write(t, path("db/migrations/01000_invoice.sql"), "-- +goose Up\nCREATE TABLE orders_db.invoice (id uuid PRIMARY KEY);\n\n-- +goose Down\nDROP TABLE orders_db.invoice;\n")
	addEntities(t, dir)
	clone.Run(t, dir, "make", "generate-code") // without the slow rest of make generate, which the upgrade does
	clone.Run(t, dir, "go", "test", "./internal/names", "-run", "^TestScript$", "-update")
}

// addEntities adds entities of three shapes, of which one has a timer and reacts to another, and edits
// what was made: a rule, a reaction, and a command with an argument, which is an rpc, a decision and a
// handler.
func addEntities(t *testing.T, dir string) {
	t.Helper()
	path := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	add := func(args ...string) {
		clone.Run(t, dir, "go", append([]string{"run", "./cmd/entity", "add"}, args...)...)
	}
	order, err := filepath.Abs("../../kit/entity/testdata/purchase_order.proto")
	must(t, err)
	add("purchase_order", order, "--transitions", "open→sent:send sent→open:reopen")
	add("status", "--fields", "label:string! color:enum(red,green)! place:{street:string,floor:int32}")
	add("parcel", "--fields", "grams:int32 labels:strings", "--transitions", "packed→shipped:ship", "--timers", "packed:15m:ship")
	clone.Run(t, dir, "go", "run", "./cmd/entity", "react", "parcel", "purchase_order", "--on", "sent:supplier_id:ship")
	edit(t, path("internal/domain/parcel_purchase_order.go"), "\treturn nil, nil\n}", "\treturn nil, nil // A supplier has one parcel.\n}")

	edit(t, path("internal/domain/parcel.go"), "func CreateParcel(", "//\n// It costs nothing.\nfunc CreateParcel(")
	edit(t, path("internal/domain/status.go"), "\tcase d.Color == \"\":\n", "\tcase d.Label == \"XXX\":\n\t\treturn problem.InvalidField(\"status.label\", \"must be a word\")\n\tcase d.Color == \"\":\n")
	addWeigh(t, dir)
}

// addWeigh adds a command with an argument to parcels by hand.
func addWeigh(t *testing.T, dir string) {
	t.Helper()
	path := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	edit(t, path("api/proto/parcel/v1/parcel_service.proto"), "  // Soft-deletes a parcel", `  // Sets the weight of a parcel. See: AIP-136.
  rpc WeighParcel(WeighParcelRequest) returns (Parcel) {
    option (google.api.http) = {
      post: "/v1/{name=parcels/*}:weigh"
      body: "*"
    };
  }

  // Soft-deletes a parcel`)
	edit(t, path("api/proto/parcel/v1/parcel_service.proto"), "// The request of DeleteParcel.\n", `// The request of WeighParcel.
message WeighParcelRequest {
  // The name of the parcel, `+"`parcels/{uuid}`"+`.
  string name = 1 [
    (google.api.field_behavior) = REQUIRED,
    (google.api.resource_reference).type = "orders.example.com/Parcel"
  ];
  // The weight.
  int32 grams = 2 [(google.api.field_behavior) = REQUIRED];
}

// The request of DeleteParcel.
`)
	edit(t, path("internal/domain/parcel.go"), "// ShipParcel makes", weighDecision)
	edit(t, path("internal/server/parcels.go"), "func (s *parcelService) ShipParcel(", weighHandler)
}

// weighDecision is the decision of a command, and the beginning of the text that follows it.
const weighDecision = `// WeighParcel sets the weight.
func WeighParcel(grams int32, stamp Stamp) ParcelDecision {
	return UpdateParcel(func(d *ParcelDetails) { d.Grams = grams }, AnyVersion, stamp)
}

// ShipParcel makes`

// weighHandler is the handler of a command, and the beginning of the text that follows it.
const weighHandler = `func (s *parcelService) WeighParcel(ctx context.Context, request *parcelv1.WeighParcelRequest) (*parcelv1.Parcel, error) {
	return s.change(ctx, "name", request.GetName(), domain.WeighParcel(request.GetGrams(), s.stamp(ctx)))
}

func (s *parcelService) ShipParcel(`

// editTemplate makes a later version of the template. Its enum value changes generated
// files that editService changes, too.
func editTemplate(t *testing.T, dir string) {
	t.Helper()
	path := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	edit(t, path("api/proto/video/v1/video.proto"), "    STATE_PUBLISHED = 2;\n", "    STATE_PUBLISHED = 2;\n    // The video is kept, and not shown.\n    STATE_ARCHIVED = 3;\n")
	edit(t, path("internal/transport/transport.go"), "// A gRPC request goes from", "// This is a later version of example.com/videocatalog.\n//\n// A gRPC request goes from")
	edit(t, path("kit/entity/templates/domain.go.tmpl"), "// Deleted reports whether", "// Deleted, in a later version, reports whether")
	edit(t, path("kit/entity/templates/domain.go.tmpl"), "Alarm returns", "Alarm, in a later version, returns")
	edit(t, path("kit/entity/templates/reaction.go.tmpl"), "Reaction is how", "Reaction, in a later version, is how")
	edit(t, path("kit/entity/templates/server.go.tmpl"), "// Prefixes of resource names.", "// The prefixes of resource names, in a later version.")
	edit(t, path("kit/entity/templates/service.proto.tmpl"), "// Returns one {{.Words}}, even", "// Returns one {{.Words}} of a later version, even")
	edit(t, path("kit/entity/templates/resource.proto.tmpl"), "  // When it was last changed.\n", "  // When it was last changed, in a later version.\n")
	edit(t, path("db/migrations/00004_videos.sql"), "-- One index per", "-- A clearer comment. One index per")
	write(t, path("db/migrations/00098_later.sql"), "-- +goose Up\nCREATE TABLE video_catalog.later (id uuid PRIMARY KEY);\n\n-- +goose Down\nDROP TABLE video_catalog.later;\n")
	commit(t, dir)
}

// grownEntity adds a field to an entity between two upgrades. The later one begins with the
// entity as it is now, so it changes what the template changed, and no more.
func grownEntity(s upgrading, template string) {
	s.t.Helper()
	const domain = "internal/domain/parcel.go"
	clone.Run(s.t, s.dir, "go", "run", "./cmd/entity", "add", "parcel", "--fields", "grams:int32 labels:strings height:int32")
	edit(s.t, filepath.Join(s.dir, domain), "func UpdateParcel(", "//\n// It is cheap.\nfunc UpdateParcel(")
	commit(s.t, s.dir)
	edit(s.t, filepath.Join(template, "kit", "entity", "templates", "domain.go.tmpl"), "// Deleted, in a later version,", "// Deleted, in the last version,")
	commit(s.t, template)
	s.succeeds("entities, as they were made")
	for _, text := range []string{"// Deleted, in the last version,", "// It is cheap.", "Height", "WeighParcel"} {
		contains(s.t, filepath.Join(s.dir, filepath.FromSlash(domain)), text)
	}
	s.clean()
	clone.Run(s.t, s.dir, "go", "test", "./internal/domain", "./internal/event")
}

// conflicts checks that changes of the same lines of a source are left to git's merge,
// also again after an abort, and that the printed advice completes the merge.
func conflicts(s upgrading, template string) {
	s.t.Helper()
	edit(s.t, filepath.Join(template, "internal", "app", "config.go"), "startTimeout = 25 * time.Second", "startTimeout = 30 * time.Second")
	commit(s.t, template)
	for range 2 {
		s.stops("\n  internal/app/config.go\n", "make generate, go vet ./..., git add --all, and git commit", "git merge --abort", "rerere")
		s.refusedAsItIs("in the middle of a merge")
		clone.Run(s.t, s.dir, "git", "merge", "--abort")
		s.clean()
	}
	s.stops("internal/app/config.go")
	clone.Run(s.t, s.dir, "git", "checkout", "--quiet", "--theirs", "internal/app/config.go")
	clone.Run(s.t, s.dir, "git", "add", "--all")
	clone.Run(s.t, s.dir, "make", "generate-code")
	commit(s.t, s.dir)
	s.succeeds("up to date")
}

// shallow checks clones without the whole history.
func shallow(s upgrading, template string) {
	s.t.Helper()
	few := filepath.Join(filepath.Dir(s.dir), "few")
	clone.Run(s.t, s.dir, "git", "clone", "--quiet", "--depth", "1", "--branch", "main", "--no-single-branch", "file://"+s.dir, few)
	copied := filepath.Join(filepath.Dir(s.dir), "shallow-template")
	clone.Run(s.t, s.dir, "git", "clone", "--quiet", "--depth", "1", "file://"+template, copied)
	first := strings.Fields(clone.Run(s.t, template, "git", "rev-list", "--max-parents=0", "HEAD"))[0]

	s.dir = few
	clone.Run(s.t, few, "git", "config", "template.source", template)
	s.refused("git fetch --unshallow origin '+refs/heads/*:refs/remotes/origin/*'")
	clone.Run(s.t, few, "git", "fetch", "--quiet", "--unshallow", "origin", "+refs/heads/*:refs/remotes/origin/*")
	s.succeeds("up to date")
	s.succeeds("up to date", "--from", "file://"+copied)
	s.refusedAsItIs("git fetch --unshallow", "--from", "file://"+copied, first)
	s.refusedAsItIs("there is no way back", "--from", template, first)

	edit(s.t, filepath.Join(template, "README.md"), "## Read next", "## Read this next")
	commit(s.t, template)
	write(s.t, filepath.Join(template, "cmd/new/oldest"), clone.Run(s.t, template, "git", "rev-parse", "HEAD"))
	commit(s.t, template)
	s.refusedAsItIs("make a new service with cmd/new, and copy your files into it", "--from", template)
	clone.Run(s.t, template, "git", "reset", "--quiet", "--hard", "HEAD~2") // the steps may come in any order
}

// oldest upgrades a service of the oldest version that can be upgraded, with an option, an entity, and edits of
// the owner's files and of machinery that has moved since. It prints the new names that the owner's code needs.
func oldest(t *testing.T, dir string) {
	t.Helper()
	recorded, err := os.ReadFile("../../cmd/new/oldest")
	must(t, err)
	history, service := filepath.Join(dir, "history"), filepath.Join(dir, "oldest")
	clone.Run(t, "../..", "git", "clone", "--quiet", "--no-checkout", ".", history)
	clone.Run(t, history, "git", "remote", "remove", "origin") // an upgrade takes this copy
	version := strings.TrimSpace(string(recorded))
	if strings.TrimSpace(clone.Run(t, "../..", "git", "rev-parse", "--is-shallow-repository")) == "true" {
		t.Logf("a shallow clone has no version %s", version)
		return
	}
	clone.Run(t, history, "git", "checkout", "--quiet", "-B", "main", version)
	newService(t, history, service, append(order, "--module", "github.com/acme/orders", "--with", "console")...)
	clone.Run(t, service, "go", "run", "./cmd/entity", "add", "parcel", "--fields", "grams:int32")
	path := func(name string) string { return filepath.Join(service, filepath.FromSlash(name)) }
	edit(t, path("internal/domain/parcel.go"), "func CreateParcel(", "//\n// It costs nothing.\nfunc CreateParcel(")
	edit(t, path("internal/store/parcels.go"), "// ListParcels returns", "// ListParcels, which we call often, returns")
	edit(t, path("internal/store/tx.go"), "context.WithoutCancel(ctx), time.Second)", "context.WithoutCancel(ctx), 2*time.Second)")
	edit(t, path("db/queries/blocked.sql"), "-- one statement.", "-- one statement, as we like it.")
	write(t, path("db/queries/reports.sql"), "-- name: ForgetRequests :exec\nDELETE FROM orders_db.requests WHERE aggregate_id = @aggregate_id;\n")
	write(t, path("internal/store/reports.go"), forgetRequests)
	clone.Run(t, service, "make", "generate-code")
	clone.Run(t, service, "go", "vet", "./internal/store")
	commit(t, service)
	clone.Run(t, history, "git", "rm", "--quiet", "-r", ".")
	clone.Tree(t, "../..", history)
	commit(t, history)
	s := upgrading{t: t, dir: service, program: filepath.Join(dir, "oldest-upgrade")}
	clone.Run(t, service, "go", "build", "-o", s.program, "./cmd/upgrade")
	s.succeeds(`
  internal/store/reports.go:11: Wrap is pg.Wrap
  internal/store/reports.go:11: inTx is pg.InTx, whose function makes the queries: sqlcgen.New(tx)
  internal/store/reports.go:12: Queue is tx.Queue

orders has the template at ` + strings.TrimSpace(clone.Run(t, history, "git", "rev-parse", "HEAD")))
	s.clean()
	for file, text := range map[string]string{
		"internal/domain/parcel.go": "// It costs nothing.", "internal/store/parcels.go": "which we call often",
		"internal/pg/tx.go": "2*time.Second", "internal/pg/queries/blocked.sql": "as we like it", "internal/store/internal/sqlcgen/reports.sql.go": "ForgetRequests",
	} {
		contains(t, path(file), text)
	}
	for _, gone := range []string{"internal/store/tx.go", "internal/store/storetest", "internal/store/internal/sqlcgen/outbox.sql.go", "db/queries/blocked.sql"} {
		if _, err := os.Stat(path(gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there, or cannot be read: %v", gone, err)
		}
	}
	for _, change := range [][2]string{
		{"return Wrap(inTx(", "return pg.Wrap(pg.InTx("}, {"q *sqlcgen.Queries", "tx *pg.Tx"}, {"Queue(q.", "tx.Queue(sqlcgen.New(tx)."},
		{"\n\t\"github.com/acme/orders/internal/store", "\n\t\"github.com/acme/orders/internal/pg\"\n\t\"github.com/acme/orders/internal/store"},
	} {
		edit(t, path("internal/store/reports.go"), change[0], change[1])
	}
	clone.Run(t, service, "go", "vet", "./...")
	clone.Run(t, service, "go", "test", "./db", "./internal/archtest", "./internal/domain", "./internal/event", "./internal/pg", "./internal/store", "./cmd/server", "./options/console")
}

// forgetRequests is a store method of an owner, as the oldest version has it.
const forgetRequests = `package store

import (
	"context"

	"github.com/acme/orders/internal/store/internal/sqlcgen"
)

// ForgetRequests deletes the requests that made a parcel.
func (s *Parcels) ForgetRequests(ctx context.Context, id string) error {
	return Wrap(inTx(ctx, s.pool, "store.ForgetRequests", func(ctx context.Context, q *sqlcgen.Queries) error {
		Queue(q.ForgetRequests(ctx, id))
		return nil
	}), "forget the requests of %s", id)
}
`

// upgrading runs the command of a service.
type upgrading struct {
	t            *testing.T
	dir, program string
}

func (s upgrading) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.t.Context(), s.program, args...)
	cmd.Dir = s.dir
	return cmd
}

func (s upgrading) run(args ...string) (string, error) {
	out, err := s.command(args...).CombinedOutput()
	return string(out), err
}

func (s upgrading) rev(names ...string) string {
	s.t.Helper()
	return clone.Run(s.t, s.dir, "git", append([]string{"rev-parse"}, names...)...)
}

// clean checks that nothing is left that is not committed.
func (s upgrading) clean() {
	s.t.Helper()
	if changes := clone.Run(s.t, s.dir, "git", "status", "--porcelain"); changes != "" {
		s.t.Errorf("not committed:\n%s", changes)
	}
}

// succeeds runs an upgrade with arguments that prints a text.
func (s upgrading) succeeds(want string, args ...string) {
	s.t.Helper()
	out, err := s.run(args...)
	if err != nil {
		s.t.Fatalf("upgrade = %v:\n%s", err, out)
	}
	s.t.Log(out)
	if !strings.Contains(out, want) {
		s.t.Errorf("upgrade does not print %q:\n%s", want, out)
	}
}

// stops runs an upgrade that ends in the middle of a merge, and prints all the texts.
func (s upgrading) stops(want ...string) {
	s.t.Helper()
	head := s.rev("HEAD^{tree}") // the merge of the entities changes no file
	out, err := s.run()
	if err == nil {
		s.t.Fatalf("upgrade = nil, want a merge in progress:\n%s", out)
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			s.t.Errorf("upgrade does not print %q:\n%s", text, out)
		}
	}
	if got, merged := s.rev("HEAD^{tree}"), s.rev("MERGE_HEAD"); got != head || merged != s.rev("template") {
		s.t.Errorf("HEAD = %s, MERGE_HEAD = %s, want %s and the branch template", got, merged, head)
	}
}

// refused runs an upgrade that fails with a text, and changes nothing.
func (s upgrading) refused(want string) {
	s.t.Helper()
	s.refusedAsItIs(want)
	if out := clone.Run(s.t, s.dir, "git", "worktree", "list"); strings.Count(out, "\n") != 1 {
		s.t.Errorf("worktrees: %s, want no more than the service's", out)
	}
}

// refusedAsItIs runs an upgrade with arguments that fails with a text, and changes nothing.
func (s upgrading) refusedAsItIs(want string, args ...string) {
	s.t.Helper()
	before := s.state()
	if out, err := s.run(args...); err == nil || !strings.Contains(out, want) {
		s.t.Errorf("upgrade = %v, want it refused because of %q:\n%s", err, want, out)
	}
	if after := s.state(); after != before {
		s.t.Errorf("a refused upgrade changed\n%s\nto\n%s", before, after)
	}
}

// state returns all branches, the branch that is checked out, and what is not committed.
func (s upgrading) state() string {
	s.t.Helper()
	return clone.Run(s.t, s.dir, "git", "for-each-ref") + clone.Run(s.t, s.dir, "git", "symbolic-ref", "HEAD") + clone.Run(s.t, s.dir, "git", "status", "--porcelain")
}

// interrupted sends a signal to all programs of an upgrade, as a terminal does, while they
// generate. The upgrade leaves the service as it was, and after SIGINT no temporary file.
func (s upgrading) interrupted(signal syscall.Signal) {
	s.t.Helper()
	before := s.state()
	temporary := s.t.TempDir()
	cmd := s.command()
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	must(s.t, err)
	must(s.t, cmd.Start())
	printed := bufio.NewReader(stdout)
	for text := ""; !strings.HasSuffix(text, "generate Go"); {
		b, err := printed.ReadByte()
		if err != nil {
			s.t.Fatalf("the upgrade ended after %q: %v", text, err)
		}
		text += string(b)
	}
	must(s.t, syscall.Kill(-cmd.Process.Pid, signal))
	if _, err := printed.WriteTo(new(strings.Builder)); err != nil { // until all of them have ended
		s.t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		s.t.Errorf("upgrade after %v = nil", signal)
	}
	if after := s.state(); after != before {
		s.t.Errorf("an upgrade that ended by %v changed\n%s\nto\n%s", signal, before, after)
	}
	if left, err := os.ReadDir(temporary); signal != syscall.SIGKILL && (err != nil || len(left) > 0) {
		s.t.Errorf("%v left %v, %v", signal, left, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}
