// Package catalog_test has the slow tests of the example.
package catalog_test

import (
	"testing"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var must = pgtest.Must

var (
	newID   = rig.NewID
	count   = pgtest.Count
	execute = pgtest.Execute
	kindOf  = rig.KindOf
)

// created is the first event of a new video.
func created(t testing.TB, title string) *domain.VideoEvent {
	t.Helper()
	e, err := domain.CreateVideo(newID(t), domain.VideoDetails{Title: title}, domain.Stamp{EventID: newID(t), Time: rig.Epoch})
	must(t, err)
	return e
}

// as returns the URL of a database for another user.
func as(target, user string) string { return target + "&user=" + user }
