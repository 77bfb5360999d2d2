package failpoint

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
)

// clockFile names a file with the error of this process's clock, such as 1h or -90s.
// Without the file the clock is right.
var clockFile = os.Getenv("FAILPOINT_CLOCK_FILE")

// Jumped returns the time that the wrong wall clock shows at the time now.
func Jumped(now time.Time) time.Time { return now.Add(jump()) }

// JumpedID returns a UUIDv7 as if it were made at the time of the wrong wall clock.
func JumpedID(id uuid.UUID) uuid.UUID {
	milliseconds := int64(binary.BigEndian.Uint64(id[:8])>>16) + jump().Milliseconds()
	var shifted [8]byte
	binary.BigEndian.PutUint64(shifted[:], uint64(milliseconds)<<16) //nolint:gosec // of this century
	copy(id[:6], shifted[:6])
	return id
}

func jump() time.Duration {
	b, err := os.ReadFile(clockFile) //nolint:gosec // the environment says which
	if err != nil {
		return 0
	}
	d, err := time.ParseDuration(strings.TrimSpace(string(b)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAILPOINT_CLOCK_FILE:", err)
	}
	return d
}
