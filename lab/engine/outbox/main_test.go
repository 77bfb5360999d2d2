package outbox_test

import (
	"fmt"
	"os"
	"testing"

	"example.com/videocatalog/internal/pg/pgtest"
)

var must, same = pgtest.Must, pgtest.Same

func TestMain(m *testing.M) {
	if os.Getenv(brokerVariable) != "" {
		if err := serveBroker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	pgtest.Main(m)
}
