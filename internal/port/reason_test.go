package port

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/names"
)

// The table of reasons in docs/errors.md has those of this package, with their
// codes, and no other.
func TestReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Reasons\n")
	table, _, _ = strings.Cut(table, "\n## ")
	got := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([A-Z_]+) \\| (\\d+)").FindAllStringSubmatch(table, -1) {
		got[row[1]] = row[2] + " " + row[3]
	}
	want := make(map[string]string)
	for reason := range causes {
		st := newStatus(reason, "x")
		want[string(reason)] = fmt.Sprintf("%s %d", statusName(st), httpStatus(st))
		if diff := cmp.Diff([]string{names.ErrorDomain + " " + string(reason)}, reasonsOf(st)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/errors.md (-code +docs):\n%s", diff)
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if st := explain(status.New(code, "x\xff"), ""); len(reasonsOf(st)) != 1 || st.Message() != "x\ufffd" {
			t.Errorf("%v: %v %q, want one reason and text", code, reasonsOf(st), st.Message())
		}
	}
}

func reasonsOf(st *status.Status) (reasons []string) {
	for _, each := range st.Details() {
		if info, ok := each.(*errdetails.ErrorInfo); ok {
			reasons = append(reasons, info.GetDomain()+" "+info.GetReason())
		}
	}
	return reasons
}
