package chaos

import (
	"slices"
	"strings"
	"testing"
)

// What a process has in hand is every line of a gauge that is not 0; one that it
// does not have at all was not looked at.
func TestNotZero(t *testing.T) {
	t.Parallel()
	const metrics = `# TYPE consumer_messages gauge
consumer_messages 0
# TYPE pgxpool_acquired_connections gauge
pgxpool_acquired_connections{db_client_connection_pool_name="video"} 0
pgxpool_acquired_connections{db_client_connection_pool_name="catalog"} 10
pgxpool_acquired_connections_more{} 7
`
	lines, err := notZero(strings.NewReader(metrics), []string{"pgxpool_acquired_connections", "consumer_messages"})
	if want := []string{`pgxpool_acquired_connections{db_client_connection_pool_name="catalog"} 10`}; err != nil || !slices.Equal(lines, want) {
		t.Errorf("notZero() = %q, %v, want %q, nil", lines, err, want)
	}
	if lines, err = notZero(strings.NewReader(metrics), []string{"consumer_messages"}); err != nil || len(lines) > 0 {
		t.Errorf("notZero() = %q, %v, want nothing", lines, err)
	}
	if lines, err = notZero(strings.NewReader("consumer_messages 10\n"), []string{"consumer_messages"}); err != nil || !slices.Equal(lines, []string{"consumer_messages 10"}) {
		t.Errorf("notZero() = %q, %v, want that there are 10", lines, err)
	}
	if _, err = notZero(strings.NewReader(metrics), []string{"consumer_messages", "other"}); err == nil || !strings.HasSuffix(err.Error(), "no other") {
		t.Errorf("notZero() = %v, want an error that names other", err)
	}
}
