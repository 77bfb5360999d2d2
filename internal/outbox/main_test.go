package outbox_test

import (
	"testing"

	"example.com/videocatalog/internal/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }
