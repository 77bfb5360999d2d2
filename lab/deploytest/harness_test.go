package deploytest

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	project = "my-project"
	region  = "europe-west1"
)

// domain is of the hosts that gcloud is told to ask. httptest's certificate is for it.
const domain = ".example.com"

// gcloud returns an environment in which gcloud talks to a control plane only, as somebody whom that does not ask for more
// than a token; false where gcloud is not installed, or nobody asked: the hundreds of calls take minutes, so make deploy-test
// asks for them and make test does not. Whoever gets false is done.
func gcloud(t *testing.T, c *controlPlane) ([]string, bool) {
	t.Helper()
	if os.Getenv("DEPLOY_TEST") == "" {
		t.Log("make deploy-test runs this with gcloud")
		return nil, false
	}
	for _, tool := range []string{"gcloud", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Logf("%v: nothing is run", err)
			return nil, false
		}
	}
	port := c.start(t)
	env := append(environ(),
		"CLOUDSDK_CONFIG="+t.TempDir(),
		"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE="+writeFile(t, "token", []byte("token")),
		"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE="+writeFile(t, "ca.pem", c.startGRPC(t)),
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=true",
		"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=true",
		// gcloud puts the name of a region before the host of Cloud Run; a proxy does not mind.
		"CLOUDSDK_PROXY_TYPE=http", "CLOUDSDK_PROXY_ADDRESS=127.0.0.1", "CLOUDSDK_PROXY_PORT="+port,
		"http_proxy=http://127.0.0.1:"+port, "no_proxy=", // the library that asks for identity tokens knows only these
	)
	for _, api := range []string{
		"ARTIFACTREGISTRY", "CLOUDBUILD", "CLOUDRESOURCEMANAGER", "CLOUDSCHEDULER", "IAM", "IAMCREDENTIALS", "PUBSUB", "RUN", "SECRETMANAGER", "SERVICEUSAGE",
	} {
		env = append(env, "CLOUDSDK_API_ENDPOINT_OVERRIDES_"+api+"=http://"+strings.ToLower(api)+domain+"/")
	}
	return env, true
}

func writeFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatalf("write %s: %v", name, err)
	}
	return path
}

// environ is the environment without what somebody has told gcloud or the scripts in it, but for which Python to take.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, "CLOUDSDK_") && !strings.HasPrefix(name, "CLOUDSDK_PYTHON") ||
			slices.Contains([]string{"SERVICE", "REPOSITORY", "VERSION", "SMOKE", "SMOKE_TOKEN", "DRY_RUN", "ROLLBACK", "SCHEDULE"}, name)
	})
}

// patience is how long a script may take. It calls gcloud up to seventy times, a second each, on a machine that does much else.
const patience = 10 * time.Minute

// script runs a script of deploy/ and returns what it printed.
func script(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../deploy", name))
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return command(t, env, path, args...)
}

// command runs a program and returns what it printed.
func command(t *testing.T, env []string, path string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = 10 * time.Second // a gcloud that is left alone keeps the output open
	cmd.Env = env
	cmd.Dir = t.TempDir() // scripts find their files from anywhere
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, t.Output())
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	return out.String(), err
}

// mustScript is script for one that has to succeed.
func mustScript(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := script(t, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out
}
