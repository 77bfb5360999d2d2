package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/transport"
)

// An internal error goes to the log, once, and not to the client. A panic is
// logged in the same way, and the server goes on.
func TestServerKeepsInternalErrorsToItself(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fail func() error
		code codes.Code
		log  []string // what the line has
	}{
		"error": {func() error { return errors.New("secret") }, codes.Internal, []string{"level=ERROR", "secret"}},
		"panic": {func() error { panic("secret") }, codes.Internal, []string{"level=ERROR", "panic: secret", "fakeStore"}},
		"nil": {func() error { var m map[string]int; m["secret"] = 1; return nil }, //nolint:govet,staticcheck // it must panic
			codes.Internal, []string{"level=ERROR", "nil map", "fakeStore"}},
		"unavailable": {func() error {
			return &problem.Error{Kind: problem.Unavailable, Message: "down", Err: errors.New("secret")}
		}, codes.Unavailable, []string{"level=WARN", "secret"}},
		"not found": {func() error { return problem.Errorf(problem.NotFound, "gone") }, codes.NotFound, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, c := serve(t, transport.Config{})
			fail := true
			r.store.before = func(context.Context, string) error {
				if fail {
					return tt.fail()
				}
				return nil
			}
			calls := map[string]func() error{
				"CreateVideo": func() error {
					_, err := c.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: film()})
					return err
				},
				"WatchCatalogEntries": func() error {
					_, err := watchFrom(t, c, "").Recv()
					return err
				},
			}
			lines := 0
			for method, call := range calls {
				err := call()
				if status.Code(err) != tt.code || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s = %v, want %v without the secret", method, err, tt.code)
				}
				lines += min(1, len(tt.log))
				log := r.log.String()
				if got := strings.Count(log, "\n"); got != lines {
					t.Errorf("%d lines in the log, want %d:\n%s", got, lines, log)
				}
				for _, want := range tt.log {
					if !strings.Contains(log, want) {
						t.Errorf("log = %s, want it to contain %q", log, want)
					}
				}
				if len(tt.log) > 0 && !strings.Contains(log, method) {
					t.Errorf("log = %s, want it to name %s", log, method)
				}
			}
			fail = false
			mustCreate(t, c, film())
			if text, _ := next(t, watchFrom(t, c, "")); text != "beat" {
				t.Errorf("the first message of a watch = %s, want a sign of life", text)
			}
		})
	}
}
