package pg_test

import (
	"testing"

	"example.com/videocatalog/internal/pg/pgtest"
	"example.com/videocatalog/lab/engine/rig"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	epoch    = rig.Epoch
	newID    = rig.NewID
	count    = pgtest.Count
	execute  = pgtest.Execute
	column   = pgtest.Column[string]
	kindOf   = rig.KindOf
	must     = pgtest.Must
	same     = pgtest.Same
	operator = rig.Operator
)
