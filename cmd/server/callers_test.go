package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/pg/pgtest"
)

// vouched returns the bearer token of a caller as Cloud Run forwards it after the check of IAM: without its signature.
func vouched(t *testing.T, email string) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{"sub": "sub of " + email, "email": email, "email_verified": true})
	must(t, err)
	return "Bearer e30." + base64.RawURLEncoding.EncodeToString(claims) + ".SIGNATURE_REMOVED_BY_GOOGLE"
}

// A call of a tenant also writes and watches what has no tenant.
func TestTenantsAndTheExample(t *testing.T) {
	t.Parallel()
	p, as := newStack(t).startTenants(t)
	_, err := p.videos().CreateVideo(as("tenant", "acme"), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
	must(t, err)
	watch, err := p.catalog().WatchCatalogEntries(as("tenant", "acme"), &catalogv1.WatchCatalogEntriesRequest{})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
}

// With AUTH=iam the server relies on the check of Cloud Run, and only limits the rate of each address.
func TestServerCountsCallersBehindIAM(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "SERVER_TRUSTED_PROXIES=1", "AUTH=iam", "SERVER_CALLER_RATE=1")
	call := func(from string) error {
		_, err := p.videos().ListVideos(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "203.0.113.99, "+from), &videov1.ListVideosRequest{})
		return err
	}
	var last error
	for range 100 { // on a busy machine more than the first two are within the rate
		if last = call("198.51.100.1"); last != nil {
			break
		}
	}
	if status.Code(last) != codes.ResourceExhausted {
		t.Errorf("one of many calls of one address = %v, want ResourceExhausted", last)
	}
	if details := status.Convert(last).Details(); !slices.ContainsFunc(details, func(detail any) bool { _, ok := detail.(*errdetails.RetryInfo); return ok }) {
		t.Errorf("details = %v, want when to call again", details)
	}
	if err := call("198.51.100.2"); err != nil {
		t.Errorf("another address = %v, want success", err)
	}
}

// send sends a REST request, and returns the status and the body of the response.
func send(t testing.TB, method, url, body string, header http.Header) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	request.Header = header
	if host := header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(text)
}

// A port without authentication listens on loopback only, and refuses requests for another host,
// unless ALLOWED_HOSTS names the host.
func TestPortsWithoutAuthenticationAreLocal(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	for _, tt := range []struct {
		name        string
		extra       []string
		local       bool
		public, own int // status by another host, of the public and the private port
	}{
		{"nobody is authenticated", nil, true, 403, 403},
		{"the host is allowed", []string{"ALLOWED_HOSTS=evil.example"}, false, 200, 200},
		{"any host is", []string{"ALLOWED_HOSTS=*"}, false, 200, 200},
		{"callers are authenticated", []string{"AUTH=iam"}, false, 200, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := s.start(t, append(tt.extra, "ROLES=api", "TELEMETRY_ADDR=127.0.0.1:0")...)
			if local := p.listens == "127.0.0.1"; local != tt.local {
				t.Errorf("PORT listens on %q, want loopback only: %t", p.listens, tt.local)
			}
			evil := http.Header{"Host": {"evil.example"}, "Origin": {"http://evil.example"}, "Content-Type": {"application/json"}}
			private := p.private(t)
			for _, call := range []struct {
				method, url, body string
				want              int
			}{
				{"POST", p.addr + "/v1/videos", `{"title":"Ran"}`, tt.public},
				{"GET", p.addr + "/v1/videos", "", tt.public},
				{"GET", private + "/debug/pprof/heap", "", tt.own},
				{"GET", private + "/metrics", "", tt.own},
			} {
				code, text := send(t, call.method, "http://"+call.url, call.body, evil)
				if code != call.want || code == 403 && !(strings.Contains(text, "evil.example") && strings.Contains(text, "ALLOWED_HOSTS")) {
					t.Errorf("%s %s by another host = %d %.300s, want %d, and a refusal with the host and the setting", call.method, call.url, code, text, call.want)
				}
			}
			for _, host := range []string{"localhost", "10.1.2.3:9090"} {
				if code, text := send(t, "GET", "http://"+private+"/metrics", "", http.Header{"Host": {host}}); code != 200 {
					t.Errorf("GET /metrics of %s = %d %.300s, want 200", host, code, text)
				}
			}
		})
	}
}

// With AUTH=iam the outbox keeps the caller whom Cloud Run has checked, and no caller if the
// call has no token. The video and its entry have the callers of the first and the last command.
func TestOutboxKeepsCallersBehindIAM(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.start(t, "AUTH=iam")
	for want, ctx := range map[string]context.Context{
		"web@example.com": metadata.AppendToOutgoingContext(t.Context(), "x-serverless-authorization", vouched(t, "web@example.com")),
		"":                t.Context(),
	} {
		video, err := p.videos().CreateVideo(ctx, &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}})
		must(t, err)
		const called = "SELECT count(*) FROM video_catalog.outbox WHERE 'videos/' || aggregate_id = $1 AND coalesce(caller, '') = $2"
		pgtest.WantCount(t, s.pool, 1, "events of the caller "+want, called, video.GetName(), want)
		other := metadata.AppendToOutgoingContext(t.Context(), "x-serverless-authorization", vouched(t, "other@example.com"))
		changed, err := p.videos().PublishVideo(other, &videov1.PublishVideoRequest{Name: video.GetName()})
		if err != nil || video.GetCreateUser() != want || video.GetUpdateUser() != want || changed.GetCreateUser() != want || changed.GetUpdateUser() != "other@example.com" {
			t.Errorf("created as %v and changed as %v, %v, want by %q, then by other@example.com", video, changed, err, want)
		}
		entry := &catalogv1.GetCatalogEntryRequest{Name: "catalogEntries/" + strings.TrimPrefix(video.GetName(), "videos/"), MinVersion: 2}
		if got, err := p.catalog().GetCatalogEntry(t.Context(), entry); err != nil || got.GetCreateUser() != want || got.GetUpdateUser() != "other@example.com" {
			t.Errorf("the entry = %v, %v, want the same callers", got, err)
		}
	}
}
