package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/internal/problem"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

var count = pgtest.Count

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

func newID(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	must(t, err)
	return id
}

// stamp is what a handler hands to a decision.
func stamp(t testing.TB) domain.Stamp {
	t.Helper()
	return domain.Stamp{EventID: newID(t), Time: epoch}
}

// kindOf returns the kind of a domain error, or 0 for any other error.
func kindOf(err error) problem.Kind {
	if domainErr, ok := errors.AsType[*problem.Error](err); ok {
		return domainErr.Kind
	}
	return 0
}
