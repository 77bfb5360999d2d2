package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

func newID(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// stamp is what a handler hands to a decision.
func stamp(t testing.TB) domain.Stamp {
	t.Helper()
	return domain.Stamp{EventID: newID(t), Time: epoch}
}

// created is the first event of a new video.
func created(t testing.TB, title string) *domain.Event {
	t.Helper()
	e, err := domain.Create(newID(t), domain.Details{Title: title, Tags: []string{`drama`, `a "quoted", {odd} \tag`}}, stamp(t))
	if err != nil {
		t.Fatal(err)
	}
	return e
}
