package transport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/problem"
)

// A handler never sees a value in a field that only the server sets.
func TestHandlersSeeNoOutputOnly(t *testing.T) {
	t.Parallel()
	request := &pubsubpb.UpdateSubscriptionRequest{Subscription: &pubsubpb.Subscription{Topic: "t", State: pubsubpb.Subscription_ACTIVE}}
	if err := validate(request); err != nil || request.GetSubscription().GetState() != 0 || request.GetSubscription().GetTopic() != "t" {
		t.Errorf("validate() = %v, %v, want it without the state", request, err)
	}
}

// Each kind of error has its code, even if it is wrapped. Only the message of a domain
// error reaches the caller.
func TestToStatusMapsKinds(t *testing.T) {
	t.Parallel()
	const internal = "internal error"
	for _, tt := range []struct {
		err     error
		code    codes.Code
		message string
	}{
		{problem.Errorf(problem.Invalid, "bad"), codes.InvalidArgument, "bad"},
		{problem.InvalidField("a.b", "bad"), codes.InvalidArgument, "a.b: bad"},
		{problem.Errorf(problem.NotFound, "gone"), codes.NotFound, "gone"},
		{problem.Errorf(problem.Exists, "there"), codes.AlreadyExists, "there"},
		{problem.Errorf(problem.Conflict, "late"), codes.Aborted, "late"},
		{problem.Errorf(problem.Precondition, "first"), codes.FailedPrecondition, "first"},
		{problem.Errorf(problem.Unavailable, "down"), codes.Unavailable, "down"},
		{problem.Errorf(problem.Exhausted, "too many"), codes.ResourceExhausted, "too many"},
		{problem.Errorf(problem.Kind(codes.DeadlineExceeded), "not yet"), codes.DeadlineExceeded, "not yet"},
		{fmt.Errorf("change book: %w", problem.Errorf(problem.NotFound, "gone")), codes.NotFound, "gone"},
		{&problem.Error{Kind: problem.Unavailable, Message: "down", Err: errors.New("secret")}, codes.Unavailable, "down"},
		{&problem.Error{Kind: problem.Unavailable, Message: "down", Err: context.Canceled}, codes.Unavailable, "down"},
		{fmt.Errorf("query: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "it took longer than the call may"},
		{fmt.Errorf("query: %w", context.Canceled), codes.Canceled, "the caller is gone"},
		{status.Error(codes.Unimplemented, "not here"), codes.Unimplemented, "not here"},
		{fmt.Errorf("ask: %w", status.Error(codes.NotFound, "secret")), codes.Internal, internal},
		{errors.New("secret"), codes.Internal, internal},
		{problem.Errorf(problem.Invalid, "x\xff"), codes.InvalidArgument, "x\ufffd"},
		{problem.InvalidField("a", "x\xff"), codes.InvalidArgument, "a: x\ufffd"},
	} {
		got := status.Convert(toStatus(tt.err))
		if got.Code() != tt.code || got.Message() != tt.message {
			t.Errorf("toStatus(%v) = %v %q, want %v %q", tt.err, got.Code(), got.Message(), tt.code, tt.message)
		}
		if reasons := reasonsOf(got); len(reasons) != 1 {
			t.Errorf("toStatus(%v) has the reasons %q, want one", tt.err, reasons)
		}
		if retry := detail[*errdetails.RetryInfo](got); (retry != nil) != (tt.code == codes.Unavailable || tt.code == codes.ResourceExhausted) {
			t.Errorf("toStatus(%v) has %v, want it with Unavailable and ResourceExhausted", tt.err, retry)
		}
	}
	if err := toStatus(nil); err != nil {
		t.Errorf("toStatus(nil) = %v", err)
	}
}

// The table in docs/errors.md has exactly the reasons of this package, with their
// codes.
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
	errs := []error{ErrDraining, errStreamOver, errTooManyCalls, errTooLarge, errEncoded, errPathUnknown, errMethodUnknown}
	for code := range reasonOf {
		errs = append(errs, status.Error(code, "x"))
	}
	want := make(map[string]string)
	for _, err := range errs {
		st := status.Convert(toStatus(err))
		_, reason, _ := strings.Cut(reasonsOf(st)[0], " ")
		want[reason] = fmt.Sprintf("%s %d", rpccode.Code(st.Proto().GetCode()), httpStatus(st))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/errors.md (-code +docs):\n%s", diff)
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
