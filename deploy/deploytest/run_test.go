package deploytest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// run answers for Cloud Run, whose API is that of Knative: what is sent is what is kept, and it is ready at once. A request
// with dryRun is answered and not kept.
func (c *controlPlane) run(r *http.Request, path, method string, body object) (object, int) {
	parts := strings.Split(path, "/") // run, namespaces, PROJECT, KIND[, NAME]
	if len(parts) < 4 || parts[2] != c.project {
		return nil, http.StatusNotFound
	}
	kind := parts[3]
	if len(parts) == 4 && r.Method == http.MethodGet {
		items := []object{}
		for _, name := range slices.Sorted(maps.Keys(c.resources)) {
			if strings.HasPrefix(name, path+"/") {
				items = append(items, c.resources[name])
			}
		}
		return object{"items": items}, http.StatusOK
	}
	if len(parts) == 4 { // POST creates
		metadata, _ := body["metadata"].(object)
		path += "/" + fmt.Sprint(metadata["name"])
		if _, ok := c.resources[path]; ok {
			return nil, http.StatusConflict
		}
		return c.keep(r, path, kind, body), http.StatusOK
	}
	found, ok := c.resources[path]
	switch {
	case !ok:
		return nil, http.StatusNotFound
	case method == "run":
		return c.execute(path, parts[4]), http.StatusOK
	case r.Method == http.MethodGet:
		return found, http.StatusOK
	case r.Method == http.MethodPut:
		return c.keep(r, path, kind, body), http.StatusOK
	case r.Method == http.MethodDelete:
		c.remove(path)
		return object{"kind": "Status", "status": "Success"}, http.StatusOK
	}
	return nil, http.StatusNotImplemented
}

// keep stores what was sent, as an object that is ready. c.mu is held.
func (c *controlPlane) keep(r *http.Request, path, kind string, body object) object {
	generation := 1.0
	if old, ok := c.resources[path]; ok {
		generation = old["metadata"].(object)["generation"].(float64) + 1
	}
	body = maps.Clone(body)
	metadata := maps.Clone(body["metadata"].(object))
	metadata["generation"] = generation
	metadata["resourceVersion"] = fmt.Sprint(generation)
	metadata["selfLink"] = "/" + path
	labels := object{"cloud.googleapis.com/location": c.region}
	if sent, ok := metadata["labels"].(object); ok {
		maps.Copy(labels, sent)
	}
	metadata["labels"] = labels
	body["metadata"] = metadata
	status := object{
		"observedGeneration": generation,
		"conditions":         []any{condition("Ready"), condition("ConfigurationsReady"), condition("RoutesReady")},
	}
	if kind == "services" {
		spec := body["spec"].(object)
		revision := spec["template"].(object)["metadata"].(object)["name"]
		status["url"] = "https://" + fmt.Sprint(metadata["name"]) + ".example.com"
		status["latestReadyRevisionName"], status["latestCreatedRevisionName"] = revision, revision
		traffic := []any{}
		for _, target := range list(spec["traffic"]) {
			target := maps.Clone(target.(object))
			if tag, ok := target["tag"]; ok {
				target["url"] = fmt.Sprintf("https://%v---%v.example.com", tag, metadata["name"])
			}
			traffic = append(traffic, target)
		}
		status["traffic"] = traffic
	}
	body["status"] = status
	if r.URL.Query().Get("dryRun") == "" {
		c.resources[path] = body
		if kind == "services" {
			c.keepRevision(strings.TrimSuffix(path, fmt.Sprint("services/", metadata["name"])), body)
		}
	}
	return body
}

// keepRevision keeps the revision that a service's template makes. c.mu is held.
func (c *controlPlane) keepRevision(namespace string, service object) {
	template := service["spec"].(object)["template"].(object)
	metadata := maps.Clone(template["metadata"].(object))
	metadata["namespace"] = c.project
	metadata["labels"] = object{"serving.knative.dev/service": service["metadata"].(object)["name"], "cloud.googleapis.com/location": c.region}
	c.resources[fmt.Sprint(namespace, "revisions/", metadata["name"])] = object{
		"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": metadata, "spec": template["spec"],
		"status": object{"conditions": []any{condition("Ready")}},
	}
}

func condition(kind string) object {
	return object{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
}

// execute runs a job, which succeeds at once. c.mu is held.
func (c *controlPlane) execute(path, job string) object {
	name := job + "-00001"
	execution := object{
		"apiVersion": "run.googleapis.com/v1", "kind": "Execution",
		"metadata": object{
			"name": name, "namespace": c.project, "generation": 1,
			"labels": object{"run.googleapis.com/job": job, "cloud.googleapis.com/location": c.region},
		},
		"spec": object{"taskCount": 1},
		"status": object{
			"observedGeneration": 1, "succeededCount": 1,
			"conditions": []any{condition("Completed"), condition("Started"), condition("ResourcesAvailable"), condition("ContainerReady")},
		},
	}
	c.resources[strings.Replace(path, "/jobs/"+job, "/executions/"+name, 1)] = execution
	return execution
}
