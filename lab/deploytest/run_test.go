package deploytest

import (
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// run is a double of Cloud Run, with the API of Knative. It stores what is sent, and reports it as ready. It validates
// a request with dryRun but does not store it.
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
	if len(parts) == 4 { // POST creates a resource
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

// keep stores a resource as ready. c.mu is held.
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
			c.keepRevision(path, body)
		}
	}
	return body
}

// keepRevision stores the revision of a service's template. c.mu is held.
func (c *controlPlane) keepRevision(path string, service object) {
	template := service["spec"].(object)["template"].(object)
	metadata := maps.Clone(template["metadata"].(object))
	metadata["namespace"] = c.project
	metadata["labels"] = object{"serving.knative.dev/service": service["metadata"].(object)["name"], "cloud.googleapis.com/location": c.region}
	namespace, _, _ := strings.Cut(path, "services/")
	name := fmt.Sprint(namespace, "revisions/", metadata["name"])
	c.owners[name] = path
	c.resources[name] = object{
		"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": metadata, "spec": template["spec"],
		"status": object{"conditions": []any{condition("Ready")}},
	}
}

func condition(kind string) object {
	return object{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
}

// execute runs a job, which succeeds immediately. c.mu is held.
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
	kept := strings.Replace(path, "/jobs/"+job, "/executions/"+name, 1)
	c.owners[kept], c.resources[kept] = path, execution
	return execution
}

// startGRPC serves the gRPC calls of gcloud to Cloud Run until the test ends. It returns the certificate to trust.
func (c *controlPlane) startGRPC(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewUnstartedServer(grpc.NewServer(grpc.UnknownServiceHandler(c.workerPool)))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	c.grpc = server.Listener.Addr().String()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// workerPool handles GetWorkerPool, and DeleteWorkerPool with a finished operation. In both messages the name is the
// first field, and no other one is needed. So it needs no generated types.
func (c *controlPlane) workerPool(_ any, stream grpc.ServerStream) error {
	var in, out emptypb.Empty
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	unknown := in.ProtoReflect().GetUnknown()
	_, _, tag := protowire.ConsumeTag(unknown)
	if tag < 0 {
		return status.Error(codes.InvalidArgument, "no name")
	}
	name, n := protowire.ConsumeString(unknown[tag:])
	if n < 0 {
		return status.Error(codes.InvalidArgument, "no name")
	}
	method, _ := grpc.Method(stream.Context())
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, off := c.disabled("run" + domain); off {
		return status.Error(codes.PermissionDenied, "the API is disabled")
	}
	path := strings.Replace("run/"+strings.Replace(name, "/workerPools/", "/workerpools/", 1),
		"projects/"+c.project+"/locations/"+c.region, "namespaces/"+c.project, 1)
	deletes := strings.HasSuffix(method, "/DeleteWorkerPool")
	switch _, ok := c.resources[path]; {
	case !deletes && !strings.HasSuffix(method, "/GetWorkerPool"):
		c.unknown = append(c.unknown, method+" "+name)
		return status.Error(codes.Unimplemented, method)
	case !ok:
		return status.Error(codes.NotFound, name)
	case deletes:
		c.changes = append(c.changes, request{Method: http.MethodDelete, Path: "/v2/" + name})
		c.remove(path)
		operation := protowire.AppendTag(nil, 1, protowire.BytesType)
		operation = protowire.AppendString(operation, name+"/operations/1")
		operation = protowire.AppendTag(operation, 3, protowire.VarintType) // the field done
		out.ProtoReflect().SetUnknown(protowire.AppendVarint(operation, 1))
	}
	return stream.SendMsg(&out)
}

// tunnel passes the gRPC connection of gcloud through the proxy.
func (c *controlPlane) tunnel(w http.ResponseWriter, r *http.Request) {
	if r.Host != c.region+"-run"+domain+":443" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unknown = append(c.unknown, "CONNECT "+r.Host)
		http.Error(w, r.Host, http.StatusNotImplemented)
		return
	}
	back, err := net.Dial("tcp", c.grpc)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer back.Close()
	front, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	// When one direction ends, both end. Their errors have no more information.
	var both sync.WaitGroup
	defer both.Wait()
	defer front.Close()
	_, _ = io.WriteString(front, "HTTP/1.1 200 Connection established\r\n\r\n")
	both.Go(func() {
		_, _ = io.Copy(back, buffered)
		back.Close()
	})
	_, _ = io.Copy(front, back)
}
