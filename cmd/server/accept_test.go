package main

import "testing"

// A person who has looked at the data records the present databases of both sides.
func TestAcceptDatabases(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	unknown := func() int {
		return s.count(t, `SELECT (SELECT count(*) FROM video_catalog.known_database WHERE identity <> video_catalog.database_identity())
			+ (SELECT count(*) FROM video_catalog_read.known_database WHERE identity <> video_catalog_read.database_identity())`)
	}
	for _, schema := range []string{"video_catalog", "video_catalog_read"} {
		if _, err := s.pool.Exec(t.Context(), "UPDATE "+schema+".known_database SET identity = 'before'"); err != nil {
			t.Fatal(err)
		}
	}
	if n := unknown(); n != 2 {
		t.Fatalf("%d databases are not known, want 2", n)
	}
	if out, err := s.command(t, "databases", "accept"); err != nil || unknown() != 0 {
		t.Errorf("databases accept = %q, %v, and %d databases are not known, want 0", out, err, unknown())
	}
}
