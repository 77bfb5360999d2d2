package tenancy

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/tenant"
	"example.com/videocatalog/internal/transport"
)

// A token has one tenant of the right form, or the call is refused with the reason.
func TestClaim(t *testing.T) {
	t.Parallel()
	for claims, want := range map[string]string{ // a want with a space is the reason
		`{"sub":"a","tenant":"acme"}`:                  "acme",
		`{"tenant":"\u00e9t\u00e9 & co"}`:              "été & co",
		`{"tenant":"` + strings.Repeat("x", 64) + `"}`: strings.Repeat("x", 64),
		`{"tenant":"` + strings.Repeat("x", 65) + `"}`: "the claim tenant has 65 bytes, and must have 1 to 64",
		`{"tenant":""}`:                           "the claim tenant has 0 bytes, and must have 1 to 64",
		`{"sub":"a"}`:                             "the token has no claim tenant",
		`{"Tenant":"acme"}`:                       "the token has no claim tenant",
		`{"more":{"tenant":"acme"}}`:              "the token has no claim tenant",
		`{"tenant":"acme","tenant":"acme"}`:       "the token has the claim tenant 2 times",
		`{"tenant":"acme","\u0074enant":"other"}`: "the token has the claim tenant 2 times",
		`{"tenant":["acme"]}`:                     "the claim tenant must be one string",
		`{"tenant":null}`:                         "the claim tenant must be one string",
		`{"tenant":7}`:                            "the claim tenant must be one string",
		`{"tenant":"a\u0000"}`:                    "the claim tenant has a character that no tenant may have",
		`{"tenant":"a\nb"}`:                       "the claim tenant has a character that no tenant may have",
		"{\"tenant\":\"a\xff\"}":                  "the claim tenant has a character that no tenant may have",
		`{"tenant":"\ud800"}`:                     "the claim tenant has a character that no tenant may have",
		`["tenant"]`:                              "claims of the token: they are no object",
		`{"tenant":"acme"`:                        "claims of the token: ",
	} {
		got, err := claim("e30."+base64.RawURLEncoding.EncodeToString([]byte(claims))+".c2ln", "tenant")
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) || (err != nil) != (strings.Contains(want, " ") && want != "été & co") {
			t.Errorf("claim(%s) = %q, %v, want %q", claims, got, err, want)
		}
	}
	for _, token := range []string{"", "a.b", "e30.%.e30"} {
		if got, err := claim(token, "tenant"); err == nil {
			t.Errorf("claim(%q) = %q, want an error", token, got)
		}
	}
}

// The settings are checked before anything starts. Without TENANCY_DATABASE_URL the option does nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	const address = "postgres://calls@db/x"
	for _, tt := range []struct {
		settings settings
		run      app.Selection
		want     string
	}{
		{settings{}, app.Selection{Subcommand: "serve", Auth: "off"}, ""},
		{settings{Commands: address}, app.Selection{Subcommand: "serve", Auth: "oidc"}, ""},
		{settings{Commands: address}, app.Selection{Subcommand: "migrate"}, ""},
		{settings{Commands: address}, app.Selection{Subcommand: "serve", Auth: "off"}, "AUTH must be an option"},
		{settings{Commands: address}, app.Selection{Subcommand: "serve", Auth: "iam"}, "AUTH must be an option"},
		{settings{Queries: address}, app.Selection{Subcommand: "serve", Auth: "oidc"}, "TENANCY_READ_DATABASE_URL needs TENANCY_DATABASE_URL"},
		{settings{Commands: "postgres://u:secret@[", Claim: "tenant"}, app.Selection{Subcommand: "serve", Auth: "oidc"}, "TENANCY_DATABASE_URL must be a URL"},
	} {
		if got := fmt.Sprint(tt.settings.check(tt.run)); !strings.Contains(got, tt.want) || tt.want == "" && got != "[]" || strings.Contains(got, "secret") {
			t.Errorf("check(%+v) of %+v = %s, want %q", tt.run, tt.settings, got, tt.want)
		}
	}
	off, on := settings{}, settings{Commands: "c", Queries: "q"}
	if got := off.url(transport.SideQueries) + on.url(transport.SideCommands) + on.url(transport.SideQueries); got != "cq" {
		t.Errorf("the URLs = %q, want cq", got)
	}
	if ctx, err := off.scope(t.Context(), ""); err != nil || tenant.Of(ctx) != "" {
		t.Errorf("scope() without the setting = %v, want no tenant", err)
	}
}

// Whatever a call does, it sees and writes rows of its tenant only, and without a tenant none. Loops see all rows.
func TestCallsSeeTheirTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, of := range []string{"acme", "other"} {
		_, err := write(tenant.With(t.Context(), of), f.calls, of, "from "+of)
		must(t, err)
	}
	single := pg.Autocommit(f.calls)
	ways := map[string]func(ctx context.Context) (string, error){
		"a query": func(ctx context.Context) (string, error) { return owners(ctx, single, page) },
		"a row": func(ctx context.Context) (found string, err error) {
			err = single.QueryRow(ctx, "SELECT coalesce(string_agg(tenant_id, ' '), '') FROM video_catalog.letters_1").Scan(&found)
			return found, err
		},
		"a command": func(ctx context.Context) (string, error) {
			tag, err := single.Exec(ctx, "UPDATE video_catalog.letters_1 SET note = note")
			return strings.Repeat("acme", int(tag.RowsAffected())), err
		},
		"a batch": func(ctx context.Context) (string, error) {
			batch := &pgx.Batch{}
			batch.Queue(page)
			results := single.SendBatch(ctx, batch)
			defer results.Close()
			rows, _ := results.Query() // CollectRows returns its error
			found, err := pgx.CollectRows(rows, pgx.RowTo[string])
			return strings.Join(found, " "), err
		},
		"a page": func(ctx context.Context) (string, error) { return owners(ctx, pg.NewPage(f.calls, 20), page) },
		"a transaction": func(ctx context.Context) (found string, err error) {
			err = pg.InTx(ctx, f.calls, "read", func(ctx context.Context, tx *pg.Tx) error {
				found, err = owners(ctx, tx, page)
				return err
			})
			return found, err
		},
	}
	for name, read := range ways {
		if got, err := read(acme(t)); got != "acme" || err != nil {
			t.Errorf("%s of acme sees %q, %v, want its row", name, got, err)
		}
		if got, err := read(t.Context()); got != "" || err != nil {
			t.Errorf("%s without a tenant sees %q, %v, want nothing", name, got, err)
		}
		if _, err := single.Exec(acme(t), "SELECT 1/0"); err == nil { // the setting of a failed transaction ends, too
			t.Error("1/0 succeeds")
		}
	}
	for _, of := range []string{"other", ""} {
		if _, err := write(acme(t), f.calls, of, "forged"); err == nil {
			t.Errorf("a call of acme writes a row of %q", of)
		}
	}
	if _, err := write(t.Context(), f.calls, "acme", "without a tenant"); err == nil {
		t.Error("a call without a tenant writes a row")
	}
	for _, sql := range []string{"SELECT payload FROM video_catalog.outbox", "SELECT count(*) FROM video_catalog.outbox_pending"} {
		if _, err := single.Exec(acme(t), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s in a call = %v, want it denied: the outbox has the events of all tenants", sql, err)
		}
	}
	if got, err := owners(t.Context(), pg.Autocommit(f.loops), page); got != "acme other" || err != nil {
		t.Errorf("a loop sees %q, %v, want all rows", got, err)
	}
	pgtest.Execute(t, f.admin, "ALTER TABLE video_catalog.letters_1 ADD UNIQUE (note) DEFERRABLE INITIALLY DEFERRED")
	if _, err := single.Exec(acme(t), "UPDATE video_catalog.letters_1 SET note = 'from other'"); err == nil || !strings.Contains(err.Error(), "duplicate key") {
		t.Errorf("a statement whose commit fails = %v, want that", err)
	}
	if got := pgtest.Count(t, f.admin, "SELECT count(*) FROM video_catalog.outbox"); got != 2 {
		t.Errorf("%d events, want one for each row", got)
	}
}

// Two tenants may choose one request id.
func TestRequestIDsOfTenants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	request, made := uuid.Must(uuid.NewV7()), make(map[uuid.UUID]bool)
	for _, of := range []string{"acme", "other", "acme"} {
		id := uuid.Must(uuid.NewV7())
		id, err := pg.NewCommandSide(f.calls, "letter", nil).Create(tenant.With(t.Context(), of), "write", request, []byte{1}, id, record(of, id, "note"))
		must(t, err)
		made[id] = true
	}
	if len(made) != 2 {
		t.Errorf("%d letters, want one of each tenant", len(made))
	}
}

// Each mistake by which a call could see another tenant, or a loop or a migration no row, is found at the start.
func TestStartFindsMistakes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ sabotage, want string }{
		"none":                {"SELECT", ""},
		"superuser":           {"ALTER ROLE %s_calls SUPERUSER", "is, or can become, the superuser"},
		"BYPASSRLS":           {"ALTER ROLE %s_calls BYPASSRLS", "who has BYPASSRLS"},
		"owner":               {"GRANT %[1]s_owner TO %[1]s_calls", "the owner of video_catalog.letters_1"},
		"member of the loops": {"GRANT %[1]s_loops TO %[1]s_calls", "as whom the loops see all tenants"},
		"role of the loops":   {"ALTER ROLE %[1]s_calls NOINHERIT; GRANT video_catalog_rw TO %[1]s_calls", "the policy loops of video_catalog.letters_1 opens other tenants"},
		"no security":         {"ALTER TABLE video_catalog.letters_1 DISABLE ROW LEVEL SECURITY", "letters_1 has tenant_id and no row security"},
		"not forced":          {"ALTER TABLE video_catalog.letters_1 NO FORCE ROW LEVEL SECURITY", "letters_1 has tenant_id and no row security"},
		"no policy of calls":  {"DROP POLICY calls ON video_catalog.letters_1", "letters_1 lacks the policy of calls"},
		"no policy of loops":  {"DROP POLICY loops ON video_catalog.letters_1", "letters_1 lacks the policy of the loops"},
		"no policy of owner":  {"DROP POLICY owner ON video_catalog.letters_1", "letters_1 lacks the policy of its owner"},
		"not alone":           {"ALTER POLICY calls ON video_catalog.letters_1 USING (tenant_id = current_setting('app.tenant', true) OR current_setting('app.tenant', true) = '*')", "letters_1 opens other tenants"},
		"another check":       {"ALTER POLICY calls ON video_catalog.letters_1 WITH CHECK (true)", "letters_1 lacks the policy of calls"},
		"a second policy":     {"CREATE POLICY every ON video_catalog.letters_1 USING (current_setting('app.tenant', true) = '*')", "the policy every of video_catalog.letters_1 opens other tenants"},
		"calls only read":     {"DROP POLICY calls ON video_catalog.letters_1; CREATE POLICY calls ON video_catalog.letters_1 FOR SELECT TO video_catalog_calls USING (tenant_id = current_setting('app.tenant', true))", "letters_1 lacks the policy of calls"},
		"every insert":        {"CREATE POLICY every ON video_catalog.letters_1 FOR INSERT WITH CHECK (true)", "the policy every of video_catalog.letters_1 opens other tenants"},
		"CREATEROLE":          {"ALTER ROLE %s_calls CREATEROLE", "who has BYPASSRLS or CREATEROLE"},
		"a view":              {"CREATE VIEW video_catalog.notes_1 AS TABLE video_catalog.letters_1; GRANT SELECT (tenant_id) ON video_catalog.notes_1 TO video_catalog_calls", "the view video_catalog.notes_1 shows all tenants"},
		"users of one side": {`REVOKE video_catalog_read_rw FROM %[1]s_loops; REVOKE video_catalog_read_calls FROM %[1]s_calls; CREATE TABLE video_catalog_read.letters_1 (tenant_id text);
			ALTER TABLE video_catalog_read.letters_1 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY owner ON video_catalog_read.letters_1 TO CURRENT_USER USING (true)`, ""},
		"a projection": {"CREATE TABLE video_catalog_read.letters_1 (tenant_id text)", "video_catalog_read.letters_1 has tenant_id and no row security"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			pgtest.Execute(t, f.admin, fmt.Sprintf(tt.sabotage+" -- %.0[1]s", f.name))
			s := settings{Commands: f.url(f.name + "_calls")}
			err := s.start(t.Context(), f.process("api"))
			got := fmt.Sprint(err) // may name other tables of the service
			if !strings.Contains(got, tt.want) || tt.want == "" && strings.Contains(got, "letters_1") || tt.want != "" && app.ExitCode(err) != app.ExitUsage {
				t.Errorf("start() = %v, want %q", err, tt.want)
			}
		})
	}
	f := newFixture(t)
	got := fmt.Sprint(new(settings).start(t.Context(), f.process("api")))
	if !strings.Contains(got, "TENANCY_DATABASE_URL is required: [") || !strings.Contains(got, `"video_catalog.letters_1"`) {
		t.Errorf("start() without the setting = %s, want it to be required", got)
	}
	must(t, new(settings).start(t.Context(), f.process("publisher"))) // without the role api
	s := settings{Commands: f.url(f.name + "_calls"), Queries: f.url(f.name + "_other")}
	if err := s.start(t.Context(), f.process("api")); err == nil || !strings.Contains(err.Error(), "READ_DATABASE_URL must differ from DATABASE_URL") {
		t.Errorf("start() with two users and one database = %v, want an error", err)
	}
	p := f.process("api")
	p.QueryPool = pgtest.Pool(t, 1)
	s.Queries = ""
	if err := s.start(t.Context(), p); app.ExitCode(err) != app.ExitUsage || !strings.Contains(err.Error(), "must name the database of DATABASE_URL") {
		t.Errorf("start() with another database for the loops = %v, want an error", err)
	}
}

// process is a process with some roles.
func (f *fixture) process(roles ...string) *app.Process {
	return &app.Process{Selection: app.Selection{Subcommand: "serve"}, Roles: roles, Log: slog.New(slog.DiscardHandler), CommandPool: f.loops, QueryPool: f.loops}
}
