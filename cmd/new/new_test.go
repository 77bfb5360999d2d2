package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A name of the template is renamed everywhere, unless it is part of another word.
func TestRename(t *testing.T) {
	t.Parallel()
	a := options{Module: "github.com/acme/orders", Service: "orders-api", Schema: "orders_id", Domain: "orders.acme.example", Full: true}
	for text, want := range map[string]string{
		`import "example.com/videocatalog/internal/store"`:     `import "github.com/acme/orders/internal/store"`,
		"videocatalog.example.com/Video":                       "orders.acme.example/Video",
		"com.example.videocatalog.video.v1":                    "example.acme.orders.video.v1",
		"service: videocatalog":                                "service: orders-api",
		"gcloud run jobs execute videocatalog-migrate":         "gcloud run jobs execute orders-api-migrate",
		"SELECT * FROM video_catalog.outbox_pending":           "SELECT * FROM orders_id.outbox_pending",
		"GRANT video_catalog_read_rw":                          "GRANT orders_id_read_rw",
		"sqlcgen.VideoCatalogVideo":                            "sqlcgen.OrdersIDVideo",
		"sqlcgen.VideoCatalogReadQuarantine":                   "sqlcgen.OrdersIDReadQuarantine",
		"VIDEOCATALOG_VICTIM":                                  "ORDERS_ID_VICTIM",
		"myvideocatalog videocatalogs myvideo_catalog":         "myvideocatalog videocatalogs myvideo_catalog",
		"a video catalog, CatalogService, video.events, video": "a video catalog, CatalogService, orders-api.video.events, video",
	} {
		if got := a.rename("x.md", text); got != want {
			t.Errorf("rename(%q) = %q, want %q", text, got, want)
		}
	}
}

// One error names every mistake, by its flag if it has one.
func TestWrongOptions(t *testing.T) {
	t.Parallel()
	full := filepath.Join(t.TempDir(), "full")
	must(t, os.MkdirAll(filepath.Join(full, "something"), 0o755))
	for name, test := range map[string]struct {
		a    options
		want []string
	}{
		"nothing":               {options{}, []string{"--module is required"}},
		"no host":               {options{Module: "orders"}, []string{"--module"}},
		"a URL":                 {options{Module: "https://github.com/acme/orders"}, []string{"--module"}},
		"a space":               {options{Module: "github.com/acme/my orders", Service: "orders"}, []string{"--module"}},
		"a version":             {options{Module: "github.com/acme/orders@v1", Service: "orders"}, []string{"--module"}},
		"short service":         {options{Module: "github.com/acme/orders", Service: "shop"}, []string{"--service", "such as shop-service"}},
		"long service":          {options{Module: "github.com/acme/orders", Service: strings.Repeat("x", 21)}, []string{"--service"}},
		"service in capitals":   {options{Module: "github.com/acme/orders", Service: "Orders"}, []string{"--service", "--schema", "--domain"}},
		"service with a dot":    {options{Module: "github.com/acme/orders", Service: "orders.v1"}, []string{"--service", "--schema"}},
		"service of digits":     {options{Module: "github.com/acme/orders", Service: "123456"}, []string{"--service", "--schema"}},
		"schema with a hyphen":  {options{Module: "github.com/acme/orders", Schema: "my-orders"}, []string{"--schema"}},
		"module vendor":         {options{Module: "github.com/acme/vendor"}, []string{"--module", "go command"}},
		"part vendor":           {options{Module: "github.com/vendor/orders"}, []string{"--module", "go command"}},
		"version 1":             {options{Module: "github.com/acme/orders/v1"}, []string{"--module", "go command"}},
		"version 02":            {options{Module: "github.com/acme/orders/v02"}, []string{"--module", "go command"}},
		"schema of PostgreSQL":  {options{Module: "github.com/acme/orders", Schema: "pg_orders"}, []string{"--schema", "such as orders_db"}},
		"schema of Supabase":    {options{Module: "github.com/acme/orders", Schema: "auth"}, []string{"--schema"}},
		"schema is a keyword":   {options{Module: "github.com/acme/orders", Schema: "order"}, []string{"--schema", "keyword"}},
		"schema user":           {options{Module: "github.com/acme/orders", Schema: "user"}, []string{"--schema", "keyword", "such as user_db"}},
		"schema of the example": {options{Module: "github.com/acme/orders", Schema: "video"}, []string{"--schema"}},
		"schema is the service": {options{Module: "github.com/acme/orders", Schema: "orders"}, []string{"--schema", "differ"}},
		"no domain":             {options{Module: "github.com/acme/orders", Domain: "orders"}, []string{"--domain"}},
		"domain with a path":    {options{Module: "github.com/acme/orders", Domain: "orders.example/x"}, []string{"--domain"}},
		"unknown part":          {options{Module: "github.com/acme/orders", Entity: "order", With: []string{"terraform", "docs"}}, []string{`--with "docs"`, "one of pools, terraform"}},
		"part of the example":   {options{Module: "github.com/acme/orders", Entity: "order", With: []string{"lab"}}, []string{`--with "lab"`}},
		"full has every part":   {options{Module: "github.com/acme/orders", Full: true, With: []string{"console"}}, []string{"--with must not be given with --full"}},
		"a long purpose":        {options{Module: "github.com/acme/orders", Entity: "order", Purpose: strings.Repeat("x", 301)}, []string{"--purpose"}},
		"unknown type":          {options{Module: "github.com/acme/orders", Entity: "order", Fields: "total:money"}, []string{"--fields", `unknown type "money"`}},
		"filter of nothing":     {options{Module: "github.com/acme/orders", Entity: "order", Refs: "customer_id"}, []string{"--refs", "no field of the type uuid has this name"}},
		"transition of nothing": {options{Module: "github.com/acme/orders", Entity: "order", Transitions: "draft→placed"}, []string{"--transitions", "want FROM→TO:COMMAND"}},
		"no entity":             {options{Module: "github.com/acme/orders"}, []string{"--entity is required"}},
		"service of Google":     {options{Module: "github.com/acme/orders", Service: "google-orders", Full: true}, []string{"--service", "goog"}},
		"entity, full":          {options{Module: "github.com/acme/orders", Full: true, Entity: "order"}, []string{"must not be given with --full"}},
		"moves, full":           {options{Module: "github.com/acme/orders", Full: true, Transitions: "a→b:c"}, []string{"must not be given with --full"}},
		"a full folder":         {options{Module: "github.com/acme/orders", dir: full}, []string{"empty folder"}},
		"all at once": {
			options{Module: "x", Service: "y", Schema: "select", Domain: "z", Entity: "order", With: []string{"w"}, dir: full},
			[]string{"--module", "--service", "--schema", "--domain", "--with", "empty folder"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.a.dir == "" {
				test.a.dir = filepath.Join(t.TempDir(), "new")
			}
			test.a.setDefaults()
			err := test.a.check()
			if err == nil {
				t.Fatalf("%+v is accepted", test.a)
			}
			if got := strings.Count(err.Error(), "\n") + 1; name == "all at once" && got != len(test.want) {
				t.Errorf("%d mistakes, want %d:\n%v", got, len(test.want), err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error = %v, want it to contain %q", err, want)
				}
			}
		})
	}
	for _, a := range []options{
		{Module: "github.com/acme/orders", Full: true},
		{Module: "gitlab.example.org/group/sub/order-service.v2", Service: "order-service", Full: true},
		{Module: "github.com/acme/status-page", Schema: "status", Full: true},
		{Module: "github.com/acme/news-feed", With: []string{"terraform"}, Entity: "order"},
		{Module: "github.com/acme/orders", Entity: "order"},
		{Module: "github.com/acme/orders", Entity: "order", Fields: "title:string!", Transitions: "a→b:c"},
	} {
		a.dir = filepath.Join(t.TempDir(), "new")
		a.setDefaults()
		if err := a.check(); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// The name of a service is the last part of its module's path, without a major version.
func TestServiceOfModule(t *testing.T) {
	t.Parallel()
	for module, want := range map[string]string{
		"github.com/acme/orders": "orders", "github.com/acme/orders/v2": "orders", "gopkg.in/orders.v2": "orders", "github.com/acme/Orders-v2": "orders-v2",
		"github.com/acme/subs": "subs-service", "github.com/acme/x": "x-service", "github.com/acme/24_hours.shop": "my-24-hours-shop", "github.com/acme/google-pay": "my-google-pay",
		"github.com/acme/a-name-of-nineteen-x-y": "a-name-of-nineteen-x", "github.com/acme/pg-orders": "pg-orders", "github.com/acme/~": "my-service",
	} {
		a := options{Module: module, Full: true, dir: filepath.Join(t.TempDir(), "new")}
		a.setDefaults()
		if err := a.check(); a.Service != want || a.Domain != want+".example.com" || err != nil {
			t.Errorf("the service of %s is %q of %q, %v, want %q", module, a.Service, a.Domain, err, want)
		}
	}
}

// The topic of a service begins with its name, because services of one project share its topics.
func TestTopics(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a    options
		want string
	}{
		{options{Service: "billing", Full: true}, "TOPICS=(billing.video.events billing.video.events.catalog)"},
		{options{Service: "billing", Entity: "order_item"}, "TOPICS=(billing.order-item.events billing.order-item.events.order-item-views)"},
	} {
		if got := tt.a.rename("x.sh", "TOPICS=(video.events video.events.catalog)"); got != tt.want {
			t.Errorf("with %+v = %q, want %q", tt.a, got, tt.want)
		}
	}
}

// The folder may come before or after the flags.
func TestParse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"dir", "--module", "m", "--with", "console, terraform", "--yes"}, {"--module", "m", "--yes", "--with=console,terraform", "dir"},
		{"--module", "m", "--yes", "--with", "console", "--with", "terraform", "dir"},
	} {
		a, m, err := parse(args)
		if err != nil || a.dir != "dir" || a.Module != "m" || !m.yes || strings.Join(list(a.with), " ") != "console terraform" {
			t.Errorf("parse(%q) = %+v, %+v, %v", args, a, m, err)
		}
	}
	for _, args := range [][]string{{}, {"a", "b"}, {"--modul", "m", "dir"}, {"dir", "--module"}, {"dir", "--upgrade", "extra"}} {
		if _, _, err := parse(args); err == nil || !strings.Contains(err.Error(), "--help") {
			t.Errorf("parse(%q) = %v, want a hint", args, err)
		}
	}
}

// input returns what a person types.
func input(lines ...string) *strings.Reader {
	return strings.NewReader(strings.Join(lines, "\n") + "\n")
}

// At every question an empty line takes the default, and the default keeps the rules.
func TestAskWithDefaults(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{
		"orders": "example.com/orders orders order", "subs": "example.com/subs-service subs-service sub",
		"My Shop": "example.com/my-shop my-shop my_shop", "billing": "example.com/billing billing billing", "événement": "example.com/v-nement v-nement v_nement",
	} {
		a := options{dir: filepath.Join(t.TempDir(), dir)}
		if err := ask(&a, input(make([]string, 20)...), t.Output()); err != nil {
			t.Errorf("%s: ask() = %v", dir, err)
			continue
		}
		a.setDefaults()
		if got := a.Module + " " + a.Service + " " + a.Entity; a.check() != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", dir, got, a.check(), want)
		}
	}
}

// After a wrong value, ask prints the rule, and asks again. It does not ask for an option of the command line.
// The command at the end has all values.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	var screen strings.Builder
	a := options{Domain: "orders.acme.example", dir: filepath.Join(t.TempDir(), "my orders"), offered: []string{"console", "reactions"}}
	if err := ask(&a, input("orders", "github.com/acme/subs", "subs", "", "Order", "class", "plan", "plan", "",
		"seats:int", "seats:int32 price:{units:int64}", "open->open:open", "trial->active:activate", "Bob's plans.", "kiosk", "reactions, console",
		"trial:soon:activate", "trial:15m:activate", "plan", "money"), &screen); err != nil {
		t.Fatalf("ask() = %v:\n%s", err, &screen)
	}
	for _, rule := range []string{
		"must be a host and a path", "6 to 20 lower-case letters", "at most 24 characters", "a word of Java", "equal to the singular",
		`unknown type "int"`, "it changes nothing", "must be one of pools, terraform, console, reactions", `"soon" must be a duration`, "must differ from the service, the entity",
		`--purpose 'Bob'\''s plans.' --with 'reactions, console' --timers trial:15m:activate --schema money --domain orders.acme.example`, "my orders'",
	} {
		if strings.Count(screen.String(), rule) != 1 {
			t.Errorf("the screen has not once %q", rule)
		}
	}
	if a.setDefaults(); a.check() != nil || strings.Contains(screen.String(), "Domain of") {
		t.Errorf("options = %+v, %v", a, a.check())
	}
	t.Log(screen.String())
	if err := ask(&options{dir: filepath.Join(t.TempDir(), "x")}, input("github.com/acme/orders"), &screen); err == nil {
		t.Error("ask() of an input that ends = nil")
	}
}

// Rows and points with a link to a left-out file are removed. In a sentence such a link becomes text, or is
// removed behind another link of a list. Other links stay.
func TestUnlink(t *testing.T) {
	t.Parallel()
	left := []string{"docs/decisions", "lab", "README.zh-CN.md"}
	for text, want := range map[string]string{
		"[a](decisions/1.md), and [b](decisions/README.md#x)":             "a, and b",
		"[c](../lab/bench) [d](testing.md#lab); [中文](../README.zh-CN.md)": "c [d](testing.md#lab); 中文",
		"[d](testing.md), [a](decisions/1.md), [c](../lab/x), [e](e.md)":  "[d](testing.md), [e](e.md)",
		"[d](testing.md) · [c](../lab/x) · [e](e.md)":                     "[d](testing.md) · [e](e.md)",
		"[d](testing.md)、[a](decisions/1.md)、[e](e.md)、[c](../lab/x)。":    "[d](testing.md)、[e](e.md)。",
		"- one\n- [two](decisions/2.md)\n3. [three](../lab/x) is more\n":  "- one\n",
		"| [a](decisions/1.md) | b |\n| [decisions](e.md) | lab/x |\n":    "| [decisions](e.md) | lab/x |\n",
	} {
		if got := unlink("docs/page.md", text, left); got != want {
			t.Errorf("unlink(%q) = %q, want %q", text, got, want)
		}
	}
}

// Marks are removed, and with them the lines of the parts that are left out. A comment that
// only looks like a mark stays.
func TestUnmark(t *testing.T) {
	t.Parallel()
	const text = "a // only observe\n// only observe: begin\nb\n# only full: begin\nc\n# only full: end\n// only observe: end\n" +
		"| d <!-- only lab --> |\ne // only for the message\nf # only observes\n"
	for _, test := range []struct {
		without []string
		want    string
	}{
		{nil, "a\nb\nc\n| d |\ne // only for the message\nf # only observes\n"},
		{[]string{"observe"}, "| d |\ne // only for the message\nf # only observes\n"},
		{[]string{"full", "lab"}, "a\nb\ne // only for the message\nf # only observes\n"},
	} {
		if got, err := unmark(text, test.without); err != nil || got != test.want {
			t.Errorf("unmark() without %q = %q, %v, want %q", test.without, got, err, test.want)
		}
	}
	for text, want := range map[string]string{
		"# only lab: begin\n": "does not end", "# only lab: end\n": "has not begun",
		"# only lab: begin\n# only observe: end\n# only lab: end\n": "has not begun",
	} {
		if _, err := unmark(text, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("unmark(%q) = %v, want %q", text, err, want)
		}
	}
}

// The new service does not mention this command.
func TestForget(t *testing.T) {
	t.Parallel()
	const text = "# Contributing\n\n## A service of your own\n\ngo run ./cmd/new\nand more\n\n## Next\nlint ./...\n| `cmd/new/` | x |\nkept\n"
	if got, want := forget(text, "cmd/new"), "# Contributing\n\n## Next\nlint ./...\nkept\n"; got != want {
		t.Errorf("forget() = %q, want %q", got, want)
	}
}

// The body of a create has a value of each field.
func TestBodyOf(t *testing.T) {
	t.Parallel()
	const fields = "customer_id:uuid! color:enum(red,green)! note:string? place:{street:string,floor:int32} lines:[{title:string,cents:int64}]! due_time:time tags:strings! ok:bool after:duration"
	want := `{"customerId": "01890a5d-ac96-7f00-8b02-0c0d0e0f1003", "color": "COLOR_RED", "note": "text", "place": {"street": "text", "floor": 12}, ` +
		`"lines": [{"title": "text", "cents": 1200}], "dueTime": "2026-01-02T03:04:05Z", "tags": ["text"], "ok": true, "after": "90s"}`
	if got := bodyOf(fields); got != want {
		t.Errorf("bodyOf() = %s, want %s", got, want)
	}
}

// A place is local by the rules of git.
func TestIsLocal(t *testing.T) {
	t.Parallel()
	for place, want := range map[string]bool{
		"/home/ann/template": true, "../template": true, "file:///home/ann/template": true, "./a:b": true, "": true,
		"https://github.com/acme/template": false, "git@github.com:acme/template.git": false, "ssh://git@host/x": false,
	} {
		if got := isLocal(place); got != want {
			t.Errorf("isLocal(%q) = %t, want %t", place, got, want)
		}
	}
}

// A template with changes, another repository and no repository are refused.
func TestWrongTemplate(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"no repository":      {func(*testing.T, string) {}, "no git repository"},
		"another repository": {func(t *testing.T, dir string) { t.Helper(); git(t, dir, "init", "--quiet") }, "no cmd/new"},
		"with changes": {func(t *testing.T, dir string) {
			t.Helper()
			git(t, dir, "init", "--quiet")
			must(t, os.MkdirAll(filepath.Join(dir, "cmd", "new"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "cmd", "new", "x"), nil, 0o600))
		}, "not committed"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			test.prepare(t, dir)
			t.Chdir(dir)
			if _, err := findTemplate(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("findTemplate() = %v, want %q", err, test.want)
			}
		})
	}
}

// A rendering that fails or is interrupted leaves nothing.
func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repository := filepath.Join(dir, "template")
	must(t, os.MkdirAll(repository, 0o755))
	git(t, repository, "init", "--quiet")
	must(t, os.WriteFile(filepath.Join(repository, "go.mod"), []byte("module example.com/videocatalog\n"), 0o600))
	git(t, repository, "add", "--all")
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for name, ctx := range map[string]context.Context{"failed": t.Context(), "interrupted": interrupted} {
		a := options{Module: "github.com/acme/orders", Service: "orders", Schema: "orders", Domain: "orders.example.com", dir: filepath.Join(dir, "sub", name)}
		if err := render(ctx, template{root: repository}, a, t.Output()); err == nil {
			t.Errorf("%s: render() = nil, want that it cannot generate", name)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "sub")); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", name, left, err)
		}
	}
}

// The commits need neither the signer nor the hooks of the owner, and the generators no go.work around the folder.
// If git fails, the files stay.
func TestOwnersEnvironment(t *testing.T) {
	dir := t.TempDir()
	repository := filepath.Join(dir, "template")
	for name, text := range map[string]string{
		"go.mod": "module example.com/videocatalog\n", "Makefile": "tools baseline generate-code:\n", "deploy/observe/generate/main.go": "package main\n\nfunc main() {}\n",
		"../go.work": "go 1.26\n", "../hooks/pre-commit": "#!/bin/sh\nexit 1\n", "../hooks/prepare-commit-msg": "#!/bin/sh\nexit 1\n",
		"../hooks/post-checkout": "#!/bin/sh\nexit 1\n",
	} {
		writeFile(t, repository, name, text)
	}
	for _, hook := range []string{"pre-commit", "prepare-commit-msg", "post-checkout"} {
		must(t, os.Chmod(filepath.Join(dir, "hooks", hook), 0o700))
	}
	git(t, repository, "init", "--quiet")
	git(t, repository, "add", "--all")
	for config, want := range map[string]string{
		"[commit]\ngpgsign = true\n[gpg]\nprogram = false\n[core]\nhooksPath = " + filepath.Join(dir, "hooks"): "go work use .\n",
		"[core]\nautocrlf = true\nsafecrlf = true\n":                                                           "Correct git, then commit",
	} {
		writeFile(t, dir, "gitconfig", config)
		t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(dir, "gitconfig"))
		folder, err := os.MkdirTemp(dir, "orders-")
		must(t, err)
		a := options{Module: "github.com/acme/orders", Service: "orders", Schema: "orders", Domain: "orders.example.com", Full: true, dir: folder}
		var screen strings.Builder
		err = render(t.Context(), template{root: repository}, a, &screen)
		if said := fmt.Sprint(&screen, err); !strings.Contains(said, want) {
			t.Errorf("with %s: render() printed %s, want %q", config, said, want)
		}
		if _, err := os.Stat(filepath.Join(folder, "template.json")); err != nil {
			t.Errorf("with %s: %v, want the files", config, err)
		}
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
