package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The line with the time and the ids of events exists, so the lab can replace
// it. If it is missing, the lab returns an error.
func TestClockHasOneSeam(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("..", "..", "..", filepath.FromSlash(seamFile)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := withJumpingClock(string(source), "example.org/module")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"example.org/module/internal/failpoint"`, "failpoint.Jumped(time.Now())", "failpoint.JumpedID(uuid.NewV7())"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("the source of the lab has %d times %s, want once", strings.Count(got, want), want)
		}
	}
	for _, changed := range []string{strings.Replace(string(source), seam, "", 1), string(source) + seam} {
		if _, err := withJumpingClock(changed, "example.org/module"); err == nil || !strings.Contains(err.Error(), "build.go") {
			t.Errorf("a source without the seam, or with two: %v, want an error that says where to adapt it", err)
		}
	}
}
