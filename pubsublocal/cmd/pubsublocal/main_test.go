package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// startProgram runs the program until the test ends. It returns the output and the address.
func startProgram(t *testing.T, args ...string) (printed, addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, append([]string{"--addr", "127.0.0.1:0"}, args...), in, io.Discard)
		in.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run() = %v, want nil after an interrupt", err)
		}
	})
	var all strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if addr, ok := strings.CutPrefix(lines.Text(), "export PUBSUB_EMULATOR_HOST="); ok {
			return all.String(), addr
		}
	}
	t.Fatalf("run() = %v after it printed %q, want the line with PUBSUB_EMULATOR_HOST", <-done, all.String())
	return "", ""
}

// request sends a request of the JSON API, and returns the status and the body of the response.
func request(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// A topic and a message that are created over HTTP are received over gRPC, at the printed address.
func TestProgramServes(t *testing.T) {
	printed, addr := startProgram(t)
	if !strings.Contains(printed, "no memory limit") || !strings.Contains(printed, "in memory") {
		t.Errorf("printed %q, want that there is no memory limit and no data folder", printed)
	}
	const topic, subscription = "/v1/projects/p/topics/topic-a", "/v1/projects/p/subscriptions/sub-a"
	for _, step := range []struct{ method, path, body string }{
		{http.MethodPut, topic, ""},
		{http.MethodPut, subscription, `{"topic":"projects/p/topics/topic-a"}`},
		{http.MethodPost, topic + ":publish", `{"messages":[{"data":"aGVsbG8="}]}`},
	} {
		if code, body := request(t, step.method, "http://"+addr+step.path, step.body); code != http.StatusOK {
			t.Fatalf("%s %s = %d %s, want 200", step.method, step.path, code, body)
		}
	}
	client, err := pubsub.NewClient(t.Context(), "p", option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got, err := client.SubscriptionAdminClient.Pull(t.Context(), &pubsubpb.PullRequest{
		Subscription: "projects/p/subscriptions/sub-a", MaxMessages: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.GetReceivedMessages()); n != 1 || string(got.GetReceivedMessages()[0].GetMessage().GetData()) != "hello" {
		t.Errorf("Pull = %v, want the message", got)
	}
}

// The admin endpoint exists only with --admin.
func TestProgramAdmin(t *testing.T) {
	_, without := startProgram(t)
	if code, body := request(t, http.MethodPost, "http://"+without+"/admin/streams:cut", ""); code != http.StatusNotFound {
		t.Errorf("without --admin: %d %s, want 404", code, body)
	}
	_, with := startProgram(t, "--admin")
	code, body := request(t, http.MethodPost, "http://"+with+"/admin/faults", `{"method":"GetTopic","code":"UNAVAILABLE"}`)
	if code != http.StatusOK {
		t.Fatalf("with --admin: %d %s, want 200", code, body)
	}
	if code, body := request(t, http.MethodGet, "http://"+with+"/v1/projects/p/topics/topic-a", ""); code != http.StatusServiceUnavailable {
		t.Errorf("GetTopic with a fault: %d %s, want 503", code, body)
	}
}

// With --data-dir, a topic survives a restart of the program.
func TestProgramKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	t.Run("first", func(t *testing.T) {
		_, addr := startProgram(t, "--data-dir", dir)
		if code, body := request(t, http.MethodPut, "http://"+addr+"/v1/projects/p/topics/topic-a", ""); code != http.StatusOK {
			t.Fatalf("create topic: %d %s, want 200", code, body)
		}
	})
	t.Run("second", func(t *testing.T) {
		_, addr := startProgram(t, "--data-dir", dir, "--sync", "never")
		if code, body := request(t, http.MethodGet, "http://"+addr+"/v1/projects/p/topics/topic-a", ""); code != http.StatusOK {
			t.Errorf("get topic after a restart: %d %s, want 200", code, body)
		}
	})
}

// --memory has effect while the program runs.
func TestProgramMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Run("running", func(t *testing.T) {
		printed, _ := startProgram(t, "--memory", "3GiB")
		if got := debug.SetMemoryLimit(-1); got != 3<<30 || !strings.Contains(printed, "3072 MiB") {
			t.Errorf("the limit is %d and printed is %q, want 3 GiB in both", got, printed)
		}
	})
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit afterwards is %d, want %d as before", got, before)
	}
}

// An error is one sentence that names the flag.
func TestProgramErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"a port in use", []string{"--addr", taken.Addr().String()}, []string{taken.Addr().String(), "in use", "--addr"}},
		{"an address without port", []string{"--addr", "localhost"}, []string{`"localhost"`, "HOST:PORT"}},
		{"an address elsewhere", []string{"--addr", "192.0.2.1:8085"}, []string{"192.0.2.1:8085", "--addr"}},
		{"an unknown flag", []string{"--port", "1"}, []string{"port", "--help"}},
		{"an argument", []string{"start"}, []string{`"start"`, "--help"}},
		{"an unknown sync", []string{"--data-dir", "x", "--sync", "often"}, []string{"often", "sync", "batch"}},
		{"sync without data", []string{"--sync", "never"}, []string{"--data-dir"}},
		{"a size without unit", []string{"--memory", "2G"}, []string{"2G", "memory", "2GiB"}},
		{"no size", []string{"--memory", "0"}, []string{"memory", "2GiB"}},
		{"a size too large", []string{"--memory", "9999999TiB"}, []string{"memory"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := run(t.Context(), tt.args, io.Discard, io.Discard)
			if err == nil {
				t.Fatalf("run(%q) = nil, want an error", tt.args)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("run(%q) = %q, want it to name %s", tt.args, err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("run(%q) = %q, want one line", tt.args, err)
			}
		})
	}
}

// --help is not an error, and lists every flag.
func TestProgramHelp(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"--help"}, &out, io.Discard); err != nil {
		t.Fatalf("run(--help) = %v, want nil", err)
	}
	for _, flag := range []string{"--addr", "--data-dir", "--sync", "--memory", "--admin"} {
		if !strings.Contains(out.String(), flag) {
			t.Errorf("the help does not list %s", flag)
		}
	}
}
