package main

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/deep"
)

// A mistake in the arguments is told with what to write instead, before anything
// is asked.
func TestRebuildRefusesBadArguments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"localhost:8080", ""},
		{"https://videos.example.com", ""},
		{"https://videos.example.com:8443/", ""},
		{"--id-token --audience x https://videos.example.com", ""},
		{"--token-file f https://[::1]:8443", ""},
		{"", ""},
		{"a:1 b:1", "want one, HOST:PORT or https://HOST"},
		{"localhost:8080 --id-token", "must not be sent in the clear"},
		{"--id-token", "for a VideoService at https://HOST"},
		{"--dry-run localhost:8080", ""},
		{"--reason test localhost:8080", ""},
		{"--restart localhost:8080", ""},
		{"--id-tokens localhost:8080", "server help"},
		{"localhost", "want HOST:PORT"},
		{"localhost:", "want HOST:PORT"},
		{"http://localhost:8080", "HOST:PORT without TLS"},
		{"https://videos.example.com/v1/videos", "and nothing else"},
		{"https://user@videos.example.com", "and nothing else"},
		{"https://", "want https://HOST"},
		{"--id-token localhost:8080", "must not be sent in the clear"},
		{"--token-file f localhost:8080", "must not be sent in the clear"},
		{"--audience x https://videos.example.com", "give both"},
		{"--id-token --token-file f https://videos.example.com", "give one of them"},
	} {
		_, _, _, err := parseRebuild(strings.Fields(tt.args))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("rebuild %s: error %v, want %q", tt.args, err, tt.want)
		}
	}
	for args, want := range map[string]rebuildSource{
		"https://videos.example.com":                           {address: "videos.example.com:443", tls: true},
		"--id-token https://videos.example.com":                {address: "videos.example.com:443", tls: true, audience: "https://videos.example.com"},
		"--id-token --audience x https://videos.example.com:1": {address: "videos.example.com:1", tls: true, audience: "x"},
		"localhost:8080":                                       {address: "localhost:8080"},
	} {
		if _, _, got, err := parseRebuild(strings.Fields(args)); err != nil || got != want {
			t.Errorf("rebuild %s: %+v, %v, want %+v", args, got, err, want)
		}
	}
}

// cloudRun is a front end that speaks TLS, and hands calls on as Cloud Run does: the
// token that its IAM reads has no signature any more, the other one has. It
// returns its URL and the file of its certificate.
func cloudRun(t *testing.T, addr string) (address, certificate string) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: addr})
			r.SetXForwarded()
			for _, header := range []string{"X-Serverless-Authorization", "Authorization"} {
				if token := r.In.Header.Get(header); token != "" {
					r.Out.Header.Set(header, token[:strings.LastIndex(token, ".")+1]+"SIGNATURE_REMOVED_BY_GOOGLE")
					break
				}
			}
		},
		Transport: &http.Transport{Protocols: protocols}, FlushInterval: -1,
	})
	front.EnableHTTP2 = true
	front.StartTLS()
	t.Cleanup(front.Close)
	certificate = filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	if err := os.WriteFile(certificate, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return front.URL, certificate
}

// metadataServer gives an account ID tokens as the one of Google Cloud does, and
// returns its address.
func metadataServer(t *testing.T, issuer *tokens, email string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/identity" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprint(w, issuer.of(t, email, r.URL.Query().Get("audience"))) // the client is gone
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// rebuild reads several pages over TLS, with a token that the service checks, and
// waits where the service wants fewer calls. Without a good token it says what is
// missing.
func TestRebuildCallsAsAServiceAccount(t *testing.T) {
	deep.Test(t)
	t.Parallel()
	s := newStack(t)
	const videos = 400 // a page has at most 3 MB
	off := s.start(t)
	var creating errgroup.Group
	creating.SetLimit(8)
	for range videos {
		creating.Go(func() error {
			_, err := off.videos.CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran", Description: strings.Repeat("亂", 4000)}})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := off.stop(t); err != nil {
		t.Fatal(err)
	}

	issuer := newTokens(t)
	const audience = "https://videos.example.com"
	p := s.start(t, "K_SERVICE=videos", "ENVIRONMENT=development", "AUTH=oidc", "AUTH_ISSUER="+issuer.url, "AUTH_AUDIENCE="+audience,
		"AUTH_POLICY_FILE="+policyFile(t, somePolicy), "SERVER_CALLER_RATE=1")
	target, certificate := cloudRun(t, p.addr)
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(name, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	trust := "SSL_CERT_FILE=" + certificate
	reader := metadataServer(t, issuer, "reader@example.com")
	for _, tt := range []struct {
		name string
		env  []string
		args []string
		want string // of the error; empty: success
	}{
		{"a service account", []string{trust, "GCE_METADATA_HOST=" + reader}, []string{"--id-token", "--audience", audience}, ""},
		{"a token in a file", []string{trust}, []string{"--token-file", file(issuer.of(t, "editor@example.com", audience))}, ""},
		{"a token for another audience", []string{trust, "GCE_METADATA_HOST=" + reader}, []string{"--id-token"}, "AUTH_AUDIENCE"},
		{"somebody else", []string{trust}, []string{"--token-file", file(issuer.of(t, "stranger@example.com", audience))}, "VideoService/ListVideos and GetVideo in its policy"},
		{"no token", []string{trust}, nil, "--id-token or --token-file"},
		{"no such file", []string{trust}, []string{"--token-file", "/nowhere"}, "--token-file: open /nowhere"},
		{"a person", []string{trust, "GOOGLE_APPLICATION_CREDENTIALS=" + file(`{"type": "authorized_user"}`)}, []string{"--id-token", "--audience", audience}, "give --token-file"},
		{"a server that nobody knows", nil, nil, "certificate"},
	} {
		if _, err := s.pool.Exec(t.Context(), "DELETE FROM video_catalog_read.video_projection"); err != nil {
			t.Fatal(err)
		}
		out, err := s.commandIn(t, tt.env, append(append([]string{"rebuild", "--reason", "test"}, tt.args...), target)...)
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: rebuild = %q, %v, want an error with %q", tt.name, out, err, tt.want)
			}
			continue
		}
		if want := fmt.Sprintf("\nrebuilt %d entries, lowered 0, removed 0\n", videos); err != nil || !strings.HasSuffix(out, want) {
			t.Errorf("%s: rebuild = %q, %v, want %q", tt.name, out, err, want)
		}
		if got := s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection"); got != videos {
			t.Errorf("%s: %d entries, want %d", tt.name, got, videos)
		}
	}
	if _, err := p.stop(t); err != nil {
		t.Errorf("stop = %v, want nil", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	log := strings.Join(p.log, "\n")
	for _, caller := range []string{"reader@example.com", "editor@example.com", "stranger@example.com"} {
		if !strings.Contains(log, `"caller":"`+caller+`"`) {
			t.Errorf("no request in the log has the caller %s", caller)
		}
	}
}
