package main

import (
	"bufio"
	"context"
	"fmt"
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// startProgram runs the program until the test ends. It returns the output and the address.
func startProgram(t *testing.T, args ...string) (printed, addr string) {
	t.Helper()
	return startSeeded(t, nil, args...)
}

func startSeeded(t *testing.T, environ []string, args ...string) (printed, addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, append([]string{"--addr", "127.0.0.1:0"}, args...), environ, in, io.Discard)
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

// Testcontainers wait for "started". The line is documented, so it stays as it is.
func TestProgramStarted(t *testing.T) {
	printed, addr := startProgram(t)
	if want := "Server started, listening on " + addr + "\n"; !strings.HasPrefix(printed, want) {
		t.Errorf("printed %q, want %q first", printed, want)
	}
}

// The program accepts the names of --allowed-hosts, and no other ones.
func TestProgramAllowedHosts(t *testing.T) {
	_, addr := startProgram(t, "--allowed-hosts", "pubsub,broker")
	for host, want := range map[string]codes.Code{"pubsub": codes.OK, "broker": codes.OK, "evil.example": codes.PermissionDenied} {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(host))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = pubsubpb.NewPublisherClient(conn).ListTopics(t.Context(), &pubsubpb.ListTopicsRequest{Project: "projects/p"})
		if got := status.Code(err); got != want {
			t.Errorf("ListTopics with the host %s = %v, want %v", host, err, want)
		}
	}
}

// Topics and subscriptions of the environment exist when the program prints its address, also after a restart.
func TestProgramSeeds(t *testing.T) {
	environ := []string{"PUBSUB_PROJECT1=demo,topic1:sub1:sub2,topic2", "PUBSUB_PROJECT12=other,topic1:sub1", "PUBSUB_PROJECT3=", "PUBSUB_PROJECT=my"}
	dir := filepath.Join(t.TempDir(), "data")
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			_, addr := startSeeded(t, environ, "--data-dir", dir)
			for path, want := range map[string][]string{
				"/v1/projects/demo/topics":                       {"projects/demo/topics/topic1", "projects/demo/topics/topic2"},
				"/v1/projects/demo/subscriptions":                {"projects/demo/subscriptions/sub1", "projects/demo/subscriptions/sub2"},
				"/v1/projects/other/topics/topic1/subscriptions": {"projects/other/subscriptions/sub1"},
			} {
				_, body := request(t, http.MethodGet, "http://"+addr+path, "")
				for _, want := range want {
					if !strings.Contains(body, `"`+want+`"`) {
						t.Errorf("GET %s = %s, want %s", path, body, want)
					}
				}
			}
		})
	}
}

// An error of a seed names the variable, its value and the rule.
func TestProgramSeedErrors(t *testing.T) {
	for value, want := range map[string]string{
		"demo":                         `no topic after "demo"`,
		"demo,":                        "projects/demo/topics/",
		"demo,topic1,":                 "projects/demo/topics/",
		"demo,topic1:":                 "projects/demo/subscriptions/",
		"demo, topic1":                 "projects/demo/topics/ topic1",
		"demo,topic1:goog1":            "goog1",
		",topic1":                      "projectID string is empty",
		"demo,topic1:sub1,topic2:sub1": "sub1 exists already, for projects/demo/topics/topic1",
	} {
		err := run(t.Context(), []string{"--addr", "127.0.0.1:0"}, []string{"PUBSUB_PROJECT2=" + value}, io.Discard, io.Discard)
		if err == nil {
			t.Errorf("run() with %q = nil, want an error", value)
			continue
		}
		for _, want := range []string{fmt.Sprintf("PUBSUB_PROJECT2 is %q", value), "must be PROJECT,TOPIC:SUBSCRIPTION", want} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("run() with %q = %q, want it to contain %s", value, err, want)
			}
		}
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
		{"a host with a port", []string{"--allowed-hosts", "pubsub:8085"}, []string{"allowed hosts", `"pubsub:8085"`, "without a port"}},
		{"no host", []string{"--allowed-hosts", "pubsub,"}, []string{"allowed hosts", `""`}},
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
			err := run(t.Context(), tt.args, nil, io.Discard, io.Discard)
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
	if err := run(t.Context(), []string{"--help"}, nil, &out, io.Discard); err != nil {
		t.Fatalf("run(--help) = %v, want nil", err)
	}
	for _, flag := range []string{"--addr", "--allowed-hosts", "--data-dir", "--sync", "--memory", "--admin"} {
		if !strings.Contains(out.String(), flag) {
			t.Errorf("the help does not list %s", flag)
		}
	}
}
