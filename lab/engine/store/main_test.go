package store_test

import (
	"testing"

	"example.com/videocatalog/internal/store/storetest"
	"example.com/videocatalog/lab/engine/rig"
)

func TestMain(m *testing.M) { storetest.Main(m) }

var (
	epoch    = rig.Epoch
	newID    = rig.NewID
	count    = rig.Count
	execute  = rig.Execute
	column   = rig.Column
	kindOf   = rig.KindOf
	operator = rig.Operator
)
