package deploytest

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The autoscaler scales the pool of release.sh, by the metrics of the subscription of provision.sh. Its minimum is
// the pool's number of instances, and its maximum is within the capacity of the database.
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
