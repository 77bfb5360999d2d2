package deploytest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gcloud accepts cloudbuild.yaml, so it has no unknown fields. Its steps are in the right order, and it runs as the
// account for releases.
func TestCloudBuild(t *testing.T) {
	t.Parallel()
	control := newControlPlane(project, region)
	env, ok := gcloud(t, control)
	if !ok {
		return
	}
	file, err := filepath.Abs("../../cloudbuild.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := command(t, env, "gcloud", "builds", "submit", "--no-source", "--async", "--config="+file,
		"--project="+project, "--substitutions=SHORT_SHA=abc1234"); err != nil {
		t.Fatalf("gcloud builds submit: %v\n%s", err, out)
	}
	changes := control.changed()
	if len(changes) != 1 {
		t.Fatalf("requests = %v, want one, the build", changes)
	}
	build := changes[0].Body
	var ids []string
	scripts := map[string]string{}
	for _, step := range list(build["steps"]) {
		id := fmt.Sprint(at(step, "id"))
		ids = append(ids, id)
		scripts[id] = fmt.Sprint(at(step, "args"))
	}
	if want := []string{"check", "image", "release"}; !slices.Equal(ids, want) {
		t.Errorf("steps = %q, want %q", ids, want)
	}
	for id, want := range map[string]string{"check": ".ci/run", "image": "--sbom=", "release": `"$(cat /workspace/image)"`} {
		if !strings.Contains(scripts[id], want) {
			t.Errorf("step %s runs %s, want %q in it", id, scripts[id], want)
		}
	}
	if got, want := fmt.Sprint(build["serviceAccount"]), "${_SERVICE}-release@"; !strings.Contains(got, want) {
		t.Errorf("it runs as %s, want %s…", got, want)
	}
}
