package deploytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	image      = region + "-docker.pkg.dev/" + project + "/videocatalog/server@sha256:0000000000000000000000000000000000000000000000000000000000000001"
	imageLater = region + "-docker.pkg.dev/" + project + "/videocatalog/server@sha256:0000000000000000000000000000000000000000000000000000000000000002"
)

// at answers what is at a path of names and indexes in a JSON value, or nil.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			o, _ := v.(object)
			v = o[step]
		case int:
			values := list(v)
			if step >= len(values) {
				return nil
			}
			v = values[step]
		}
	}
	return v
}

// sent answers the requests as lines "METHOD path", and the body of the last one whose path ends in each name.
func sent(changes []request) ([]string, map[string]object) {
	var lines []string
	bodies := map[string]object{}
	for _, r := range changes {
		line := r.String()
		if r.Query.Get("dryRun") != "" {
			line += " (dry run)"
		}
		lines = append(lines, line)
		name := at(r.Body, "metadata", "name")
		if name != nil {
			bodies[fmt.Sprint(at(r.Body, "kind"), " ", name)] = r.Body
		}
	}
	return lines, bodies
}

// A first release, a second one, one that fails its smoke test, and a roll-back, of the shape with worker pools.
func TestReleaseToPools(t *testing.T) {
	t.Parallel()
	control := newControlPlane(project, region)
	env, ok := gcloud(t, control)
	if !ok {
		return
	}
	const (
		knative = "/apis/serving.knative.dev/v1/namespaces/" + project
		run     = "/apis/run.googleapis.com/v1/namespaces/" + project
	)
	env = append(env, "SMOKE=echo tried", "SMOKE_TOKEN=token")
	out := mustScript(t, append(env, "VERSION=v1"), "release.sh", "pools", image, project, region)
	lines, bodies := sent(control.changed())
	if diff := cmp.Diff([]string{
		"POST " + run + "/jobs", "POST " + run + "/jobs/videocatalog-migrate:run",
		"POST " + run + "/workerpools", "POST " + run + "/workerpools",
		"POST " + knative + "/services", "PUT " + knative + "/services/videocatalog",
	}, lines); diff != "" {
		t.Errorf("first release (-want +got):\n%s", diff)
	}
	if want := "tried https://candidate---videocatalog.example.com"; !strings.Contains(out, want) {
		t.Errorf("the first release printed\n%s\nwant %q", out, want)
	}
	t.Run("the service", func(t *testing.T) {
		checkService(t, bodies["Service videocatalog"], "videocatalog-api", map[string]string{"ROLES": "api", "AUTH": "iam"})
	})
	t.Run("the publisher", func(t *testing.T) {
		checkPool(t, bodies["WorkerPool videocatalog-publisher"], "publisher", "videocatalog-database-url")
	})
	t.Run("the projector", func(t *testing.T) {
		checkPool(t, bodies["WorkerPool videocatalog-projector"], "projector", "videocatalog-catalog-database-url")
	})
	t.Run("the job", func(t *testing.T) {
		checkJob(t, bodies["Job videocatalog-migrate"], "migrate", "videocatalog-migrate", "videocatalog-migrate-database-url")
	})

	out = mustScript(t, append(env, "VERSION=v2"), "release.sh", "pools", imageLater, project, region)
	traffic := func() string { // as callers see it
		b, err := json.Marshal(at(control.resources["run/namespaces/"+project+"/services/videocatalog"], "spec", "traffic"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	changes := control.changed()
	var deployed object
	for _, change := range changes {
		if change.Path == knative+"/services/videocatalog" && deployed == nil {
			deployed = change.Body
		}
	}
	if diff := cmp.Diff([]any{
		object{"revisionName": "videocatalog-v1", "percent": 100.0},
		object{"revisionName": "videocatalog-v2", "percent": 0.0, "tag": "candidate"},
	}, withPercent(at(deployed, "spec", "traffic"))); diff != "" {
		t.Errorf("traffic while v2 is tried (-want +got):\n%s", diff)
	}
	if got, want := traffic(), `{"percent":100,"revisionName":"videocatalog-v2"}`; !strings.Contains(got, want) {
		t.Errorf("traffic after the second release = %s, want %s in it", got, want)
	}
	if want := "--rollback v1 pools " + project + " " + region; !strings.Contains(out, want) {
		t.Errorf("the second release printed\n%s\nwant %q", out, want)
	}

	out, err := script(t, append(env, "VERSION=v3", "SMOKE=false"), "release.sh", "pools", imageLater, project, region)
	if err == nil || !strings.Contains(out, "remedy: the new revision videocatalog-v3 gets no traffic") {
		t.Errorf("a release that fails its smoke test: error %v, want a failure with its remedy; output:\n%s", err, out)
	}
	if got := traffic(); !strings.Contains(got, `{"percent":100,"revisionName":"videocatalog-v2"}`) {
		t.Errorf("traffic after a release that failed = %s, want all for v2", got)
	}

	control.changed()
	mustScript(t, env, "release.sh", "--rollback", "v1", "pools", project, region)
	if got := traffic(); !strings.Contains(got, `{"percent":100,"revisionName":"videocatalog-v1"}`) {
		t.Errorf("traffic after the roll-back = %s, want all for v1", got)
	}
	_, bodies = sent(control.changed())
	for _, role := range []string{"publisher", "projector"} {
		container := at(bodies["WorkerPool videocatalog-"+role], "spec", "template", "spec", "containers", 0)
		if got := at(container, "image"); got != image {
			t.Errorf("after the roll-back the %s runs %v, want %s", role, got, image)
		}
	}
}

// withPercent is a traffic list as sent, in which gcloud leaves a percent of 0 out, or not.
func withPercent(traffic any) []any {
	targets := slices.Clone(list(traffic))
	for _, target := range targets {
		if at(target, "percent") == nil {
			target.(object)["percent"] = 0.0
		}
	}
	return targets
}

// A dry run lets Cloud Run validate the manifests, and changes nothing.
func TestReleaseDryRun(t *testing.T) {
	t.Parallel()
	control := newControlPlane(project, region)
	env, ok := gcloud(t, control)
	if !ok {
		return
	}
	mustScript(t, env, "release.sh", "--dry-run", "all", image, project, region)
	lines, bodies := sent(control.changed())
	if diff := cmp.Diff([]string{"POST /apis/serving.knative.dev/v1/namespaces/" + project + "/services (dry run)"}, lines); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if names := control.names(); len(names) != 0 {
		t.Errorf("kept %q, want nothing", names)
	}
	checkService(t, bodies["Service videocatalog"], "videocatalog", map[string]string{
		"ROLES": "api,publisher,projector", "AUTH": "iam", "PUBSUB_PROJECT": project, "PUBSUB_ENDPOINT": region + "-pubsub.googleapis.com:443",
	})
}

// The shape with a job: Cloud Scheduler starts it, and may start nothing else. destroy.sh finds all of it.
func TestReleaseWithDrainJob(t *testing.T) {
	t.Parallel()
	control := newControlPlane(project, region)
	env, ok := gcloud(t, control)
	if !ok {
		return
	}
	env = append(env, "SMOKE=true", "SMOKE_TOKEN=token", "VERSION=v1")
	mustScript(t, env, "release.sh", "--schedule", "drain", image, project, region)
	_, bodies := sent(control.changed())
	checkService(t, bodies["Service videocatalog"], "videocatalog-drain", map[string]string{"ROLES": "api,projector", "AUTH": "iam", "PUBSUB_PROJECT": project})
	checkJob(t, bodies["Job videocatalog-drain"], "drain", "videocatalog-publisher", "videocatalog-database-url")
	job := "projects/" + project + "/locations/" + region + "/jobs/videocatalog-drain"
	schedule := control.resources[job]
	for _, test := range []struct {
		path []any
		want string
	}{
		{[]any{"schedule"}, "* * * * *"},
		{[]any{"httpTarget", "httpMethod"}, "POST"},
		{[]any{"httpTarget", "uri"}, "https://run.googleapis.com/v2/" + job + ":run"},
		{[]any{"httpTarget", "oauthToken", "serviceAccountEmail"}, "videocatalog-scheduler@" + project + ".iam.gserviceaccount.com"},
	} {
		if got := at(schedule, test.path...); got != test.want {
			t.Errorf("the schedule's %v = %v, want %s", test.path, got, test.want)
		}
	}
	started := "run/namespaces/" + project + "/jobs/videocatalog-drain"
	if diff := cmp.Diff([]string{"roles/run.invoker " + account("videocatalog-scheduler")}, control.grants(started)); diff != "" {
		t.Errorf("who may start the job (-want +got):\n%s", diff)
	}
	if got := slices.Collect(maps.Keys(control.policies)); len(got) != 1 {
		t.Errorf("policies of %q, want only of %s", got, started)
	}
}

// checkService looks at what Cloud Run was sent for a service: what every shape needs, and the environment of this one.
func checkService(t *testing.T, service object, serviceAccount string, env map[string]string) {
	t.Helper()
	spec := at(service, "spec", "template", "spec")
	annotations := at(service, "spec", "template", "metadata", "annotations")
	container := at(spec, "containers", 0)
	for _, test := range []struct {
		what      string
		got, want any
	}{
		{"who may come in", at(service, "metadata", "annotations", "run.googleapis.com/ingress"), "all"},
		{"check of callers", at(service, "metadata", "annotations", "run.googleapis.com/invoker-iam-disabled"), nil},
		{"least number of instances", at(service, "metadata", "annotations", "run.googleapis.com/minScale"), "1"},
		{"launch stage", at(service, "metadata", "annotations", "run.googleapis.com/launch-stage"), nil},
		{"CPU between requests", at(annotations, "run.googleapis.com/cpu-throttling"), "false"},
		{"execution environment", at(annotations, "run.googleapis.com/execution-environment"), "gen2"},
		{"service account", at(spec, "serviceAccountName"), serviceAccount + "@" + project + ".iam.gserviceaccount.com"},
		{"timeout", at(spec, "timeoutSeconds"), 3600.0},
		{"concurrency, at most SERVER_MAX_STREAMS", at(spec, "containerConcurrency"), 250.0},
		{"number of containers", len(list(at(spec, "containers"))), 1},
		{"image", at(container, "image"), image},
		{"port", at(container, "ports", 0, "name"), "h2c"},
		{"start", at(container, "startupProbe", "httpGet", "path"), "/health/ready"},
		{"life", at(container, "livenessProbe", "httpGet", "path"), "/health/live"},
		{"memory", at(container, "resources", "limits", "memory"), "512Mi"},
	} {
		if got := number(test.got); got != test.want {
			t.Errorf("%s = %v, want %v", test.what, got, test.want)
		}
	}
	values, secrets := environment(container)
	for name, want := range env {
		if values[name] != want {
			t.Errorf("%s = %q, want %q", name, values[name], want)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"DATABASE_URL": "videocatalog-database-url", "CATALOG_DATABASE_URL": "videocatalog-catalog-database-url",
	}, secrets); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	checkSettings(t, container)
}

// number makes a number of what JSON may have as a string.
func number(v any) any {
	if s, ok := v.(string); ok && (s == "250" || s == "3600") {
		var n float64
		if json.Unmarshal([]byte(s), &n) == nil {
			return n
		}
	}
	return v
}

func checkPool(t *testing.T, pool object, role, secret string) {
	t.Helper()
	spec := at(pool, "spec", "template", "spec")
	container := at(spec, "containers", 0)
	for _, test := range []struct {
		what      string
		got, want any
	}{
		{"scaling", at(pool, "metadata", "annotations", "run.googleapis.com/scalingMode"), "manual"},
		{"instances", at(pool, "metadata", "annotations", "run.googleapis.com/manualInstanceCount"), "2"},
		{"service account", at(spec, "serviceAccountName"), "videocatalog-" + role + "@" + project + ".iam.gserviceaccount.com"},
		{"image", at(container, "image"), image},
		{"start", at(container, "startupProbe", "httpGet", "path"), "/health/ready"},
		{"life", at(container, "livenessProbe", "httpGet", "path"), "/health/live"},
	} {
		if test.got != test.want {
			t.Errorf("%s = %v, want %v", test.what, test.got, test.want)
		}
	}
	values, secrets := environment(container)
	if values["ROLES"] != role || values["PUBSUB_PROJECT"] != project {
		t.Errorf("ROLES = %q, PUBSUB_PROJECT = %q; want %s and %s", values["ROLES"], values["PUBSUB_PROJECT"], role, project)
	}
	if diff := cmp.Diff(map[string]string{"DATABASE_URL": secret}, secrets); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	checkSettings(t, container)
}

func checkJob(t *testing.T, job object, command, serviceAccount, secret string) {
	t.Helper()
	spec := at(job, "spec", "template", "spec", "template", "spec")
	container := at(spec, "containers", 0)
	if got := at(spec, "serviceAccountName"); got != serviceAccount+"@"+project+".iam.gserviceaccount.com" {
		t.Errorf("service account = %v, want %s", got, serviceAccount)
	}
	if diff := cmp.Diff([]any{command}, at(container, "args")); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
	_, secrets := environment(container)
	if diff := cmp.Diff(map[string]string{"DATABASE_URL": secret}, secrets); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	checkSettings(t, container)
}

// environment answers the plain variables of a container, and the secrets by the variable that gets them.
func environment(container any) (values, secrets map[string]string) {
	values, secrets = map[string]string{}, map[string]string{}
	for _, v := range list(at(container, "env")) {
		name := fmt.Sprint(at(v, "name"))
		if secret := at(v, "valueFrom", "secretKeyRef", "name"); secret != nil {
			secrets[name] = fmt.Sprint(secret)
			continue
		}
		values[name] = fmt.Sprint(at(v, "value"))
	}
	return values, secrets
}

// checkSettings starts the server with the settings of a container, and a database that is not there: it must get as far as
// to miss it.
func checkSettings(t *testing.T, container any) {
	t.Helper()
	values, secrets := environment(container)
	env := []string{"DATABASE_WAIT=10ms", "PORT=0"}
	for name, value := range values {
		env = append(env, name+"="+value)
	}
	for name := range secrets {
		env = append(env, name+"=postgres://nobody@127.0.0.1:1/"+strings.ToLower(name))
	}
	var args []string
	for _, arg := range list(at(container, "args")) {
		args = append(args, fmt.Sprint(arg))
	}
	cmd := exec.CommandContext(t.Context(), server(t), args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	missed := strings.Contains(string(out), "DATABASE_URL: ") || strings.Contains(string(out), "dial tcp 127.0.0.1:1")
	if !errors.As(err, &exit) || !missed || strings.Contains(string(out), "mistakes in the configuration") {
		t.Errorf("server %q with %q: error %v, want it to miss the database; output:\n%s", args, env, err, out)
	}
}

// server answers the name of the server's binary, which is built once.
func server(t *testing.T) string {
	t.Helper()
	file, err := buildServer()
	if err != nil {
		t.Fatalf("build server: %v", err)
	}
	return file
}

var buildServer = sync.OnceValues(func() (string, error) {
	file := filepath.Join(folder, "server")
	out, err := exec.Command("go", "build", "-o", file, "../../cmd/server").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
})

// folder is there as long as the tests run.
var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "deploytest"); err != nil {
		fmt.Fprintln(os.Stderr, "make folder:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}
