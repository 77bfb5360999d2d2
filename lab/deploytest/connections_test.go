package deploytest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The manifests need as many connections as docs/database.md and their comments say. A service counts its maximum and one
// new instance, for both URLs. Pools count twice their instances.
func TestConnectionsOfTheManifests(t *testing.T) {
	t.Parallel()
	const mostAnnotation, poolAnnotation = "run.googleapis.com/maxScale", "run.googleapis.com/manualInstanceCount"
	connections := func(name, annotation string) (instances, each int) {
		manifest := readManifest(t, name)
		values, secrets := environment(at(manifest, "spec", "template", "spec", "containers", 0))
		instances, err := strconv.Atoi(fmt.Sprint(at(manifest, "metadata", "annotations", annotation)))
		if err != nil {
			t.Errorf("%s of %s: %v", annotation, name, err)
		}
		each, err = strconv.Atoi(values["DATABASE_MAX_CONNS"])
		if err != nil {
			t.Errorf("DATABASE_MAX_CONNS of %s: %v", name, err)
		}
		return instances, each * len(secrets)
	}
	instances, each := connections("all.service", mostAnnotation)
	all := (instances + 1) * each
	instances, each = connections("pools.service", mostAnnotation)
	pools := (instances + 1) * each
	for _, name := range []string{"pools.publisher", "pools.projector"} {
		instances, each = connections(name, poolAnnotation)
		pools += 2 * instances * each
	}
	for file, want := range map[string]string{
		"docs/database.md":              fmt.Sprintf("need %d.", max(all, pools)),
		"deploy/run/all.service.yaml":   fmt.Sprintf("tried: %d.", all),
		"deploy/run/pools.service.yaml": fmt.Sprintf("%d in all.", pools),
	} {
		if !strings.Contains(readFile(t, file), want) {
			t.Errorf("%s does not say %q", file, want)
		}
	}
}

func readManifest(t *testing.T, name string) object {
	t.Helper()
	text, err := os.ReadFile("../../deploy/run/" + name + ".yaml")
	must(t, err)
	var manifest object
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return manifest
}
