package port

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/problem"
)

// Each kind of error has its code, however it is wrapped, and only the message
// of a domain error is told.
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
		{problem.Errorf(problem.Late, "not yet"), codes.DeadlineExceeded, "not yet"},
		{fmt.Errorf("change book: %w", problem.Errorf(problem.NotFound, "gone")), codes.NotFound, "gone"},
		{&problem.Error{Kind: problem.Unavailable, Message: "down", Err: errors.New("secret")}, codes.Unavailable, "down"},
		{&problem.Error{Kind: problem.Unavailable, Message: "down", Err: context.Canceled}, codes.Unavailable, "down"},
		{&problem.Error{Kind: 99, Message: "secret"}, codes.Internal, internal},
		{fmt.Errorf("query: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "it took longer than the call may"},
		{fmt.Errorf("query: %w", context.Canceled), codes.Canceled, "the caller is gone"},
		{status.Error(codes.Unimplemented, "not here"), codes.Unimplemented, "not here"},
		{fmt.Errorf("ask: %w", status.Error(codes.NotFound, "secret")), codes.Internal, internal},
		{errors.New("secret"), codes.Internal, internal},
	} {
		got := status.Convert(toStatus(tt.err))
		if got.Code() != tt.code || got.Message() != tt.message {
			t.Errorf("toStatus(%v) = %v %q, want %v %q", tt.err, got.Code(), got.Message(), tt.code, tt.message)
		}
		if reasons := reasonsOf(got); len(reasons) != 1 {
			t.Errorf("toStatus(%v) has the reasons %q, want one", tt.err, reasons)
		}
		if retry := detail[*errdetails.RetryInfo](got); (retry != nil) != (tt.code == codes.Unavailable) {
			t.Errorf("toStatus(%v) has %v, want it with Unavailable", tt.err, retry)
		}
	}
	if err := toStatus(nil); err != nil {
		t.Errorf("toStatus(nil) = %v", err)
	}
}
