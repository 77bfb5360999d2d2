package operate

import (
	"os/user"
	"strings"
	"testing"
)

// Without a user of the operating system, as on Cloud Run, an action needs --by. A dry run does not.
func TestActionNeedsAName(t *testing.T) {
	t.Cleanup(func() { currentUser = user.Current })
	currentUser = func() (*user.User, error) { return nil, user.UnknownUserIdError(65532) }
	for args, want := range map[string]string{"--why x": "--by NAME", "--why x --by ann": "", "--dry-run": ""} {
		o, err := ParseOperation(strings.Fields(args), nil)
		if err == nil {
			_, err = o.Entry("retry", nil)
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
