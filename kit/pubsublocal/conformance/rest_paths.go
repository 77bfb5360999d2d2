package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// provePaths calls each path of the API once, and compares the whole response.
func provePaths(t *testing.T, e *Env) {
	project := "projects/" + e.Project
	topic, sub, snapshot := e.Name("topics"), e.Name("subscriptions"), e.Name("snapshots")
	// same compares responses. The fields in ignore must exist, but may have any value.
	same := func(what string, want, got map[string]any, ignore ...string) {
		t.Helper()
		for _, field := range ignore {
			if _, ok := got[field]; !ok {
				t.Errorf("%s: got %v, want it to have %s", what, got, field)
			}
			delete(got, field)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	listed := func(what string, list any, name string) {
		t.Helper()
		for _, item := range objects(list) {
			if item["name"] == name {
				return
			}
		}
		t.Errorf("%s: got %v, want it to have %q", what, list, name)
	}
	empty := map[string]any{}

	// Topics and subscriptions.
	same("create topic", map[string]any{"name": topic}, stateless(wantOK(t, e, http.MethodPut, topic, `{}`)))
	same("get topic", map[string]any{"name": topic}, stateless(wantOK(t, e, http.MethodGet, topic, "")))
	subscription := func() map[string]any {
		return map[string]any{
			"name": sub, "topic": topic, "pushConfig": empty, "ackDeadlineSeconds": 10.0, "messageRetentionDuration": "604800s",
			"expirationPolicy": map[string]any{"ttl": "2678400s"}, "state": "ACTIVE",
		}
	}
	same("create subscription", subscription(), wantOK(t, e, http.MethodPut, sub, `{"topic": "`+topic+`"}`))
	same("get subscription", subscription(), wantOK(t, e, http.MethodGet, sub, ""))
	snake := e.Name("subscriptions")
	want := subscription()
	want["name"], want["ackDeadlineSeconds"], want["messageRetentionDuration"], want["retainAckedMessages"] = snake, 77.0, "3600.500s", true
	same("create in snake_case", want, wantOK(t, e, http.MethodPut, snake,
		`{"topic": "`+topic+`", "ack_deadline_seconds": 77, "message_retention_duration": "3600.5s", "retain_acked_messages": true}`))
	same("update subscription", want, wantOK(t, e, http.MethodPatch, snake, `{"subscription": {"ackDeadlineSeconds": 77}, "updateMask": "ackDeadlineSeconds"}`))
	listed("topics", wantOK(t, e, http.MethodGet, project+"/topics?pageSize=1000", "")["topics"], topic)
	listed("subscriptions", wantOK(t, e, http.MethodGet, project+"/subscriptions?pageSize=1000", "")["subscriptions"], sub)
	ofTopic, _ := wantOK(t, e, http.MethodGet, topic+"/subscriptions", "")["subscriptions"].([]any)
	if len(ofTopic) != 2 || !slices.Contains(ofTopic, any(sub)) {
		t.Errorf("subscriptions of the topic: got %v, want %q and another", ofTopic, sub)
	}

	// Messages.
	published := wantOK(t, e, http.MethodPost, topic+":publish",
		`{"messages": [{"data": "AP/+", "attributes": {"a": "1"}, "orderingKey": "k"}]}`)
	ids, _ := published["messageIds"].([]any)
	if len(ids) != 1 || len(published) != 1 {
		t.Fatalf("publish: got %v, want messageIds with one id", published)
	}
	received := objects(wantOK(t, e, http.MethodPost, sub+":pull", `{"max_messages": 10}`)["receivedMessages"])
	if len(received) != 1 {
		t.Fatalf("pull: got %v, want one message", received)
	}
	message, _ := received[0]["message"].(map[string]any)
	publishTime, _ := message["publishTime"].(string)
	if at, err := time.Parse(time.RFC3339Nano, publishTime); err != nil || !strings.HasSuffix(publishTime, "Z") || at.IsZero() {
		t.Errorf("got publishTime %q, want one in RFC 3339 that ends in Z", publishTime)
	}
	same("message", map[string]any{"data": "AP/+", "attributes": map[string]any{"a": "1"}, "orderingKey": "k", "messageId": ids[0]}, message, "publishTime")
	ackID, _ := received[0]["ackId"].(string)
	same("received message", map[string]any{"message": message}, received[0], "ackId")
	same("modifyAckDeadline", empty, wantOK(t, e, http.MethodPost, sub+":modifyAckDeadline", `{"ackIds": ["`+ackID+`"], "ackDeadlineSeconds": 60}`))
	same("pull of nothing", empty, wantOK(t, e, http.MethodPost, sub+":pull", `{"maxMessages": 10, "returnImmediately": true}`))

	// Snapshots.
	labels := map[string]any{"a": "1"}
	same("create snapshot", map[string]any{"name": snapshot, "topic": topic, "labels": labels},
		wantOK(t, e, http.MethodPut, snapshot, `{"subscription": "`+sub+`", "labels": {"a": "1"}}`), "expireTime")
	got := wantOK(t, e, http.MethodGet, snapshot, "")
	expireTime, _ := got["expireTime"].(string)
	if _, err := time.Parse(time.RFC3339Nano, expireTime); err != nil || !strings.HasSuffix(expireTime, "Z") {
		t.Errorf("got expireTime %q, want one in RFC 3339 that ends in Z", expireTime)
	}
	same("get snapshot", map[string]any{"name": snapshot, "topic": topic, "labels": labels}, got, "expireTime")
	listed("snapshots", wantOK(t, e, http.MethodGet, project+"/snapshots?pageSize=1000", "")["snapshots"], snapshot)
	same("snapshots of the topic", map[string]any{"snapshots": []any{snapshot}}, wantOK(t, e, http.MethodGet, topic+"/snapshots", ""))
	same("acknowledge", empty, wantOK(t, e, http.MethodPost, sub+":acknowledge", `{"ackIds": ["`+ackID+`"]}`))
	same("seek to a snapshot", empty, wantOK(t, e, http.MethodPost, sub+":seek", `{"snapshot": "`+snapshot+`"}`))
	same("seek to a time", empty, wantOK(t, e, http.MethodPost, sub+":seek", `{"time": "`+publishTime+`"}`))
	expectDelivery(t, e, sub, "\x00\xff\xfe")
	same("modifyPushConfig", empty, wantOK(t, e, http.MethodPost, sub+":modifyPushConfig", `{"pushConfig": {}}`))

	// Schemas.
	provePathsOfSchemas(t, e, same, listed)

	// Detach and delete.
	same("detach", empty, wantOK(t, e, http.MethodPost, sub+":detach", ""))
	for _, name := range []string{snapshot, sub, topic} {
		same("delete "+name, empty, wantOK(t, e, http.MethodDelete, name, ""))
		wantFault(t, e, http.MethodGet, name, "", http.StatusNotFound, "NOT_FOUND")
	}
}

func provePathsOfSchemas(
	t *testing.T, e *Env, same func(what string, want, got map[string]any, ignore ...string), listed func(what string, list any, name string),
) {
	t.Helper()
	project, name := "projects/"+e.Project, e.Name("schemas")
	id := strings.Split(name, "/")[3]
	body := func(definition string) string {
		return `{"type": "PROTOCOL_BUFFER", "definition": ` + strconv.Quote(definition) + `}`
	}
	full := func(definition string) map[string]any {
		return map[string]any{"name": name, "type": "PROTOCOL_BUFFER", "definition": definition}
	}
	created := wantOK(t, e, http.MethodPost, project+"/schemas?schemaId="+id, body(filmV1))
	first, _ := created["revisionId"].(string)
	same("create schema", full(filmV1), created, "revisionId", "revisionCreateTime")
	committed := wantOK(t, e, http.MethodPost, name+":commit", `{"schema": `+body(filmV2)+`}`)
	second, _ := committed["revisionId"].(string)
	same("commit", full(filmV2), committed, "revisionId", "revisionCreateTime")
	got := wantOK(t, e, http.MethodGet, name+"@"+first, "")
	if got["definition"] != filmV1 {
		t.Errorf("get revision: got %v, want the first definition", got)
	}
	same("get schema", full(filmV2), wantOK(t, e, http.MethodGet, name, ""), "revisionId", "revisionCreateTime")
	listed("schemas", wantOK(t, e, http.MethodGet, project+"/schemas?pageSize=1000", "")["schemas"], name)
	same("rollback", full(filmV1), wantOK(t, e, http.MethodPost, name+":rollback", `{"revisionId": "`+first+`"}`), "revisionId", "revisionCreateTime")
	wantOK(t, e, http.MethodDelete, name+"@"+second+":deleteRevision", "")
	if got := objects(wantOK(t, e, http.MethodGet, name+":listRevisions", "")["schemas"]); len(got) != 2 {
		t.Errorf("revisions: got %v, want 2", got)
	}
	empty := map[string]any{}
	same("validate", empty, wantOK(t, e, http.MethodPost, project+"/schemas:validate", `{"schema": `+body(filmV1)+`}`))
	same("validateMessage", empty, wantOK(t, e, http.MethodPost, project+"/schemas:validateMessage",
		`{"name": "`+name+`", "message": "eyJ0aXRsZSI6ICJSYW4ifQ==", "encoding": "JSON"}`)) // {"title": "Ran"}
	same("delete schema", empty, wantOK(t, e, http.MethodDelete, name, ""))
	wantFault(t, e, http.MethodGet, name, "", http.StatusNotFound, "NOT_FOUND")
}

// proveHeadersUnread checks that headers are ignored: it gets a topic with them over HTTP and over
// gRPC.
func proveHeadersUnread(t *testing.T, e *Env, topic string, headers ...string) {
	t.Helper()
	if diff := cmp.Diff(map[string]any{"name": topic}, stateless(wantOK(t, e, http.MethodGet, topic, "", headers...))); diff != "" {
		t.Errorf("HTTP (-want +got):\n%s", diff)
	}
	conn, err := grpc.NewClient(addressOf(t, e), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), headers...)
	got, err := pubsubpb.NewPublisherClient(conn).GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: topic})
	if err != nil || got.GetName() != topic {
		t.Errorf("gRPC: got %v, %v, want %q", got, err, topic)
	}
}

// restCall calls a path after /v1/, and returns the HTTP status and the JSON object. headers are
// names and values in turn.
func restCall(t *testing.T, e *Env, method, path, body string, headers ...string) (int, map[string]any) {
	t.Helper()
	code, answer := rawCall(t, method, e.HTTP+"/v1/"+path, body, headers...)
	if len(answer) == 0 {
		return code, nil
	}
	var object map[string]any
	if err := json.Unmarshal(answer, &object); err != nil {
		object = map[string]any{"no JSON": string(answer)}
	}
	return code, object
}

func rawCall(t *testing.T, method, address, body string, headers ...string) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, address, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, address, err)
	}
	return response.StatusCode, answer
}

// wantOK calls restCall, and fails the test unless the call succeeds.
func wantOK(t *testing.T, e *Env, method, path, body string, headers ...string) map[string]any {
	t.Helper()
	code, object := restCall(t, e, method, path, body, headers...)
	if code != http.StatusOK || object == nil {
		t.Fatalf("%s %s: got %d %v, want 200 and an object", method, path, code, object)
	}
	return object
}

// wantFault calls restCall, and fails the test unless the call fails with this code and status. It
// returns the message.
func wantFault(t *testing.T, e *Env, method, path, body string, code int, status string) string {
	t.Helper()
	gotCode, object := restCall(t, e, method, path, body)
	fault, _ := object["error"].(map[string]any)
	if gotCode != code || fault["status"] != status {
		t.Errorf("%s %s: got %d %v, want %d %s", method, path, gotCode, object, code, status)
	}
	message, _ := fault["message"].(string)
	return message
}

// stateless returns a topic without its state. The documentation does not say whether a topic
// without ingestion has one.
func stateless(topic map[string]any) map[string]any {
	if topic["state"] == "ACTIVE" {
		delete(topic, "state")
	}
	return topic
}

// objects returns the objects of a JSON list.
func objects(list any) (all []map[string]any) {
	items, _ := list.([]any)
	for _, item := range items {
		object, _ := item.(map[string]any)
		all = append(all, object)
	}
	return all
}

// ackIDsOf returns the ack ids of a response to pull.
func ackIDsOf(answer map[string]any) (ids []string) {
	for _, m := range objects(answer["receivedMessages"]) {
		ids = append(ids, fmt.Sprint(m["ackId"]))
	}
	return ids
}

// snakeCase converts a name such as maxMessages to max_messages.
func snakeCase(name string) string {
	var b strings.Builder
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// addressOf returns host and port of the JSON API, which gRPC shares.
func addressOf(t *testing.T, e *Env) string {
	t.Helper()
	base, err := url.Parse(e.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	return base.Host
}

// dialAndSend opens a connection and writes each part in a packet of its own.
func dialAndSend(t *testing.T, address string, parts ...string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if _, err := io.WriteString(conn, part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // otherwise one packet would carry several parts
	}
	return conn
}
