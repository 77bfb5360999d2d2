package db_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"example.com/videocatalog/db"
	"example.com/videocatalog/internal/pg/pgtest"
)

// A mistake in a URL is reported at once if it can be found without a connection.
// The error does not quote the URL.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:secret@h/d": "",
		"postgres://u:secret@h/d?default_query_exec_mode=cache_describe":  "",
		"postgres://u:secret@h/d?default_query_exec_mode=exec":            "default_query_exec_mode",
		"postgres://u:secret@h/d?default_query_exec_mode=simple_protocol": "default_query_exec_mode",
		"postgres://u:secret@h:port/d":                                    "must be a URL",
		"secret":                                                          "must be a URL",
	} {
		err := db.CheckURL(url)
		if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("CheckURL(%s) = %v, want %q", url, err, want)
		}
	}
}

// user makes a user with settings, and returns the URL of the database target for
// this user. %s in a setting is the user.
func user(t *testing.T, target string, settings ...string) string {
	t.Helper()
	admin := open(t, target)
	name := fmt.Sprintf("user_%d", databases.Add(1))
	for _, statement := range append([]string{"CREATE ROLE %s LOGIN IN ROLE video_catalog_rw, video_catalog_read_rw"}, settings...) {
		execute(t, admin, strings.ReplaceAll(statement, "%s", name))
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	return target + "&user=" + name
}

// A role whose commits a crash of the server would lose, or whose transactions fail beside others, is
// refused, with the remedy.
func TestCheckRefusesSettings(t *testing.T) {
	t.Parallel()
	direct := pgtest.Direct(t, pgtest.URL(t))
	for setting, want := range map[string]string{
		"synchronous_commit = on": "", "synchronous_commit = local": "", // on this server only
		"synchronous_commit = off":                          "SET synchronous_commit = 'on'",
		"default_transaction_isolation = 'read committed'":  "",
		"default_transaction_isolation = 'repeatable read'": "SET default_transaction_isolation = 'read committed'",
		"default_transaction_isolation = 'serializable'":    "SET default_transaction_isolation = 'read committed'",
	} {
		err := db.Check(t.Context(), pgtest.Options(), open(t, user(t, direct, "ALTER ROLE %s SET "+setting)))
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Check() with %s = %v, want %q", setting, err, want)
		}
	}
}

// A database of another encoding than UTF-8 would keep other characters than it was
// given. It is refused before the first migration.
func TestAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	admin := open(t, pgtest.Direct(t, pgtest.URL(t)))
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		name := fmt.Sprintf("other_%d", databases.Add(1))
		execute(t, admin, "CREATE DATABASE "+name+" ENCODING '"+encoding+"' LOCALE 'C' TEMPLATE template0")
		address, err := url.Parse(admin.Config().ConnString())
		must(t, err)
		address.Path = "/" + name
		if _, err := db.Migrate(t.Context(), address.String(), discard); err == nil || !strings.Contains(err.Error(), "server_encoding is "+encoding) {
			t.Errorf("Migrate() of a database in %s = %v, want it refused with the name of the setting", encoding, err)
		}
		execute(t, admin, "DROP DATABASE "+name+" WITH (FORCE)")
	}
}

// Ping tells a database that takes no writes from one that does, and the pool has
// new sessions after that.
func TestPing(t *testing.T) {
	t.Parallel()
	direct := pgtest.Direct(t, pgtest.URL(t))
	target := user(t, direct, "ALTER ROLE %s SET default_transaction_read_only = on")
	pool := open(t, target)
	must(t, db.Ping(t.Context(), pool, false)) // for reads
	if err := db.Ping(t.Context(), pool, true); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("Ping() for writes = %v, want that it is read-only", err)
	}
	execute(t, open(t, direct), "ALTER ROLE "+pool.Config().ConnConfig.User+" RESET default_transaction_read_only")
	must(t, db.Ping(t.Context(), pool, true)) // the database takes writes again
}
