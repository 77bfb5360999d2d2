package pubsublocal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.com/servicekit/pubsublocal/conformance"
)

// Google's emulator passes all cases except the known differences. So the cases
// do not only describe this server. The emulator listens at PUBSUB_EMULATOR_HOST,
// or the test starts the emulator of an installed Cloud SDK. Without either, the
// test passes: this server has its own test.
func TestConformanceOfEmulator(t *testing.T) {
	if testing.Short() {
		t.Log("not with -short")
		return
	}
	host := os.Getenv("PUBSUB_EMULATOR_HOST")
	if host == "" {
		jar, err := emulatorJar(t.Context())
		if err != nil {
			t.Logf("no emulator here: %v", err)
			return
		}
		host = startEmulator(t, jar)
	}
	conformance.Run(t, func(*testing.T) conformance.Target {
		// Each case has its own project, which isolates it like its own
		// emulator. Java takes long to start.
		project := fmt.Sprintf("conformance-%d", time.Now().UnixNano())
		return conformance.Target{Project: project, HTTP: "http://" + host, Options: []option.ClientOption{
			option.WithEndpoint(host), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		}}
	}, conformance.Emulator)
}

// Every known difference belongs to an existing case.
func TestDifferencesOfEmulatorAreCases(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, c := range conformance.Cases() {
		ids = append(ids, c.ID)
	}
	for id := range conformance.Emulator {
		if !slices.Contains(ids, id) {
			t.Errorf("got a difference for %s, want one of %v", id, ids)
		}
	}
}

// emulatorJar returns the path of the emulator, if it can run here.
func emulatorJar(ctx context.Context) (string, error) {
	for _, program := range []string{"sh", "java"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", err
		}
	}
	roots := []string{"/usr/lib/google-cloud-sdk", "/opt/google-cloud-sdk"}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, "google-cloud-sdk"))
	}
	if jar := jarBelow(roots...); jar != "" {
		return jar, nil
	}
	// gcloud could give the exact path, but takes a second or more.
	root, err := exec.CommandContext(ctx, "gcloud", "info", "--format=value(installation.sdk_root)").Output()
	if err != nil {
		return "", fmt.Errorf("gcloud info: %w", err)
	}
	if jar := jarBelow(strings.TrimSpace(string(root))); jar != "" {
		return jar, nil
	}
	return "", errors.New("no Cloud SDK with the component pubsub-emulator")
}

// jarBelow returns the emulator of the first Cloud SDK that has one.
func jarBelow(roots ...string) string {
	for _, root := range roots {
		jars, err := filepath.Glob(filepath.Join(root, "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*.jar"))
		if err == nil && len(jars) > 0 {
			return jars[len(jars)-1]
		}
	}
	return ""
}

// startEmulator starts the emulator and returns its address. The emulator ends
// with the test.
func startEmulator(t *testing.T, jar string) string {
	t.Helper()
	port := freePort(t)
	host := net.JoinHostPort("127.0.0.1", port)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	// The shell kills the emulator when our end of the pipe is closed. The
	// kernel closes it if this process is killed.
	cmd := exec.Command("sh", "-c", `"$@" & read -r _; kill -9 $!; wait`, "sh",
		"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", jar, "--host=127.0.0.1", "--port="+port)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	pipe, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = pipe.Close()
		_ = cmd.Wait() // its error is that it was killed
		_ = log.Close()
	})
	const patience = time.Minute // on an idle machine it starts in one second
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := ready(t.Context(), host)
		if err == nil {
			return host
		}
		if time.Since(begin) > patience {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the emulator is not ready after %v: %v\n%s", patience, err, text)
		}
	}
}

// freePort returns a port on which nobody listens. The emulator can choose a
// port itself, but does not print it.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// ready returns nil when the emulator serves requests.
func ready(ctx context.Context, host string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(body)); got != "Ok" {
		return fmt.Errorf("GET / answers %d %q, want Ok", response.StatusCode, got)
	}
	return nil
}
