package conformance

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/emptypb"
)

// rest are the cases of section N. Those about gcloud send the recorded
// requests of gcloud, so it need not be installed.
var rest = []Case{
	{
		ID:       "N1",
		Sentence: "StreamingPull has no HTTP path: 404.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			sub := e.Subscription(t, e.Topic(t))
			code, body := restCall(t, e, http.MethodPost, sub+":streamingPull", `{}`)
			if code != http.StatusNotFound {
				t.Errorf("got %d %v, want 404", code, body)
			}
			wantOK(t, e, http.MethodGet, sub, "") // the resource exists, but not the path
		},
	},
	{
		ID:       "N2",
		Sentence: `Errors are {"error": {"code": …, "message": …, "status": …, "details": […]}}.`,
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			for _, test := range []struct {
				name, method, path, body string
				code                     int
				status                   string
			}{
				{"server", http.MethodGet, e.Name("topics"), "", http.StatusNotFound, "NOT_FOUND"},
				{"transcoder", http.MethodPut, e.Name("topics"), `{"nope": 1}`, http.StatusBadRequest, "INVALID_ARGUMENT"},
				{"no JSON", http.MethodPut, e.Name("topics"), `{`, http.StatusBadRequest, "INVALID_ARGUMENT"},
			} {
				t.Run(test.name, func(t *testing.T) {
					code, body := restCall(t, e, test.method, test.path, test.body)
					fault, _ := body["error"].(map[string]any)
					message, _ := fault["message"].(string)
					if message == "" {
						t.Errorf("got %v, want error.message", body)
					}
					want := []any{test.code, 1, float64(test.code), test.status}
					if diff := cmp.Diff(want, []any{code, len(body), fault["code"], fault["status"]}); diff != "" {
						t.Errorf("HTTP code, fields beside error, error.code, error.status (-want +got):\n%s", diff)
					}
				})
			}
			t.Run("details", func(t *testing.T) {
				topic := e.Topic(t)
				sub := e.Subscription(t, topic, ExactlyOnce)
				e.Publish(t, topic, "", "m")
				m := oneDelivery(t, e, sub)
				e.Nack(t, sub, m)
				_, body := restCall(t, e, http.MethodPost, sub+":acknowledge", `{"ackIds": ["`+m.GetAckId()+`"]}`)
				fault, _ := body["error"].(map[string]any)
				want := []any{map[string]any{
					"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "EXACTLY_ONCE_ACKID_FAILURE", "domain": "pubsub.googleapis.com",
					"metadata": map[string]any{m.GetAckId(): "PERMANENT_FAILURE_INVALID_ACK_ID"},
				}}
				if diff := cmp.Diff(any(want), fault["details"]); diff != "" {
					t.Errorf("error.details (-want +got):\n%s", diff)
				}
			})
		},
	},
	{
		ID:       "N3",
		Sentence: "The HTTP codes of errors are those of Google's APIs: 400, 404, 409, 429, 501.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			// OUT_OF_RANGE, UNAVAILABLE, DEADLINE_EXCEEDED and CANCELED need
			// faults, so they are not here.
			topic := e.Topic(t)
			detached := e.Subscription(t, topic)
			wantOK(t, e, http.MethodPost, detached+":detach", "")
			full, _ := fullSchema(t, e)
			for _, test := range []struct {
				method, path, body string
				code               int
				status             string
			}{
				{http.MethodPost, topic + ":publish", `{}`, http.StatusBadRequest, "INVALID_ARGUMENT"},
				{http.MethodPost, detached + ":pull", `{"maxMessages": 1}`, http.StatusBadRequest, "FAILED_PRECONDITION"},
				{http.MethodDelete, e.Name("subscriptions"), "", http.StatusNotFound, "NOT_FOUND"},
				{http.MethodPut, topic, `{}`, http.StatusConflict, "ALREADY_EXISTS"},
				{
					http.MethodPost, full + ":commit", `{"schema": {"type": "PROTOCOL_BUFFER", "definition": ` + strconv.Quote(filmRevision(21)) + `}}`,
					http.StatusTooManyRequests, "RESOURCE_EXHAUSTED",
				},
				{
					http.MethodPut, e.Name("subscriptions"), `{"topic": "` + topic + `", "bigqueryConfig": {"table": "p.d.t"}}`,
					http.StatusNotImplemented, "UNIMPLEMENTED",
				},
			} {
				t.Run(test.status, func(t *testing.T) { wantFault(t, e, test.method, test.path, test.body, test.code, test.status) })
			}
		},
	},
	{
		ID:       "N4",
		Sentence: "The query parameters alt, $alt, prettyPrint, fields, key and quotaUser are accepted and ignored.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			for _, query := range []string{
				"alt=json", "$alt=json;enum-encoding=int", "%24alt=json%3Benum-encoding%3Dint", "prettyPrint=true", "prettyPrint=false",
				"fields=labels", "key=a-key", "quotaUser=somebody",
				"alt=json&prettyPrint=true&fields=name&key=k&quotaUser=q",
			} {
				t.Run(query, func(t *testing.T) {
					topic, sub := e.Name("topics"), e.Name("subscriptions")
					want := map[string]any{"name": topic}
					if diff := cmp.Diff(want, stateless(wantOK(t, e, http.MethodPut, topic+"?"+query, `{}`))); diff != "" {
						t.Errorf("PUT (-want +got):\n%s", diff)
					}
					if diff := cmp.Diff(want, stateless(wantOK(t, e, http.MethodGet, topic+"?"+query, ""))); diff != "" {
						t.Errorf("GET (-want +got):\n%s", diff)
					}
					wantOK(t, e, http.MethodPut, sub+"?"+query, `{"topic": "`+topic+`"}`)
					published := wantOK(t, e, http.MethodPost, topic+":publish?"+query, `{"messages": [{"data": "bQ=="}]}`)
					if ids, _ := published["messageIds"].([]any); len(ids) != 1 {
						t.Errorf("publish: got %v, want one id", published)
					}
					wantOK(t, e, http.MethodDelete, topic+"?"+query, "")
				})
			}
			t.Run("generated client", func(t *testing.T) {
				client, err := vkit.NewTopicAdminRESTClient(t.Context(), option.WithEndpoint(e.HTTP), option.WithoutAuthentication())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				name := e.Name("topics")
				got, err := client.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name, Labels: map[string]string{"a": "1"}})
				if err != nil || got.GetName() != name || got.GetLabels()["a"] != "1" {
					t.Errorf("CreateTopic: got %v, %v, want %q with its label", got, err, name)
				}
				_, err = client.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: e.Name("topics")})
				WantCode(t, err, codes.NotFound)
			})
		},
	},
	{
		ID: "N5",
		Sentence: "Responses are proto3 JSON: camelCase, base64, durations in seconds, times in RFC 3339 UTC, unset fields left out, " +
			"{} for an empty response; requests may use snake_case.",
		HTTP: true,
		Run:  provePaths,
	},
	{
		ID:       "N6",
		Sentence: "updateMask is one comma-joined string of camelCase names and means the same as the snake_case paths of gRPC.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			topic, dead := e.Topic(t), e.Topic(t)
			sub := e.Subscription(t, topic, func(s *pubsubpb.Subscription) { s.Labels = map[string]string{"a": "1"} })
			body := `{"subscription": {"ackDeadlineSeconds": 33, "labels": {"b": "2"},
				"deadLetterPolicy": {"deadLetterTopic": "` + dead + `", "maxDeliveryAttempts": 7}}, "updateMask": "ackDeadlineSeconds,deadLetterPolicy"}`
			wantOK(t, e, http.MethodPatch, sub, body)
			got, err := e.Subs.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: sub})
			if err != nil {
				t.Fatalf("GetSubscription: %v", err)
			}
			want := []any{int32(33), dead, int32(7), map[string]string{"a": "1"}} // the mask has no labels
			policy := got.GetDeadLetterPolicy()
			if diff := cmp.Diff(want, []any{got.GetAckDeadlineSeconds(), policy.GetDeadLetterTopic(), policy.GetMaxDeliveryAttempts(), got.GetLabels()}); diff != "" {
				t.Errorf("subscription (-want +got):\n%s", diff)
			}
			topicBody := `{"topic": {"messageRetentionDuration": "3600s", "labels": {"b": "2"}}, "updateMask": "labels,messageRetentionDuration"}`
			wantTopic := map[string]any{"name": topic, "labels": map[string]any{"b": "2"}, "messageRetentionDuration": "3600s"}
			if diff := cmp.Diff(wantTopic, stateless(wantOK(t, e, http.MethodPatch, topic, topicBody))); diff != "" {
				t.Errorf("topic (-want +got):\n%s", diff)
			}
			snapshot := snapshotOf(t, e, sub)
			updated := wantOK(t, e, http.MethodPatch, snapshot, `{"snapshot": {"labels": {"c": "3"}}, "updateMask": "labels"}`)
			if diff := cmp.Diff(any(map[string]any{"c": "3"}), updated["labels"]); diff != "" {
				t.Errorf("labels of the snapshot (-want +got):\n%s", diff)
			}
			for name, mask := range map[string]string{"empty": "", "unknown": "nope", "immutable": "enableMessageOrdering", "one of two unknown": "labels,nope"} {
				t.Run(name, func(t *testing.T) {
					body := `{"subscription": {"labels": {"d": "4"}}, "updateMask": "` + mask + `"}`
					wantFault(t, e, http.MethodPatch, sub, body, http.StatusBadRequest, "INVALID_ARGUMENT")
				})
			}
		},
	},
	{
		ID:       "N7",
		Sentence: "An unknown JSON field, or one of a wrong type, is 400 INVALID_ARGUMENT and named.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			for _, test := range []struct{ name, method, path, body, field string }{
				{"unknown", http.MethodPut, e.Name("topics"), `{"shade": "red"}`, "shade"},
				{"unknown, nested", http.MethodPost, topic + ":publish", `{"messages": [{"data": "bQ==", "shade": "red"}]}`, "shade"},
				{"unknown, update", http.MethodPatch, topic, `{"topic": {"shade": "red"}, "updateMask": "labels"}`, "shade"},
				{"string for a number", http.MethodPost, sub + ":pull", `{"maxMessages": "many"}`, "maxMessages"},
				{"number for a string", http.MethodPut, e.Name("subscriptions"), `{"topic": 1}`, "topic"},
				{"object for a list", http.MethodPost, topic + ":publish", `{"messages": {"data": "bQ=="}}`, "messages"},
				{"no base64", http.MethodPost, topic + ":publish", `{"messages": [{"data": "?"}]}`, "data"},
			} {
				t.Run(test.name, func(t *testing.T) {
					message := wantFault(t, e, test.method, test.path, test.body, http.StatusBadRequest, "INVALID_ARGUMENT")
					if !strings.Contains(message, test.field) && !strings.Contains(message, snakeCase(test.field)) {
						t.Errorf("got message %q, want it to name %s", message, test.field)
					}
				})
			}
			expectSilence(t, e, sub)
		},
	},
	{
		ID:       "N8",
		Sentence: "The requests of gcloud subscriptions pull work: a pull with X-Server-Timeout, with --auto-ack one acknowledge for all.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			sub := e.Subscription(t, topic)
			pull := func(timeout string) (map[string]any, time.Duration) {
				start := time.Now()
				got := wantOK(t, e, http.MethodPost, sub+":pull?alt=json", `{"maxMessages": 10, "returnImmediately": false}`, "X-Server-Timeout", timeout)
				return got, time.Since(start)
			}
			// Without messages, a pull waits for exactly the time in the
			// header.
			got, took := pull("2")
			if len(got) > 0 || took < time.Second || took > 10*time.Second {
				t.Errorf("without messages: got %v after %v, want {} after 2 s", got, took)
			}
			// A message that is published while the pull waits.
			published := make(chan error, 1)
			go func() {
				time.Sleep(300 * time.Millisecond)
				published <- publishData(t, e, topic, "first")
			}()
			got, took = pull("20")
			if err := <-published; err != nil {
				t.Fatalf("Publish: %v", err)
			}
			ids := ackIDsOf(got)
			if len(ids) != 1 || took > 10*time.Second {
				t.Fatalf("with a message after 0.3 s: got %v after %v, want it at once", got, took)
			}
			e.Publish(t, topic, "", "second", "third")
			for tries := 0; len(ids) < 3 && tries < 3; tries++ {
				got, _ := pull("2")
				ids = append(ids, ackIDsOf(got)...)
			}
			if len(ids) != 3 {
				t.Fatalf("got %d messages, want 3", len(ids))
			}
			body, err := json.Marshal(map[string]any{"ackIds": ids})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]any{}, wantOK(t, e, http.MethodPost, sub+":acknowledge?alt=json", string(body))); diff != "" {
				t.Errorf("acknowledge (-want +got):\n%s", diff)
			}
			// The message must be acknowledged, not only leased: a snapshot
			// does not have it.
			seekToSnapshot(t, e, sub, snapshotOf(t, e, sub))
			expectSilence(t, e, sub)
		},
	},
	{
		ID:       "N9",
		Sentence: "The requests of gcloud subscriptions update work: --clear-labels after a GET, --clear-dead-letter-policy as a mask without value.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			dead := e.Topic(t)
			sub := e.Subscription(t, e.Topic(t), deadLettersTo(dead, 7), func(s *pubsubpb.Subscription) { s.Labels = map[string]string{"a": "1"} })
			before := wantOK(t, e, http.MethodGet, sub+"?alt=json", "")
			if diff := cmp.Diff(any(map[string]any{"a": "1"}), before["labels"]); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			policy := any(map[string]any{"deadLetterTopic": dead, "maxDeliveryAttempts": 7.0})
			got := wantOK(t, e, http.MethodPatch, sub+"?alt=json", `{"subscription": {"labels": {}, "name": "`+sub+`"}, "updateMask": "labels"}`)
			if diff := cmp.Diff([]any{nil, policy}, []any{got["labels"], got["deadLetterPolicy"]}); diff != "" {
				t.Errorf("labels and policy after --clear-labels (-want +got):\n%s", diff)
			}
			got = wantOK(t, e, http.MethodPatch, sub+"?alt=json", `{"subscription": {"name": "`+sub+`"}, "updateMask": "deadLetterPolicy"}`)
			if diff := cmp.Diff(any(nil), got["deadLetterPolicy"]); diff != "" {
				t.Errorf("policy after --clear-dead-letter-policy (-want +got):\n%s", diff)
			}
			want := before
			delete(want, "labels")
			delete(want, "deadLetterPolicy")
			if diff := cmp.Diff(want, wantOK(t, e, http.MethodGet, sub+"?alt=json", "")); diff != "" {
				t.Errorf("subscription at the end (-want +got):\n%s", diff)
			}
		},
	},
	{
		ID:       "N10",
		Sentence: "The requests of gcloud schemas describe and list work: view=FULL, view=BASIC.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			schema := newSchema(t, e, filmV1)
			got := wantOK(t, e, http.MethodGet, schema.GetName()+"?alt=json&view=FULL", "")
			if diff := cmp.Diff([]any{schema.GetName(), filmV1, "PROTOCOL_BUFFER"}, []any{got["name"], got["definition"], got["type"]}); diff != "" {
				t.Errorf("describe (-want +got):\n%s", diff)
			}
			list := wantOK(t, e, http.MethodGet, "projects/"+e.Project+"/schemas?alt=json&pageSize=1000&view=BASIC", "")
			found := false
			for _, item := range objects(list["schemas"]) {
				found = found || item["name"] == schema.GetName()
				if item["definition"] != nil {
					t.Errorf("list: got definition %q, want none", item["definition"])
				}
			}
			if !found {
				t.Errorf("list: got %v, want it to have %q", list, schema.GetName())
			}
		},
	},
	{
		ID:       "N11",
		Sentence: "A missing feature returns 501 only where no other code is possible: gcloud retries 5xx for half a minute.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			ofTopic := func(field string) string { return `{"topic": "` + topic + `", ` + field + `}` }
			for _, test := range []struct{ name, collection, body, field string }{
				{"BigQuery", "subscriptions", ofTopic(`"bigqueryConfig": {"table": "p.d.t"}`), "bigquery"},
				{"Cloud Storage", "subscriptions", ofTopic(`"cloudStorageConfig": {"bucket": "b"}`), "cloud"},
				{"Bigtable", "subscriptions", ofTopic(`"bigtableConfig": {"table": "projects/p/instances/i/tables/t"}`), "bigtable"},
				{"transforms of a subscription", "subscriptions", ofTopic(`"messageTransforms": [{"disabled": true}]`), "transforms"},
				{"transforms of a topic", "topics", `{"messageTransforms": [{"disabled": true}]}`, "transforms"},
				{"ingestion", "topics", `{"ingestionDataSourceSettings": {"awsKinesis": {"streamArn": "x"}}}`, "ingestion"},
				{"tags", "topics", `{"tags": {"123/environment": "test"}}`, "tags"},
			} {
				t.Run(test.name, func(t *testing.T) {
					name := e.Name(test.collection)
					message := wantFault(t, e, http.MethodPut, name, test.body, http.StatusNotImplemented, "UNIMPLEMENTED")
					if !strings.Contains(strings.ToLower(message), test.field) {
						t.Errorf("got message %q, want it to name the field %s", message, test.field)
					}
					wantFault(t, e, http.MethodGet, name, "", http.StatusNotFound, "NOT_FOUND")
				})
			}
			t.Run("what only has no effect", func(t *testing.T) {
				key := "projects/p/locations/global/keyRings/r/cryptoKeys/k"
				stored := wantOK(t, e, http.MethodPut, e.Name("topics"),
					`{"kmsKeyName": "`+key+`", "messageStoragePolicy": {"allowedPersistenceRegions": ["europe-west1"]}}`)
				want := []any{key, map[string]any{"allowedPersistenceRegions": []any{"europe-west1"}}}
				if diff := cmp.Diff(want, []any{stored["kmsKeyName"], stored["messageStoragePolicy"]}); diff != "" {
					t.Errorf("topic (-want +got):\n%s", diff)
				}
				push := e.Name("subscriptions")
				wantOK(t, e, http.MethodPut, push, ofTopic(`"pushConfig": {"pushEndpoint": "https://example.com/push"}`))
				wantOK(t, e, http.MethodPost, push+":modifyPushConfig", `{"pushConfig": {"pushEndpoint": "https://example.com/other"}}`)
				got := wantOK(t, e, http.MethodGet, push, "")
				if diff := cmp.Diff(any(map[string]any{"pushEndpoint": "https://example.com/other"}), got["pushConfig"]); diff != "" {
					t.Errorf("pushConfig (-want +got):\n%s", diff)
				}
			})
			for _, test := range []struct{ name, method, path, body string }{
				{"unknown path", http.MethodGet, "nothing/here", ""},
				{"unknown collection", http.MethodGet, "projects/" + e.Project + "/queues", ""},
				{"unknown verb", http.MethodPost, topic + ":compact", `{}`},
				{"wrong method", http.MethodPost, topic, `{}`},
				{"wrong method of a verb", http.MethodGet, topic + ":publish", ""},
			} {
				t.Run(test.name, func(t *testing.T) {
					if code, body := restCall(t, e, test.method, test.path, test.body); code < 400 || code > 499 {
						t.Errorf("got %d %v, want 4xx", code, body)
					}
				})
			}
		},
	},
	{
		ID:       "N12",
		Sentence: "GET / returns 200 Ok.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			code, body := rawCall(t, http.MethodGet, e.HTTP+"/", "")
			if code != http.StatusOK || strings.TrimSpace(string(body)) != "Ok" {
				t.Errorf("got %d %q, want 200 Ok", code, body)
			}
		},
	},
	{
		ID:       "N13",
		Sentence: "REST comes as HTTP/1.1; a connection that starts with the HTTP/2 preface goes to gRPC, any other to REST, on one port.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			address := addressOf(t, e)
			name := e.Topic(t)
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			// Connections that have sent nothing, or half of a preface, do not
			// block others.
			for _, begin := range []string{"", "P", "PRI * HTTP/2.0\r\n"} {
				dialAndSend(t, address, begin)
			}
			for range 2 {
				got, err := pubsubpb.NewPublisherClient(conn).GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: name})
				if err != nil || got.GetName() != name {
					t.Errorf("gRPC: got %v, %v, want %q", got, err, name)
				}
				if diff := cmp.Diff(map[string]any{"name": name}, stateless(wantOK(t, e, http.MethodGet, name, ""))); diff != "" {
					t.Errorf("REST (-want +got):\n%s", diff)
				}
			}
			for _, test := range []struct {
				name  string
				parts []string
				want  string
			}{
				{"PUT, which begins like the preface", []string{"P", "UT /v1/" + e.Name("topics") + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"}, "HTTP/1.1 200"},
				{"the preface in pieces", []string{"PRI * HTTP/2.0\r\n", "\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"}, "\x00\x00"},
			} {
				t.Run(test.name, func(t *testing.T) {
					raw := dialAndSend(t, address, test.parts...)
					got := make([]byte, len(test.want))
					if _, err := io.ReadFull(raw, got); err != nil || string(got) != test.want {
						t.Errorf("got %q, %v, want %q", got, err, test.want)
					}
				})
			}
		},
	},
	{
		ID:       "N14",
		Sentence: "Unknown gRPC methods are UNIMPLEMENTED; reflection and grpc.health.v1 are served.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			conn, err := grpc.NewClient(addressOf(t, e), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for _, method := range []string{"/google.pubsub.v1.Publisher/Compact", "/google.pubsub.v1beta2.Publisher/Publish", "/google.cloud.pubsublite.v1.AdminService/GetTopic"} {
				WantCode(t, conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{}), codes.Unimplemented)
			}
			health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
				t.Errorf("health: got %v, %v, want SERVING", health, err)
			}
			stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err != nil {
				t.Fatalf("ServerReflectionInfo: %v", err)
			}
			if err := stream.Send(&reflectionpb.ServerReflectionRequest{
				MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
			}); err != nil {
				t.Fatalf("Send: %v", err)
			}
			response, err := stream.Recv()
			if err != nil {
				t.Fatalf("Recv: %v", err)
			}
			var services []string
			for _, s := range response.GetListServicesResponse().GetService() {
				services = append(services, s.GetName())
			}
			for _, want := range []string{"google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber", "google.pubsub.v1.SchemaService"} {
				if !slices.Contains(services, want) {
					t.Errorf("reflection: got %q, want it to have %s", services, want)
				}
			}
		},
	},
	{
		ID:       "N15",
		Sentence: "Credentials and the x-goog headers of clients are accepted unread.",
		HTTP:     true,
		Run: func(t *testing.T, e *Env) {
			topic := e.Topic(t)
			headers := []string{
				"authorization", "Bearer nobody knows this",
				"x-goog-request-params", "topic=projects%2Fanother%2Ftopics%2Fone",
				"x-goog-user-project", "a-project-that-is-not-there",
				"x-goog-pubsub-client-telemetry", "?",
			}
			for i := 0; i < len(headers); i += 2 {
				pair := headers[i : i+2]
				t.Run(pair[0], func(t *testing.T) { proveHeadersUnread(t, e, topic, pair...) })
			}
			t.Run("all", func(t *testing.T) { proveHeadersUnread(t, e, topic, headers...) })
		},
	},
}
