package deploytest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// idToken is the identity token that every service account gets. It expires in 2100.
var idToken = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." +
	base64.RawURLEncoding.EncodeToString([]byte(`{"exp":4102444800}`)) + ".c2lnbmF0dXJl"

// object is a resource or a message as JSON.
type object = map[string]any

// request is a request that changes something.
type request struct {
	Method string
	Path   string
	Query  url.Values
	Body   object
}

func (r request) String() string { return r.Method + " " + r.Path }

// controlPlane is a double of Cloud Run, IAM, Secret Manager, Artifact Registry, Service Usage and Resource Manager,
// as far as the scripts use them. It creates, lists and deletes resources, stores policies, and issues tokens. It
// checks only that APIs are enabled, whether names exist, and the etags of policies. It is the proxy of gcloud, so
// it gets the requests to all hosts.
type controlPlane struct {
	project, number, region string
	pubsub                  http.Handler
	broken                  string   // path of the requests that it refuses
	states                  []string // of the versions of every secret, from version 1
	grpc                    string   // address for the gRPC calls of gcloud
	mu                      sync.Mutex
	resources               map[string]object // guarded by mu: by path, without the version of the API
	policies                map[string]object // guarded by mu
	owners                  map[string]string // guarded by mu: the owner of a revision or an execution
	enabled                 []string          // guarded by mu: enabled APIs
	changes                 []request         // guarded by mu: in order
	unknown                 []string          // guarded by mu: requests that it does not support
}

func newControlPlane(project, region string) *controlPlane {
	c := &controlPlane{
		project: project, number: "123456789012", region: region,
		states: []string{"ENABLED"}, resources: map[string]object{}, policies: map[string]object{}, owners: map[string]string{},
	}
	for _, api := range apis {
		c.enabled = append(c.enabled, api+".googleapis.com")
	}
	return c
}

// apis are the APIs that a project must enable. Each is the first part of a host that gcloud or the service calls.
var apis = []string{"artifactregistry", "cloudbuild", "cloudtrace", "iam", "iamcredentials", "monitoring", "pubsub", "run", "secretmanager", "telemetry"}

// disabled returns the API of a host, and whether a project must still enable it. c.mu is held.
func (c *controlPlane) disabled(host string) (api string, yes bool) {
	api = strings.TrimPrefix(strings.TrimSuffix(host, domain), c.region+"-")
	return api, slices.Contains(apis, api) && !slices.Contains(c.enabled, api+".googleapis.com")
}

// start serves until the test ends, and returns the port.
func (c *controlPlane) start(t *testing.T) string {
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, u := range c.unknown {
			t.Errorf("the control plane does not support %s", u)
		}
	})
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	return port
}

// withPubSub passes requests for pubsub.example.com to a server, and records those that change something.
func (c *controlPlane) withPubSub(addr string) (err error) {
	c.pubsub, err = pubSubREST(addr)
	return err
}

// changed returns the requests that changed something since its last call.
func (c *controlPlane) changed() []request {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.changes
	c.changes = nil
	return changes
}

// names returns the paths of all resources, sorted.
func (c *controlPlane) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.resources))
}

// grants returns the policy of a resource as sorted lines "role member".
func (c *controlPlane) grants(path string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for _, b := range list(c.policies[path]["bindings"]) {
		for _, member := range list(b.(object)["members"]) {
			lines = append(lines, fmt.Sprint(b.(object)["role"], " ", member))
		}
	}
	slices.Sort(lines)
	return lines
}

func list(v any) []any {
	values, _ := v.([]any)
	return values
}

func (c *controlPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		c.tunnel(w, r)
		return
	}
	body := object{}
	data, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(data))
	if err == nil && len(data) > 0 {
		err = json.Unmarshal(data, &body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if api, yes := c.disabled(r.Host); yes {
		writeError(w, http.StatusForbidden, api+" API has not been used in project "+c.number+" before or it is disabled")
		return
	}
	path, method, _ := strings.Cut(trimVersion(r.URL.Path), ":")
	if r.Host == "pubsub"+domain && !strings.HasSuffix(method, "IamPolicy") { // pubsublocal has no policies
		if r.Method == http.MethodDelete {
			delete(c.policies, path)
		}
		c.record(r, body)
		c.pubsub.ServeHTTP(w, r)
		return
	}
	// The project of a service account may be a dash, which means any project.
	path = strings.Replace(path, "projects/-/", "projects/"+c.project+"/", 1)
	if strings.HasSuffix(r.Host, "run"+domain) && strings.HasPrefix(path, "projects/") {
		// Policies of Cloud Run name a service by project and location, not by namespace.
		path = strings.Replace("run/"+path, "projects/"+c.project+"/locations/"+c.region, "namespaces/"+c.project, 1)
	}
	c.record(r, body)
	answer, status := c.answer(r, path, method, body)
	if status == http.StatusNotImplemented {
		c.unknown = append(c.unknown, r.Method+" "+r.URL.String()+" "+string(data))
	}
	if status >= http.StatusBadRequest {
		writeError(w, status, http.StatusText(status)+": "+path)
		return
	}
	writeJSON(w, status, answer)
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, object{"error": object{"code": status, "message": message, "status": statusNames[status]}})
}

func writeJSON(w http.ResponseWriter, status int, answer object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the error is only that gcloud has disconnected
}

// record records a request that changes something. c.mu is held.
func (c *controlPlane) record(r *http.Request, body object) {
	if r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, ":getIamPolicy") {
		c.changes = append(c.changes, request{Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), Body: body})
	}
}

var statusNames = map[int]string{
	http.StatusForbidden: "PERMISSION_DENIED", http.StatusNotFound: "NOT_FOUND", http.StatusConflict: "ALREADY_EXISTS", http.StatusNotImplemented: "UNIMPLEMENTED",
}

// trimVersion removes /v1/ or a Kubernetes API from a path. For the latter it replaces namespaces by projects.
func trimVersion(path string) string {
	path = strings.TrimPrefix(path, "/")
	if rest, ok := strings.CutPrefix(path, "apis/"); ok {
		_, rest, _ = strings.Cut(rest, "/") // the API group
		_, rest, _ = strings.Cut(rest, "/") // the API version
		return "run/" + rest
	}
	first, rest, _ := strings.Cut(path, "/")
	if strings.HasPrefix(first, "v") {
		return rest
	}
	return path
}

// answer returns the response to a request, and its status. c.mu is held.
func (c *controlPlane) answer(r *http.Request, path, method string, body object) (object, int) {
	switch {
	case path == c.broken:
		return nil, http.StatusForbidden
	case path == "projects/"+c.project && method == "" && r.Method == http.MethodGet:
		return object{"projectId": c.project, "projectNumber": c.number, "lifecycleState": "ACTIVE"}, http.StatusOK
	case path == "projects/"+c.project+"/services":
		return c.serviceUsage(method, body)
	case method == "getIamPolicy" || method == "setIamPolicy":
		return c.policy(path, method, body)
	case method == "addVersion":
		return object{"name": path + "/versions/1", "clientSpecifiedPayloadChecksum": true}, http.StatusOK
	case strings.HasSuffix(path, "-database-url/versions"):
		versions := []object{}
		for i, state := range c.states {
			versions = append(versions, object{
				"name": fmt.Sprint(path, "/", i+1), "state": state, "createTime": fmt.Sprintf("2026-01-%02dT00:00:00Z", i+1),
			})
		}
		return object{"versions": versions}, http.StatusOK
	case method == "generateAccessToken":
		return object{"accessToken": "token of the release", "expireTime": "2100-01-01T00:00:00Z"}, http.StatusOK
	case method == "generateIdToken":
		return object{"token": idToken}, http.StatusOK
	case strings.HasSuffix(path, "/builds") && r.Method == http.MethodPost:
		return object{"name": "operations/build/" + c.project + "/1", "metadata": object{
			"@type": "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata",
			"build": object{"id": "1", "projectId": c.project, "status": "QUEUED", "logUrl": "https://logs.example.com/1"},
		}}, http.StatusOK
	case strings.HasPrefix(path, "run/"):
		return c.run(r, path, method, body)
	case method != "":
		return nil, http.StatusNotImplemented
	}
	return c.resource(r, path, body)
}

func (c *controlPlane) serviceUsage(method string, body object) (object, int) {
	switch method {
	case "":
		services := []object{}
		for _, name := range c.enabled {
			services = append(services, object{
				"name": "projects/" + c.number + "/services/" + name, "config": object{"name": name}, "state": "ENABLED",
			})
		}
		return object{"services": services}, http.StatusOK
	case "batchEnable":
		for _, id := range list(body["serviceIds"]) {
			c.enabled = append(c.enabled, fmt.Sprint(id))
		}
		return object{"name": "operations/noop.DONE_OPERATION", "done": true, "response": object{}}, http.StatusOK
	}
	return nil, http.StatusNotImplemented
}

// policy reads and writes policies as the services do: the whole policy, protected by its etag.
func (c *controlPlane) policy(path, method string, body object) (object, int) {
	isPubSub := strings.Contains(path, "/topics/") || strings.Contains(path, "/subscriptions/")
	if _, ok := c.resources[path]; !ok && !isPubSub && path != "projects/"+c.project {
		return nil, http.StatusNotFound
	}
	current := c.policies[path]
	if current == nil {
		current = object{"etag": "AAAA", "version": 1}
	}
	if method == "getIamPolicy" {
		return current, http.StatusOK
	}
	policy, _ := body["policy"].(object)
	if policy == nil {
		return nil, http.StatusBadRequest
	}
	if policy["etag"] != current["etag"] {
		return nil, http.StatusConflict
	}
	policy["etag"] = current["etag"].(string) + "AAAA" // valid base64, but a new value
	c.policies[path] = policy
	return policy, http.StatusOK
}

// resource implements the standard methods. The path of a collection has an odd number of parts. The path of a resource
// has an even number.
func (c *controlPlane) resource(r *http.Request, path string, body object) (object, int) {
	parts := strings.Split(path, "/")
	collection := parts[len(parts)-1]
	switch {
	case len(parts)%2 == 1 && r.Method == http.MethodGet:
		found := []object{}
		for _, name := range slices.Sorted(maps.Keys(c.resources)) {
			if rest, ok := strings.CutPrefix(name, path+"/"); ok && !strings.Contains(rest, "/") {
				found = append(found, c.resources[name])
			}
		}
		answers := map[string]string{"serviceAccounts": "accounts"}
		if other, ok := answers[collection]; ok {
			collection = other
		}
		return object{collection: found}, http.StatusOK
	case len(parts)%2 == 1 && r.Method == http.MethodPost:
		id := c.newID(r, collection, body)
		if id == "" {
			return nil, http.StatusNotImplemented
		}
		name := path + "/" + id
		if _, ok := c.resources[name]; ok {
			return nil, http.StatusConflict
		}
		if collection == "serviceAccounts" {
			body = object{"email": id, "displayName": body["serviceAccount"].(object)["displayName"]}
		}
		body["name"] = name
		c.resources[name] = body
		if collection == "repositories" {
			return object{"name": "projects/" + c.project + "/locations/" + c.region + "/operations/1", "done": true, "response": body}, http.StatusOK
		}
		return body, http.StatusOK
	}
	found, ok := c.resources[path]
	switch {
	case slices.Contains(parts, "operations"):
		return object{"name": path, "done": true, "response": object{}}, http.StatusOK
	case !ok:
		return nil, http.StatusNotFound
	case r.Method == http.MethodGet:
		return found, http.StatusOK
	case r.Method == http.MethodPatch:
		maps.Copy(found, body)
		return found, http.StatusOK
	case r.Method == http.MethodDelete:
		c.remove(path)
		if slices.Contains(parts, "repositories") {
			return object{"name": "projects/" + c.project + "/locations/" + c.region + "/operations/1", "done": true, "response": object{}}, http.StatusOK
		}
		return object{}, http.StatusOK
	}
	return nil, http.StatusNotImplemented
}

// remove deletes a resource, and what Cloud Run has created for it. c.mu is held.
func (c *controlPlane) remove(path string) {
	delete(c.resources, path)
	delete(c.policies, path)
	maps.DeleteFunc(c.resources, func(name string, _ object) bool { return c.owners[name] == path })
}

// newID returns the id of the resource that a request creates.
func (c *controlPlane) newID(r *http.Request, collection string, body object) string {
	switch collection {
	case "secrets":
		return r.URL.Query().Get("secretId")
	case "repositories":
		return r.URL.Query().Get("repositoryId")
	case "buckets", "sinks":
		return "calls"
	case "serviceAccounts":
		return fmt.Sprintf("%v@%s.iam.gserviceaccount.com", body["accountId"], c.project)
	}
	return ""
}
