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

	"example.com/videocatalog/internal/pg/pgtest"
)

var must, same = pgtest.Must, pgtest.Same

const (
	project = "my-project"
	region  = "europe-west1"
)

// domain is the domain of the hosts that gcloud calls. The certificate of httptest is valid for it.
const domain = ".example.com"

// newProject returns the control plane of a project, and the environment of gcloud for it.
func newProject(t *testing.T) (*controlPlane, []string) {
	t.Helper()
	control := newControlPlane(project, region)
	return control, gcloud(t, control)
}

// gcloud returns an environment in which gcloud calls only the control plane, with an access token. It skips the test if
// gcloud is not installed or DEPLOY_TEST is not set. The hundreds of calls take minutes, so only make deploy-test sets
// DEPLOY_TEST.
func gcloud(t *testing.T, c *controlPlane) []string {
	t.Helper()
	if os.Getenv("DEPLOY_TEST") == "" {
		t.Skip("make deploy-test runs this with gcloud")
	}
	for _, tool := range []string{"gcloud", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	port := c.start(t)
	env := append(environ(),
		"PATH="+shim(t)+string(os.PathListSeparator)+os.Getenv("PATH"),
		"CLOUDSDK_CONFIG="+t.TempDir(),
		"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE="+writeFile(t, "token", []byte("token")),
		"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE="+writeFile(t, "ca.pem", c.startGRPC(t)),
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=true",
		"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=true",
		// gcloud puts the name of a region before the host of Cloud Run. With a proxy, any host works.
		"CLOUDSDK_PROXY_TYPE=http", "CLOUDSDK_PROXY_ADDRESS=127.0.0.1", "CLOUDSDK_PROXY_PORT="+port,
		"http_proxy=http://127.0.0.1:"+port, "no_proxy=", // the library that gets identity tokens reads only these
	)
	for _, api := range []string{
		"ARTIFACTREGISTRY", "CLOUDBUILD", "CLOUDRESOURCEMANAGER", "IAM", "IAMCREDENTIALS", "LOGGING", "PUBSUB", "RUN", "SECRETMANAGER", "SERVICEUSAGE",
	} {
		env = append(env, "CLOUDSDK_API_ENDPOINT_OVERRIDES_"+api+"=http://"+strings.ToLower(api)+domain+"/")
	}
	return env
}

// shim returns a directory with a gcloud that has worker-pools also if the installed one has it only as a beta command.
func shim(t *testing.T) string {
	t.Helper()
	installed, err := exec.LookPath("gcloud")
	must(t, err)
	dir := t.TempDir()
	text := "#!/bin/sh\ncase \"$1 $2\" in 'run worker-pools') " + installed + " run worker-pools --help >/dev/null 2>&1 || set -- beta \"$@\" ;; esac\n" +
		"exec " + installed + " \"$@\"\n"
	must(t, os.WriteFile(filepath.Join(dir, "gcloud"), []byte(text), 0o700))
	return dir
}

func writeFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, data, 0o600))
	return path
}

// environ returns the environment without settings for gcloud and the scripts, except the choice of Python.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, "CLOUDSDK_") && !strings.HasPrefix(name, "CLOUDSDK_PYTHON") ||
			slices.Contains([]string{"SERVICE", "REPOSITORY", "VERSION", "SMOKE", "SMOKE_TOKEN", "DRY_RUN", "ROLLBACK"}, name)
	})
}

// patience is the time limit of a script. A script calls gcloud up to seventy times, which takes a second each on
// a busy machine.
const patience = 10 * time.Minute

// script runs a script of deploy/, and returns its output.
func script(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../deploy", name))
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return command(t, env, path, args...)
}

// command runs a program, and returns its output.
func command(t *testing.T, env []string, path string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = 10 * time.Second // a gcloud process that is left running keeps the output open
	cmd.Env = env
	cmd.Dir = t.TempDir() // scripts must work in any directory
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, t.Output())
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	return out.String(), err
}

// mustScript runs a script, and fails the test if the script fails.
func mustScript(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := script(t, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out
}
