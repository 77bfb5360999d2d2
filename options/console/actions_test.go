package console

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
)

// writable is both sides, with a user that may act.
type writable struct{ *sides }

func (writable) CommandPrivileges(context.Context) (Privileges, error) {
	return Privileges{Writes: true}, nil
}

// filling is an outbox with nothing parked at the first count, and five aggregates from then on.
type filling struct {
	admin.Outbox
	counts, requeued int
}

func (f *filling) CountBlocked(context.Context, admin.Filter) (int64, error) {
	if f.counts++; f.counts == 1 {
		return 0, nil
	}
	return 5, nil
}

func (f *filling) RequeueBlocked(context.Context, admin.Filter, envelope.Aggregate, int, admin.Entry) ([]envelope.Aggregate, error) {
	f.requeued++
	return nil, nil
}

// A person who has confirmed that nothing matches changes nothing, whatever matches later.
func TestConfirmedNothingChangesNothing(t *testing.T) {
	outbox, s := new(filling), writable{new(sides)}
	server, err := New(Config{Service: "test", Guard: unguarded, Commands: s, Queries: s, Outbox: outbox, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server.jobs.start(t.Context())
	form := url.Values{"action": {admin.ActionRequeue}, "confirmed": {"0"}, "reason": {"test"}}
	request := httptest.NewRequest(http.MethodPost, "http://localhost/actions", strings.NewReader(form.Encode()))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response := httptest.NewRecorder()
	server.handler.ServeHTTP(response, request)
	server.jobs.wait()
	if response.Code != http.StatusBadRequest {
		t.Errorf("POST = %d, want that it is refused\n%s", response.Code, response.Body)
	}
	if outbox.counts != 1 || outbox.requeued != 0 {
		t.Errorf("%d counts, %d calls of RequeueBlocked, want 1 and none", outbox.counts, outbox.requeued)
	}
}
