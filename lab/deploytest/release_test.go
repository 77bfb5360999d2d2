package deploytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/lab/internal/tuned"
)

var (
	service    = names.Service
	image      = region + "-docker.pkg.dev/" + project + "/" + service + "/server@sha256:0000000000000000000000000000000000000000000000000000000000000001"
	imageLater = region + "-docker.pkg.dev/" + project + "/" + service + "/server@sha256:0000000000000000000000000000000000000000000000000000000000000002"
)

// Path prefixes of Cloud Run's resources: two for its two APIs, and one under which the control plane stores them.
const (
	knative   = "/apis/serving.knative.dev/v1/namespaces/" + project
	run       = "/apis/run.googleapis.com/v1/namespaces/" + project
	namespace = "run/namespaces/" + project
)

// at returns the value at a path of names and indexes in a JSON value, or nil.
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

// sent returns the requests as lines "METHOD path". It also returns the last body of each object, by "KIND NAME".
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

// This tests the shape with worker pools: three releases, of which the last fails its smoke test, rollbacks, a dry
// run, and the removal.
func TestReleaseToPools(t *testing.T) {
	t.Parallel()
	control, env := newProject(t)
	env = append(env, "SMOKE=echo tried", "SMOKE_TOKEN=token")
	out := mustScript(t, append(env, "VERSION=v1"), "release.sh", "pools", image, project, region)
	lines, bodies := sent(control.changed())
	if diff := cmp.Diff([]string{
		"POST " + run + "/jobs", "POST " + run + "/jobs/" + service + "-migrate:run",
		"POST " + run + "/workerpools", "POST " + run + "/workerpools",
		"POST " + knative + "/services", "PUT " + knative + "/services/" + service,
	}, lines); diff != "" {
		t.Errorf("first release (-want +got):\n%s", diff)
	}
	if want := "tried https://candidate---" + service + ".example.com"; !strings.Contains(out, want) {
		t.Errorf("the first release printed\n%s\nwant %q", out, want)
	}
	t.Run("the service", func(t *testing.T) {
		checkService(t, bodies["Service "+service], service+"-api", map[string]string{"ROLES": "api", "AUTH": "iam"})
	})
	t.Run("the publisher", func(t *testing.T) {
		checkPool(t, bodies["WorkerPool "+service+"-publisher"], "publisher", service+"-database-url:1")
	})
	t.Run("the projector", func(t *testing.T) {
		checkPool(t, bodies["WorkerPool "+service+"-projector"], "projector", service+"-read-database-url:1")
	})
	t.Run("the job", func(t *testing.T) {
		checkJob(t, bodies["Job "+service+"-migrate"], "migrate", service+"-migrate", service+"-migrate-database-url:1")
	})

	control.states = []string{"ENABLED", "ENABLED", "DISABLED"}
	out = mustScript(t, append(env, "VERSION=v2"), "release.sh", "pools", imageLater, project, region)
	traffic := func() string { // as callers see it
		b, err := json.Marshal(at(control.resources[namespace+"/services/"+service], "spec", "traffic"))
		must(t, err)
		return string(b)
	}
	changes := control.changed()
	var deployed object
	for _, change := range changes {
		if change.Path == knative+"/services/"+service && deployed == nil {
			deployed = change.Body
		}
	}
	_, secrets := environment(at(deployed, "spec", "template", "spec", "containers", 0))
	if diff := cmp.Diff(map[string]string{
		"DATABASE_URL": service + "-database-url:2", "READ_DATABASE_URL": service + "-read-database-url:2",
	}, secrets); diff != "" {
		t.Errorf("secrets after a rotation: the newest enabled version (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{
		object{"revisionName": service + "-v1", "percent": 100.0},
		object{"revisionName": service + "-v2", "percent": 0.0, "tag": "candidate"},
	}, withPercent(at(deployed, "spec", "traffic"))); diff != "" {
		t.Errorf("traffic while v2 is tried (-want +got):\n%s", diff)
	}
	if got, want := traffic(), `{"percent":100,"revisionName":"`+service+`-v2"}`; !strings.Contains(got, want) {
		t.Errorf("traffic after the second release = %s, want %s in it", got, want)
	}
	if want := "--rollback v1 pools " + project + " " + region; !strings.Contains(out, want) {
		t.Errorf("the second release printed\n%s\nwant %q", out, want)
	}

	out, err := script(t, append(env, "VERSION=v3", "SMOKE=false"), "release.sh", "pools", imageLater, project, region)
	if err == nil || !strings.Contains(out, "remedy: the revision "+service+"-v3 gets no traffic") {
		t.Errorf("a release that fails its smoke test: error %v, want a failure with its remedy; output:\n%s", err, out)
	}
	if want := "the pools have its image, until: deploy/release.sh --rollback v2 pools " + project + " " + region + "\n"; !strings.Contains(out, want) {
		t.Errorf("the release that failed printed\n%s\nwant %q", out, want)
	}
	if got := traffic(); !strings.Contains(got, `{"percent":100,"revisionName":"`+service+`-v2"}`) {
		t.Errorf("traffic after a release that failed = %s, want all for v2", got)
	}

	control.changed()
	if out, err := script(t, append(env, "SMOKE=false"), "release.sh", "--rollback", "v1", "pools", project, region); err == nil {
		t.Errorf("a roll-back to a build that does not run on this schema succeeded:\n%s", out)
	}
	if got := traffic(); !strings.Contains(got, `{"percent":100,"revisionName":"`+service+`-v2"}`) {
		t.Errorf("traffic after a roll-back that failed = %s, want all for v2", got)
	}
	control.changed()
	older := t.TempDir() // with a gcloud that has no worker pools
	text := "#!/bin/sh\n[ \"$2\" != worker-pools ] && exec " + filepath.Join(shim(t), "gcloud") + " \"$@\"\nexit 2\n"
	must(t, os.WriteFile(filepath.Join(older, "gcloud"), []byte(text), 0o700))
	old := append(slices.Clone(env), "PATH="+older+string(os.PathListSeparator)+os.Getenv("PATH"))
	if out, err := script(t, old, "release.sh", "--rollback", "v1", "pools", project, region); err == nil || !strings.Contains(out, "worker pools need a gcloud") {
		t.Errorf("a roll-back with a gcloud that has no worker pools: error %v, want its remedy; output:\n%s", err, out)
	}
	if changes := control.changed(); len(changes) > 0 {
		t.Errorf("a roll-back with a gcloud that has no worker pools has changed %v", changes)
	}
	mustScript(t, env, "release.sh", "--rollback", "v1", "pools", project, region)
	if got := traffic(); !strings.Contains(got, `{"percent":100,"revisionName":"`+service+`-v1"}`) {
		t.Errorf("traffic after the roll-back = %s, want all for v1", got)
	}
	lines, bodies = sent(control.changed())
	if diff := cmp.Diff([]string{
		"PUT " + knative + "/services/" + service, "PUT " + knative + "/services/" + service, "PUT " + run + "/jobs/" + service + "-migrate",
		"PUT " + run + "/workerpools/" + service + "-publisher", "PUT " + run + "/workerpools/" + service + "-projector",
	}, lines); diff != "" {
		t.Errorf("roll-back, in the reverse of a release's order (-want +got):\n%s", diff)
	}
	for role, secret := range map[string]string{"publisher": "-database-url:1", "projector": "-read-database-url:1"} {
		container := at(bodies["WorkerPool "+service+"-"+role], "spec", "template", "spec", "containers", 0)
		_, secrets := environment(container)
		if got := at(container, "image"); got != image || secrets["DATABASE_URL"] != service+secret {
			t.Errorf("after the roll-back the %s runs %v with %v, want %s, and the database URL %s of that revision", role, got, secrets, image, service+secret)
		}
	}

	mustScript(t, append(env, "VERSION=v4"), "release.sh", "--dry-run", "pools", imageLater, project, region)
	lines, _ = sent(control.changed())
	if diff := cmp.Diff([]string{
		"PUT " + run + "/workerpools/" + service + "-projector (dry run)", "PUT " + run + "/workerpools/" + service + "-publisher (dry run)",
		"PUT " + knative + "/services/" + service + " (dry run)",
	}, lines); diff != "" {
		t.Errorf("dry run where the pools are there (-want +got):\n%s", diff)
	}

	pool := "/v2/projects/" + project + "/locations/" + region + "/workerPools/" + service + "-"
	checkDestroy(t, control, env, knative+"/services/"+service, pool+"publisher", pool+"projector", run+"/jobs/"+service+"-migrate")
}

// withPercent returns a traffic list in which every entry has a percent. gcloud may omit 0.
func withPercent(traffic any) []any {
	targets := slices.Clone(list(traffic))
	for _, target := range targets {
		if at(target, "percent") == nil {
			target.(object)["percent"] = 0.0
		}
	}
	return targets
}

// A service without the manifests of a shape is not released in it, and the error names the option that has them.
func TestReleaseWithoutManifests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("../../deploy")))
	must(t, os.Remove(filepath.Join(dir, "run", "pools.service.yaml")))
	out, err := command(t, environ(), filepath.Join(dir, "release.sh"), "pools", image, project, region)
	if want := "go run ./cmd/upgrade --with pools"; err == nil || !strings.Contains(out, want) {
		t.Errorf("release.sh pools = %v, want an error with %q", err, want)
	}
}

// A dry run lets Cloud Run validate the manifests and changes nothing. It also works before the first release.
func TestReleaseDryRun(t *testing.T) {
	t.Parallel()
	control, env := newProject(t)
	for _, test := range []struct {
		shape, serviceAccount string
		env                   map[string]string
		shown                 []string // shown, but not sent
	}{
		{"all", service, map[string]string{
			"AUTH": "iam", "PUBSUB_PROJECT": project, "PUBSUB_ENDPOINT": region + "-pubsub.googleapis.com:443",
		}, nil},
		{"pools", service + "-api", map[string]string{"ROLES": "api"}, []string{"/pools.projector.yaml", "/pools.publisher.yaml"}},
	} {
		t.Run(test.shape, func(t *testing.T) {
			out := mustScript(t, env, "release.sh", "--dry-run", test.shape, image, project, region)
			lines, bodies := sent(control.changed())
			same(t, "requests", []string{"POST " + knative + "/services (dry run)"}, lines)
			if names := control.names(); len(names) != 0 {
				t.Errorf("kept %q, want nothing", names)
			}
			for _, want := range append(test.shown, "/migrate.job.yaml", "+ gcloud run jobs execute "+service+"-migrate --wait") {
				if !strings.Contains(out, want) {
					t.Errorf("the dry run does not show %q; output:\n%s", want, out)
				}
			}
			checkService(t, bodies["Service "+service], test.serviceAccount, test.env)
		})
	}
}

// This tests the shape with one service. Without SMOKE_TOKEN, the smoke test gets a token of the release account. Its
// audience is the service, not the URL of the new revision. A rollback tests the older revision, and then moves the traffic.
// destroy.sh removes everything.
func TestReleaseOfOneService(t *testing.T) {
	t.Parallel()
	control, env := newProject(t)
	smoke := writeFile(t, "smoke", []byte("echo tried \"$1\" with \"$SMOKE_TOKEN\"\n"))
	out := mustScript(t, append(env, "SMOKE=bash "+smoke, "VERSION=v1"), "release.sh", "all", image, project, region)
	if want := "tried https://candidate---" + service + ".example.com with " + idToken + "\n"; !strings.Contains(out, want) {
		t.Errorf("the release printed\n%s\nwant %q", out, want)
	}
	changes := control.changed()
	i := slices.IndexFunc(changes, func(r request) bool { return strings.HasSuffix(r.Path, ":generateIdToken") })
	if i < 0 {
		t.Fatalf("requests = %v, want one for a token", changes)
	}
	if want := "/v1/projects/-/serviceAccounts/" + service + "-release@" + project + ".iam.gserviceaccount.com:generateIdToken"; changes[i].Path != want {
		t.Errorf("the token is of %s, want %s", changes[i].Path, want)
	}
	if body := changes[i].Body; body["audience"] != "https://"+service+".example.com" || body["includeEmail"] != true {
		t.Errorf("request of a token = %v, want the service's URL as audience, and the e-mail", body)
	}

	out = mustScript(t, append(env, "SMOKE=echo tried", "SMOKE_TOKEN=token", "VERSION=share", "SHARE=10"), "release.sh", "all", imageLater, project, region)
	if diff := cmp.Diff([]any{
		object{"revisionName": service + "-share", "percent": 10.0}, object{"revisionName": service + "-v1", "percent": 90.0}, object{"revisionName": service + "-share", "tag": "candidate"},
	}, at(control.resources[namespace+"/services/"+service], "spec", "traffic")); diff != "" || !strings.Contains(out, "to send it all: deploy/release.sh --rollback share all ") {
		t.Errorf("a release of a tenth (-want +got):\n%s; it printed\n%s", diff, out)
	}
	out = mustScript(t, append(env, "SMOKE=echo tried", "SMOKE_TOKEN=token", "VERSION=third", "SHARE=20"), "release.sh", "all", imageLater, project, region)
	if !strings.Contains(out, "to go back: deploy/release.sh --rollback v1 ") {
		t.Errorf("a release during that one printed\n%s\nwant the way back to the version with most of the traffic", out)
	}
	control.changed()

	// The second release has the traffic.
	deployed := control.resources[namespace+"/services/"+service]
	deployed["spec"].(object)["traffic"] = []any{object{"revisionName": service + "-v2", "percent": 100}}
	mustScript(t, append(env, "SMOKE=echo tried", "SMOKE_TOKEN=token"), "release.sh", "--rollback", "v1", "all", project, region)
	lines, bodies := sent(control.changed())
	same(t, "roll-back", []string{"PUT " + knative + "/services/" + service, "PUT " + knative + "/services/" + service, "PUT " + run + "/jobs/" + service + "-migrate"}, lines)
	same(t, "traffic after the roll-back", []any{object{"revisionName": service + "-v1", "percent": 100.0}, object{"revisionName": service + "-v1", "tag": "candidate"}}, at(bodies["Service "+service], "spec", "traffic"))

	checkDestroy(t, control, env, knative+"/services/"+service, run+"/jobs/"+service+"-migrate")
}

// The commands of pages for a person work with the real gcloud: the certificate and the URLs of docs/deploy.md, and the commands of docs/recipes.md.
func TestCommandsOfPages(t *testing.T) {
	t.Parallel()
	control := newControlPlane(project, region)
	control.pubsub = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	const secrets = "projects/" + project + "/secrets/"
	control.resources[secrets+service+"-database-url"] = object{"name": secrets + service + "-database-url"}
	env := gcloud(t, control)
	env = append(env, "CLOUDSDK_CORE_PROJECT="+project, "CLOUDSDK_RUN_REGION="+region, "URL=postgres://somebody", "BUCKET=archive")
	folder := filepath.Dir(writeFile(t, "ca.crt", []byte("certificate")))
	for _, block := range append(shell(t, "docs/deploy.md", "gcloud secrets"), shell(t, "docs/recipes.md", "gcloud")...) {
		if out, err := command(t, env, "bash", "-euc", "cd "+folder+"\n"+block); err != nil {
			t.Fatalf("%v\n%s\n%s", err, block, out)
		}
	}
	changes := control.changed()
	lines, _ := sent(changes)
	certificate, of := "/v1/"+secrets+service+"-database-ca", "projects/"+project
	want := []string{
		"POST /v1/projects/" + project + "/secrets", "POST " + certificate + ":addVersion",
		"POST " + certificate + ":setIamPolicy", "POST " + certificate + ":setIamPolicy",
		"POST /v1/" + secrets + service + "-database-url:addVersion",
		"PUT /v1/" + of + "/subscriptions/video.events.archive", "PUT /v1/" + of + "/subscriptions/video.events.table",
		"POST /v2/" + of + "/locations/global/buckets", "POST /v2/" + of + "/sinks",
	}
	same(t, "changes", want, lines)
	if got := at(changes[5].Body, "cloudStorageConfig", "avroConfig", "writeMetadata"); got != true {
		t.Errorf("the archive has %v, want the attributes of each message", changes[5].Body)
	}
	if got := at(changes[6].Body, "bigqueryConfig", "writeMetadata"); got != true {
		t.Errorf("the table has %v, want the attributes of each message", changes[6].Body)
	}
}

// shell returns the blocks of shell commands of a page that have a text in them.
func shell(t *testing.T, page, text string) (blocks []string) {
	t.Helper()
	for block := range strings.SplitSeq(readFile(t, page), "```sh\n") {
		if block, _, _ = strings.Cut(block, "```"); strings.Contains(block, text) {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// The lines of docs/deploy.md for a database certificate are valid in each kind of manifest. The certificate has the
// path that the document names.
func TestDatabaseCertificate(t *testing.T) {
	t.Parallel()
	control, env := newProject(t)
	document, err := os.ReadFile("../../docs/deploy.md")
	must(t, err)
	blocks := strings.Split(string(document), "```yaml\n")
	if len(blocks) != 3 || !strings.Contains(string(document), "sslrootcert=/secrets/db-ca.crt") {
		t.Fatalf("docs/deploy.md has %d pieces of YAML, want two, and sslrootcert=/secrets/db-ca.crt", len(blocks)-1)
	}
	for _, test := range []struct {
		manifest, name string
		command        []string
		spec           []any
	}{
		{"all.service", "Service " + service, []string{"run", "services"}, []any{"spec", "template", "spec"}},
		{"pools.publisher", "WorkerPool " + service + "-publisher", []string{"run", "worker-pools"}, []any{"spec", "template", "spec"}},
		{"migrate.job", "Job " + service + "-migrate", []string{"run", "jobs"}, []any{"spec", "template", "spec", "template", "spec"}},
	} {
		data, err := os.ReadFile("../../deploy/run/" + test.manifest + ".yaml")
		must(t, err)
		manifest := strings.NewReplacer("${SERVICE}", service, "${VERSION}", "v1", "${IMAGE}", image, "${PROJECT}", project, "${REGION}", region).Replace(string(data))
		for i, above := range []string{"args:", "containers:"} {
			lines, _, _ := strings.Cut(blocks[i+1], "```")
			start := strings.Index(manifest, above)
			line := strings.LastIndex(manifest[:start], "\n") + 1
			indent := manifest[line:start]
			manifest = manifest[:line] + indent + strings.ReplaceAll(strings.TrimSpace(lines), "\n", "\n"+indent) + "\n" + manifest[line:]
		}
		file := writeFile(t, "manifest.yaml", []byte(manifest))
		args := append([]string{"-c", `exec gcloud "$@"`, "gcloud"}, append(test.command, "replace", file)...)
		if out, err := command(t, append(env, "CLOUDSDK_CORE_PROJECT="+project, "CLOUDSDK_RUN_REGION="+region), "bash", args...); err != nil {
			t.Fatalf("gcloud %q: %v\n%s", args, err, out)
		}
		_, bodies := sent(control.changed())
		spec := at(bodies[test.name], test.spec...)
		if diff := cmp.Diff([]any{object{"name": "database-ca", "secret": object{
			"secretName": service + "-database-ca", "items": []any{object{"key": "latest", "path": "db-ca.crt"}},
		}}}, at(spec, "volumes")); diff != "" {
			t.Errorf("volumes of %s (-want +got):\n%s", test.manifest, diff)
		}
		same(t, fmt.Sprintf("mounts of %s", test.manifest), []any{object{"name": "database-ca", "mountPath": "/secrets"}}, at(spec, "containers", 0, "volumeMounts"))
	}
}

// checkDestroy runs destroy.sh after a release, in a project with only the APIs of the released resources. The script
// must delete the paths want and leave nothing. It must not send requests to disabled APIs.
func checkDestroy(t *testing.T, control *controlPlane, env []string, want ...string) {
	t.Helper()
	control.enabled = []string{"run.googleapis.com"}
	control.changed()
	out := mustScript(t, env, "destroy.sh", "--yes", project, region)
	if off := "these APIs are off, and nothing is removed there: artifactregistry cloudbuild cloudtrace iam iamcredentials monitoring pubsub secretmanager telemetry\n"; !strings.Contains(out, off) {
		t.Errorf("destroy.sh printed\n%s\nwant %q", out, off)
	}
	var got []string
	for _, change := range control.changed() {
		if change.Method != http.MethodDelete {
			t.Errorf("destroy.sh sent %v", change)
		}
		got = append(got, change.Path)
	}
	same(t, "deleted", want, got)
	if names := control.names(); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
}

// checkService checks the manifest of a service: what every shape needs, and the environment of this one.
func checkService(t *testing.T, manifest object, serviceAccount string, env map[string]string) {
	t.Helper()
	spec := at(manifest, "spec", "template", "spec")
	annotations := at(manifest, "spec", "template", "metadata", "annotations")
	container := at(spec, "containers", 0)
	for _, test := range []struct {
		what      string
		got, want any
	}{
		{"who may come in", at(manifest, "metadata", "annotations", "run.googleapis.com/ingress"), "all"},
		{"check of callers", at(manifest, "metadata", "annotations", "run.googleapis.com/invoker-iam-disabled"), nil},
		{"least number of instances", at(manifest, "metadata", "annotations", "run.googleapis.com/minScale"), "1"},
		{"launch stage", at(manifest, "metadata", "annotations", "run.googleapis.com/launch-stage"), nil},
		{"CPU between requests", at(annotations, "run.googleapis.com/cpu-throttling"), "false"},
		{"execution environment", at(annotations, "run.googleapis.com/execution-environment"), "gen2"},
		{"service account", at(spec, "serviceAccountName"), serviceAccount + "@" + project + ".iam.gserviceaccount.com"},
		{"timeout", at(spec, "timeoutSeconds"), 3600.0},
		{"concurrency, at most the calls of one connection", at(spec, "containerConcurrency"), 250.0},
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
	checkTelemetry(t, values)
	if diff := cmp.Diff(map[string]string{
		"DATABASE_URL": service + "-database-url:1", "READ_DATABASE_URL": service + "-read-database-url:1",
	}, secrets); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	checkSettings(t, container)
}

// number converts a number that JSON may have as a string.
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
		{"service account", at(spec, "serviceAccountName"), service + "-" + role + "@" + project + ".iam.gserviceaccount.com"},
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
	checkTelemetry(t, values)
	same(t, "secrets", map[string]string{"DATABASE_URL": secret}, secrets)
	checkSettings(t, container)
}

// checkTelemetry checks the exporters of traces and metrics. The service must send them itself, because there is no
// collector.
func checkTelemetry(t *testing.T, values map[string]string) {
	t.Helper()
	got := map[string]string{}
	for name, value := range values {
		if strings.HasPrefix(name, "OTEL_") {
			got[name] = value
		}
	}
	want := map[string]string{
		"OTEL_TRACES_EXPORTER": "google", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01", "OTEL_METRICS_EXPORTER": "google",
		"OTEL_RESOURCE_ATTRIBUTES": "gcp.project_id=" + project + ",cloud.platform=gcp_cloud_run,cloud.region=" + region,
	}
	same(t, "where traces and metrics go", want, got)
}

func checkJob(t *testing.T, job object, command, serviceAccount, secret string) {
	t.Helper()
	spec := at(job, "spec", "template", "spec", "template", "spec")
	container := at(spec, "containers", 0)
	if got := at(spec, "serviceAccountName"); got != serviceAccount+"@"+project+".iam.gserviceaccount.com" {
		t.Errorf("service account = %v, want %s", got, serviceAccount)
	}
	if got := at(spec, "maxRetries"); got != 0.0 {
		t.Errorf("retries = %v, want 0, because operators' commands run in this job, too", got)
	}
	same(t, "args", []any{command}, at(container, "args"))
	_, secrets := environment(container)
	same(t, "secrets", map[string]string{"DATABASE_URL": secret}, secrets)
	checkSettings(t, container)
}

// environment returns the plain variables of a container, and the secrets as NAME:VERSION by variable.
func environment(container any) (values, secrets map[string]string) {
	values, secrets = map[string]string{}, map[string]string{}
	for _, v := range list(at(container, "env")) {
		name := fmt.Sprint(at(v, "name"))
		if secret := at(v, "valueFrom", "secretKeyRef", "name"); secret != nil {
			secrets[name] = fmt.Sprint(secret, ":", at(v, "valueFrom", "secretKeyRef", "key"))
			continue
		}
		values[name] = fmt.Sprint(at(v, "value"))
	}
	return values, secrets
}

// checkSettings starts the server with the settings of a container and an unreachable database. The server must get as
// far as the database. It exports nothing, because Google needs credentials.
func checkSettings(t *testing.T, container any) {
	t.Helper()
	values, secrets := environment(container)
	env := []string{"PORT=0"}
	for name, value := range values {
		if value == "google" {
			value = "none"
		}
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

// server builds the server once, and returns the path of the binary.
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
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	flag, err := tuned.Overlay(root, folder, nil)
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", flag, "-o", file, "./cmd/server")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
})

// folder is a directory that exists as long as the tests run.
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
