package fields_test

import (
	"testing"
	"time"

	"example.com/videocatalog/internal/fields"
)

func TestNotNegative(t *testing.T) {
	t.Parallel()
	type config struct {
		Name   string
		Size   int
		Bytes  int64
		Pause  time.Duration
		Origin []string
	}
	if err := fields.NotNegative(config{Size: 1}); err != nil {
		t.Errorf("NotNegative() = %v, want nil", err)
	}
	err := fields.NotNegative(config{Size: -1, Bytes: -1, Pause: -time.Second})
	if want := "Size must not be negative\nBytes must not be negative\nPause must not be negative"; err == nil || err.Error() != want {
		t.Errorf("NotNegative() = %v, want %q", err, want)
	}
}
