package deploytest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The autoscaler scales the pool of release.sh, by the metrics of the subscription of provision.sh. Its minimum is
// the pool's number of instances.
func TestScalingFitsThePool(t *testing.T) {
	t.Parallel()
	config, pool := readManifest(t, "pools.scaling"), readManifest(t, "pools.projector")
	object := list(at(config, "spec", "scaledObjects"))[0]
	name, _ := at(pool, "metadata", "name").(string)
	if got, want := at(object, "spec", "scaleTargetRef", "name"), "projects/${PROJECT}/locations/${REGION}/workerpools/"+name; got != want {
		t.Errorf("it scales %v, want %s", got, want)
	}
	if got, want := at(object, "spec", "minReplicaCount"), at(pool, "metadata", "annotations", "run.googleapis.com/manualInstanceCount"); got != 2 || want != "2" {
		t.Errorf("at least %v instances, and a release makes %v, want 2 and 2", got, want)
	}
	trigger := list(at(object, "spec", "triggers"))[0]
	query, _ := at(trigger, "metadata", "query").(string)
	if !strings.Contains(query, `subscription_id=~"${SUBSCRIPTIONS}"`) {
		t.Errorf("query %q, want one of the subscriptions, which its first comment sets", query)
	}
	if got, want := at(trigger, "authenticationRef", "name"), at(list(at(config, "spec", "triggerAuthentications"))[0], "metadata", "name"); got != want {
		t.Errorf("the trigger authenticates as %v, want %v", got, want)
	}
}

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
		"docs/database.md":              fmt.Sprintf("need %d or %d.", all, pools),
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
	if err != nil {
		t.Fatal(err)
	}
	var manifest object
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return manifest
}
