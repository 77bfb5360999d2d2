package pubsublocal_test

import (
	"net/http"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/servicekit/pubsublocal"
)

func startGuarded(t *testing.T, cfg pubsublocal.Config) *pubsublocal.Server {
	t.Helper()
	server, _ := start(t, cfg)
	return server
}

// send sends a request with some headers, among them Host, and returns the response.
func send(t *testing.T, server *pubsublocal.Server, method, path string, headers map[string]string) *http.Response {
	t.Helper()
	body := ""
	if method == http.MethodPost {
		body = `{"messages":[{"data":"aGVsbG8="}]}`
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+server.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "text/plain")
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	r.Host = headers["Host"]
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response
}

// A name that a foreign site may have given an address of this machine is refused, over HTTP and over gRPC.
func TestHosts(t *testing.T) {
	server := startGuarded(t, pubsublocal.Config{})
	named := startGuarded(t, pubsublocal.Config{AllowedHosts: []string{"pubsub", "Broker.Test"}})
	open := startGuarded(t, pubsublocal.Config{AllowedHosts: []string{"*"}})
	for _, tt := range []struct {
		server *pubsublocal.Server
		host   string
		want   bool
	}{
		{server, "localhost", true},
		{server, "localhost:8085", true},
		{server, "LOCALHOST.:8085", true},
		{server, "pubsub.localhost", true},
		{server, "127.0.0.1:8085", true},
		{server, "[::1]:8085", true},
		{server, "172.17.0.2:8085", true},
		{server, "evil.example", false},
		{server, "evil.example:8085", false},
		{server, "localhost.evil.example", false},
		{server, "127.0.0.1.evil.example", false},
		{server, "evillocalhost", false},
		{server, "pubsub:8085", false},
		{named, "pubsub:8085", true},
		{named, "broker.test", true},
		{named, "localhost:8085", true},
		{named, "evil.example", false},
		{open, "evil.example", true},
	} {
		for _, path := range []string{"/", "/v1/" + testTopic} {
			code := send(t, tt.server, http.MethodGet, path, map[string]string{"Host": tt.host}).StatusCode
			if tt.want && code != http.StatusOK || !tt.want && code != http.StatusForbidden {
				t.Errorf("GET %s with the host %q = %d, want it accepted: %t", path, tt.host, code, tt.want)
			}
		}
		conn, err := tt.server.Conn(grpc.WithAuthority(tt.host))
		if err != nil {
			t.Fatal(err)
		}
		_, err = pubsubpb.NewPublisherClient(conn).GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: testTopic})
		if accepted := err == nil; accepted != tt.want || !accepted &&
			(status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "--allowed-hosts")) {
			t.Errorf("GetTopic with the host %q = %v, want it accepted: %t", tt.host, err, tt.want)
		}
		conn.Close()
	}
}

// A server without an address accepts every name, because no page can reach it.
func TestHostsInMemory(t *testing.T) {
	server, _ := start(t, pubsublocal.Config{InMemory: true})
	conn, err := server.Conn(grpc.WithAuthority("bufnet"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pubsubpb.NewPublisherClient(conn).GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: testTopic}); err != nil {
		t.Errorf("GetTopic = %v, want no error", err)
	}
}

// Start refuses names that no Host can have.
func TestAllowedHostsErrors(t *testing.T) {
	for _, host := range []string{"", "pubsub:8085", "http://pubsub", "[::1]"} {
		_, err := pubsublocal.Start(pubsublocal.Config{AllowedHosts: []string{"pubsub", host}})
		if err == nil || !strings.Contains(err.Error(), "host name without a port") {
			t.Errorf("Start() with the allowed host %q = %v, want an error that says the rule", host, err)
		}
	}
}

// Pages of foreign sites are refused, also if their request needs no preflight. Programs that are no browser, and pages
// of this machine, are not.
func TestOrigins(t *testing.T) {
	server := startGuarded(t, pubsublocal.Config{AllowedHosts: []string{"pubsub"}})
	for _, tt := range []struct {
		name    string
		headers map[string]string
		want    bool
	}{
		{"no browser", nil, true},
		{"localhost", map[string]string{"Origin": "http://localhost:3000", "Sec-Fetch-Site": "cross-site"}, true},
		{"IPv4", map[string]string{"Origin": "http://127.0.0.1:3000"}, true},
		{"IPv6", map[string]string{"Origin": "http://[::1]:3000"}, true},
		{"same origin", map[string]string{"Origin": "http://pubsub:8085", "Host": "pubsub:8085", "Sec-Fetch-Site": "same-origin"}, true},
		{"typed by the user", map[string]string{"Sec-Fetch-Site": "none"}, true},
		{"foreign origin", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, false},
		{"foreign origin of an old browser", map[string]string{"Origin": "http://evil.example"}, false},
		{"foreign address", map[string]string{"Origin": "http://192.0.2.1:8085"}, false},
		{"allowed host, another port", map[string]string{"Origin": "http://pubsub:3000", "Host": "pubsub:8085"}, false},
		{"sandbox", map[string]string{"Origin": "null"}, false},
		{"another scheme", map[string]string{"Origin": "evil://localhost"}, false},
		{"malformed", map[string]string{"Origin": "http://[localhost"}, false},
		{"cross-site without origin", map[string]string{"Sec-Fetch-Site": "cross-site"}, false},
	} {
		code := send(t, server, http.MethodPost, "/v1/"+testTopic+":publish", tt.headers).StatusCode
		if tt.want && code != http.StatusOK || !tt.want && code != http.StatusForbidden {
			t.Errorf("%s: POST = %d, want it accepted: %t", tt.name, code, tt.want)
		}
	}
}

// A page on the loopback interface can read every response, errors too. A foreign page cannot.
func TestCORS(t *testing.T) {
	server := startGuarded(t, pubsublocal.Config{})
	const local, foreign = "http://localhost:3000", "https://evil.example"
	for path, want := range map[string]int{"/v1/" + testTopic: http.StatusOK, "/v1/projects/test/topics/none": http.StatusNotFound} {
		got := send(t, server, http.MethodGet, path, map[string]string{"Origin": local})
		if allowed := got.Header.Get("Access-Control-Allow-Origin"); got.StatusCode != want || allowed != local || got.Header.Get("Vary") != "Origin" {
			t.Errorf("GET %s = %d for %q, want %d for %s", path, got.StatusCode, allowed, want, local)
		}
	}
	preflight := map[string]string{"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization,content-type"}
	for origin, want := range map[string]string{local: "PUT authorization,content-type", foreign: " "} {
		preflight["Origin"] = origin
		header := send(t, server, http.MethodOptions, "/v1/"+testTopic, preflight).Header
		if got := header.Get("Access-Control-Allow-Methods") + " " + header.Get("Access-Control-Allow-Headers"); got != want {
			t.Errorf("preflight of %s allows %q, want %q", origin, got, want)
		}
	}
	got := send(t, server, http.MethodGet, "/v1/"+testTopic, map[string]string{"Origin": foreign})
	if got.StatusCode != http.StatusForbidden || got.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("GET of %s = %d, want 403", foreign, got.StatusCode)
	}
}
