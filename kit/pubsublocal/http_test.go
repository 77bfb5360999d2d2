package pubsublocal

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// standIn is a gRPC server that records the last request, and returns a given response.
type standIn struct {
	method   string
	request  proto.Message
	metadata metadata.MD
	deadline bool

	answer proto.Message // response; nil: an empty message of the method's type
	err    error
}

// handle is an interceptor. It calls no method.
func (s *standIn) handle(ctx context.Context, request any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	s.method = info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	s.request, _ = request.(proto.Message)
	s.metadata, _ = metadata.FromIncomingContext(ctx)
	_, s.deadline = ctx.Deadline()
	if s.err != nil {
		return nil, s.err
	}
	if s.answer == nil {
		return &emptypb.Empty{}, nil // all empty messages have the same encoding
	}
	return s.answer, nil
}

// httpStandIn starts the JSON API in front of a standIn.
func httpStandIn(t *testing.T) (*standIn, string) {
	t.Helper()
	s := &standIn{}
	server := grpc.NewServer(grpc.UnaryInterceptor(s.handle), grpc.MaxRecvMsgSize(11<<20))
	pubsubpb.RegisterPublisherServer(server, pubsubpb.UnimplementedPublisherServer{})
	pubsubpb.RegisterSubscriberServer(server, pubsubpb.UnimplementedSubscriberServer{})
	pubsubpb.RegisterSchemaServiceServer(server, pubsubpb.UnimplementedSchemaServiceServer{})
	handler, err := newHTTPHandler(server)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(handler)
	t.Cleanup(func() {
		ts.Close()
		server.Stop()
	})
	return s, ts.URL
}

// call sends a request, and returns the status and the body of the response.
func call(t *testing.T, method, url, body string, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		r.Body = http.NoBody
	}
	maps.Copy(r.Header, header)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// Every path of section N, in each form of a request, calls the right method.
func TestHTTPRequests(t *testing.T) {
	const (
		topic        = "projects/p/topics/topic-a"
		subscription = "projects/p/subscriptions/sub-a"
		snapshot     = "projects/p/snapshots/snap-a"
		schema       = "projects/p/schemas/schema-a"
	)
	tests := []struct {
		name, request, body string
		want                proto.Message
	}{
		{"create topic", "PUT /v1/" + topic, `{"labels":{"a":"b"}}`, &pubsubpb.Topic{Name: topic, Labels: map[string]string{"a": "b"}}},
		{"the path beats the name in the body", "PUT /v1/" + topic, `{"name":"other"}`, &pubsubpb.Topic{Name: topic}},
		{"create topic without body", "PUT /v1/" + topic, "", &pubsubpb.Topic{Name: topic}},
		{"N5: create subscription in camelCase", "PUT /v1/" + subscription,
			`{"topic":"` + topic + `","ackDeadlineSeconds":20,"messageRetentionDuration":"604800s"}`,
			&pubsubpb.Subscription{
				Name: subscription, Topic: topic, AckDeadlineSeconds: 20,
				MessageRetentionDuration: durationpb.New(7 * 24 * time.Hour),
			}},
		{"N5: and in snake_case", "PUT /v1/" + subscription, `{"topic":"` + topic + `","ack_deadline_seconds":20}`,
			&pubsubpb.Subscription{Name: subscription, Topic: topic, AckDeadlineSeconds: 20}},
		{"create snapshot", "PUT /v1/" + snapshot, `{"subscription":"` + subscription + `"}`,
			&pubsubpb.CreateSnapshotRequest{Name: snapshot, Subscription: subscription}},
		{"N6: update topic", "PATCH /v1/" + topic, `{"topic":{"name":"` + topic + `"},"updateMask":"labels,messageRetentionDuration"}`,
			&pubsubpb.UpdateTopicRequest{
				Topic: &pubsubpb.Topic{Name: topic}, UpdateMask: pathMask("labels", "message_retention_duration"),
			}},
		{"N6, N9: update subscription", "PATCH /v1/" + subscription,
			`{"subscription":{"ackDeadlineSeconds":20},"updateMask":"ackDeadlineSeconds,deadLetterPolicy"}`,
			&pubsubpb.UpdateSubscriptionRequest{
				Subscription: &pubsubpb.Subscription{Name: subscription, AckDeadlineSeconds: 20},
				UpdateMask:   pathMask("ack_deadline_seconds", "dead_letter_policy"),
			}},
		{"update snapshot", "PATCH /v1/" + snapshot, `{"snapshot":{},"updateMask":"labels"}`,
			&pubsubpb.UpdateSnapshotRequest{Snapshot: &pubsubpb.Snapshot{Name: snapshot}, UpdateMask: pathMask("labels")}},
		{"get topic", "GET /v1/" + topic, "", &pubsubpb.GetTopicRequest{Topic: topic}},
		{"get subscription", "GET /v1/" + subscription, "", &pubsubpb.GetSubscriptionRequest{Subscription: subscription}},
		{"get snapshot", "GET /v1/" + snapshot, "", &pubsubpb.GetSnapshotRequest{Snapshot: snapshot}},
		{"N10: get schema", "GET /v1/" + schema + "?view=FULL", "", &pubsubpb.GetSchemaRequest{Name: schema, View: pubsubpb.SchemaView_FULL}},
		{"get a revision", "GET /v1/" + schema + "@0123abcd", "", &pubsubpb.GetSchemaRequest{Name: schema + "@0123abcd"}},
		{"an escaped name", "GET /v1/projects/p/topics/a%2Bb%25c", "", &pubsubpb.GetTopicRequest{Topic: "projects/p/topics/a+b%c"}},
		{"delete topic", "DELETE /v1/" + topic, "", &pubsubpb.DeleteTopicRequest{Topic: topic}},
		{"delete subscription", "DELETE /v1/" + subscription, "", &pubsubpb.DeleteSubscriptionRequest{Subscription: subscription}},
		{"delete snapshot", "DELETE /v1/" + snapshot, "", &pubsubpb.DeleteSnapshotRequest{Snapshot: snapshot}},
		{"delete schema", "DELETE /v1/" + schema, "", &pubsubpb.DeleteSchemaRequest{Name: schema}},
		{"list topics", "GET /v1/projects/p/topics?pageSize=5&page_token=x", "",
			&pubsubpb.ListTopicsRequest{Project: "projects/p", PageSize: 5, PageToken: "x"}},
		{"list subscriptions", "GET /v1/projects/p/subscriptions", "", &pubsubpb.ListSubscriptionsRequest{Project: "projects/p"}},
		{"list snapshots", "GET /v1/projects/p/snapshots", "", &pubsubpb.ListSnapshotsRequest{Project: "projects/p"}},
		{"N10: list schemas", "GET /v1/projects/p/schemas?view=BASIC", "",
			&pubsubpb.ListSchemasRequest{Parent: "projects/p", View: pubsubpb.SchemaView_BASIC}},
		{"list subscriptions of a topic", "GET /v1/" + topic + "/subscriptions", "", &pubsubpb.ListTopicSubscriptionsRequest{Topic: topic}},
		{"list snapshots of a topic", "GET /v1/" + topic + "/snapshots", "", &pubsubpb.ListTopicSnapshotsRequest{Topic: topic}},
		{"publish", "POST /v1/" + topic + ":publish", `{"messages":[{"data":"aGk=","attributes":{"k":"v"},"orderingKey":"o"}]}`,
			&pubsubpb.PublishRequest{Topic: topic, Messages: []*pubsubpb.PubsubMessage{
				{Data: []byte("hi"), Attributes: map[string]string{"k": "v"}, OrderingKey: "o"},
			}}},
		{"N8: pull", "POST /v1/" + subscription + ":pull", `{"maxMessages":3,"returnImmediately":false}`,
			&pubsubpb.PullRequest{Subscription: subscription, MaxMessages: 3}},
		{"acknowledge", "POST /v1/" + subscription + ":acknowledge", `{"ackIds":["a","b"]}`,
			&pubsubpb.AcknowledgeRequest{Subscription: subscription, AckIds: []string{"a", "b"}}},
		{"modify ack deadline", "POST /v1/" + subscription + ":modifyAckDeadline", `{"ackIds":["a"],"ackDeadlineSeconds":15}`,
			&pubsubpb.ModifyAckDeadlineRequest{Subscription: subscription, AckIds: []string{"a"}, AckDeadlineSeconds: 15}},
		{"modify push config", "POST /v1/" + subscription + ":modifyPushConfig", `{"pushConfig":{"pushEndpoint":"https://x"}}`,
			&pubsubpb.ModifyPushConfigRequest{Subscription: subscription, PushConfig: &pubsubpb.PushConfig{PushEndpoint: "https://x"}}},
		{"seek", "POST /v1/" + subscription + ":seek", `{"time":"2026-01-02T03:04:05Z"}`,
			&pubsubpb.SeekRequest{Subscription: subscription, Target: &pubsubpb.SeekRequest_Time{
				Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			}}},
		{"detach", "POST /v1/" + subscription + ":detach", "", &pubsubpb.DetachSubscriptionRequest{Subscription: subscription}},
		{"detach with an empty object", "POST /v1/" + subscription + ":detach", " {} ",
			&pubsubpb.DetachSubscriptionRequest{Subscription: subscription}},
		{"create schema", "POST /v1/projects/p/schemas?schemaId=schema-a", `{"type":"PROTOCOL_BUFFER","definition":"x"}`,
			&pubsubpb.CreateSchemaRequest{
				Parent: "projects/p", SchemaId: "schema-a", Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: "x"},
			}},
		{"commit", "POST /v1/" + schema + ":commit", `{"schema":{"definition":"x"}}`,
			&pubsubpb.CommitSchemaRequest{Name: schema, Schema: &pubsubpb.Schema{Definition: "x"}}},
		{"rollback", "POST /v1/" + schema + ":rollback", `{"revisionId":"0123abcd"}`,
			&pubsubpb.RollbackSchemaRequest{Name: schema, RevisionId: "0123abcd"}},
		{"list revisions", "GET /v1/" + schema + ":listRevisions", "", &pubsubpb.ListSchemaRevisionsRequest{Name: schema}},
		{"delete a revision", "DELETE /v1/" + schema + "@0123abcd:deleteRevision", "",
			&pubsubpb.DeleteSchemaRevisionRequest{Name: schema + "@0123abcd"}},
		{"validate schema", "POST /v1/projects/p/schemas:validate", `{"schema":{"type":"AVRO"}}`,
			&pubsubpb.ValidateSchemaRequest{Parent: "projects/p", Schema: &pubsubpb.Schema{Type: pubsubpb.Schema_AVRO}}},
		{"validate message", "POST /v1/projects/p/schemas:validateMessage", `{"name":"` + schema + `","message":"aGk=","encoding":"JSON"}`,
			&pubsubpb.ValidateMessageRequest{
				Parent: "projects/p", SchemaSpec: &pubsubpb.ValidateMessageRequest_Name{Name: schema},
				Message: []byte("hi"), Encoding: pubsubpb.Encoding_JSON,
			}},
		{"N4: parameters that are no fields", "GET /v1/" + topic + "?alt=json&prettyPrint=true&fields=name&key=k&quotaUser=q&access_token=t", "",
			&pubsubpb.GetTopicRequest{Topic: topic}},
		{"N4: those of generated clients", "GET /v1/" + topic + "?%24alt=json%3Benum-encoding%3Dint", "",
			&pubsubpb.GetTopicRequest{Topic: topic}},
		{"N4: the same, not escaped", "GET /v1/" + topic + "?$alt=json;enum-encoding=int", "", &pubsubpb.GetTopicRequest{Topic: topic}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, url := httpStandIn(t)
			method, path, _ := strings.Cut(tt.request, " ")
			code, body := call(t, method, url+path, tt.body, nil)
			if code != http.StatusOK {
				t.Fatalf("%s = %d %s, want 200", tt.request, code, body)
			}
			if diff := cmp.Diff(tt.want, s.request, protocmp.Transform()); diff != "" {
				t.Errorf("%s: request (-want +got):\n%s", tt.request, diff)
			}
			if got := strings.TrimSpace(body); got != "{}" {
				t.Errorf("%s: body = %q, want {} for an empty answer", tt.request, got)
			}
		})
	}
}

func pathMask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

// N5: a response is proto3 JSON without unset fields.
func TestHTTPAnswer(t *testing.T) {
	s, url := httpStandIn(t)
	s.answer = &pubsubpb.PullResponse{ReceivedMessages: []*pubsubpb.ReceivedMessage{{
		AckId: "a",
		Message: &pubsubpb.PubsubMessage{
			Data: []byte("hi>"), MessageId: "17", PublishTime: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)),
		},
	}}}
	code, body := call(t, http.MethodPost, url+"/v1/projects/p/subscriptions/s:pull", `{"maxMessages":1}`, nil)
	want := `{"receivedMessages":[{"ackId":"a","message":{"data":"aGk+","messageId":"17","publishTime":"2026-01-02T03:04:05.678Z"}}]}`
	var got bytes.Buffer
	if err := json.Compact(&got, []byte(body)); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" || code != http.StatusOK {
		t.Errorf("code = %d, body (-want +got):\n%s", code, diff)
	}
}

// errorBody is an error in the form of N2.
type errorBody struct {
	Error struct {
		Code    int              `json:"code"`
		Message string           `json:"message"`
		Status  string           `json:"status"`
		Details []map[string]any `json:"details"`
	} `json:"error"`
}

func parseError(t *testing.T, body string) errorBody {
	t.Helper()
	var parsed errorBody
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&parsed); err != nil {
		t.Fatalf("error body %q: %v", body, err)
	}
	return parsed
}

// N2, N3: an error has the HTTP status of its code, the name of the code, its text and its details.
func TestHTTPErrors(t *testing.T) {
	tests := []struct {
		code   codes.Code
		want   int
		status string
	}{
		{codes.InvalidArgument, 400, "INVALID_ARGUMENT"},
		{codes.FailedPrecondition, 400, "FAILED_PRECONDITION"},
		{codes.OutOfRange, 400, "OUT_OF_RANGE"},
		{codes.Unauthenticated, 401, "UNAUTHENTICATED"},
		{codes.PermissionDenied, 403, "PERMISSION_DENIED"},
		{codes.NotFound, 404, "NOT_FOUND"},
		{codes.AlreadyExists, 409, "ALREADY_EXISTS"},
		{codes.Aborted, 409, "ABORTED"},
		{codes.ResourceExhausted, 429, "RESOURCE_EXHAUSTED"},
		{codes.Canceled, 499, "CANCELLED"},
		{codes.Internal, 500, "INTERNAL"},
		{codes.Unknown, 500, "UNKNOWN"},
		{codes.DataLoss, 500, "DATA_LOSS"},
		{codes.Unimplemented, 501, "UNIMPLEMENTED"},
		{codes.Unavailable, 503, "UNAVAILABLE"},
		{codes.DeadlineExceeded, 504, "DEADLINE_EXCEEDED"},
	}
	s, url := httpStandIn(t)
	for _, tt := range tests {
		t.Run(tt.status, func(t *testing.T) {
			s.err = status.Error(tt.code, `it "broke" <here>`)
			code, body := call(t, http.MethodGet, url+"/v1/projects/p/topics/topic-a", "", nil)
			got := parseError(t, body)
			var want errorBody
			want.Error.Code, want.Error.Message, want.Error.Status = tt.want, `it "broke" <here>`, tt.status
			if diff := cmp.Diff(want, got); diff != "" || code != tt.want {
				t.Errorf("code = %d, body (-want +got):\n%s", code, diff)
			}
		})
	}
}

// J4 over HTTP: the metadata of an exactly-once failure is in the details.
func TestHTTPErrorDetails(t *testing.T) {
	s, url := httpStandIn(t)
	st, err := status.New(codes.InvalidArgument, "some ids").WithDetails(&errdetails.ErrorInfo{
		Reason: "EXACTLY_ONCE_ACKID_FAILURE", Domain: "pubsub.googleapis.com",
		Metadata: map[string]string{"id": "PERMANENT_FAILURE_INVALID_ACK_ID"},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.err = st.Err()
	_, body := call(t, http.MethodPost, url+"/v1/projects/p/subscriptions/s:acknowledge", `{"ackIds":["id"]}`, nil)
	want := []map[string]any{{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "EXACTLY_ONCE_ACKID_FAILURE",
		"domain": "pubsub.googleapis.com", "metadata": map[string]any{"id": "PERMANENT_FAILURE_INVALID_ACK_ID"},
	}}
	if diff := cmp.Diff(want, parseError(t, body).Error.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}

// N1, N7: an invalid request is refused. The text has the path or the field, and no method is
// called.
func TestHTTPRefuses(t *testing.T) {
	const topic, subscription = "/v1/projects/p/topics/topic-a", "/v1/projects/p/subscriptions/sub-a"
	tests := []struct {
		name, request, body string
		status, text        string
	}{
		{"N1: StreamingPull", "POST " + subscription + ":streamingPull", "{}", "NOT_FOUND", "streamingPull"},
		{"N1: StreamingPull by its gRPC name", "POST /google.pubsub.v1.Subscriber/StreamingPull", "{}", "NOT_FOUND", "StreamingPull"},
		{"a unary method by its gRPC name", "POST /google.pubsub.v1.Publisher/GetTopic", "{}", "NOT_FOUND", "GetTopic"},
		{"an unknown collection", "GET /v1/projects/p/queues/q", "", "NOT_FOUND", "/v1/projects/p/queues/q"},
		{"an unknown version", "GET /v2/projects/p/topics/t", "", "NOT_FOUND", "/v2/projects/p/topics/t"},
		{"another HTTP method", "POST " + topic, "{}", "NOT_FOUND", "POST " + topic},
		{"N7: an unknown field", "PUT " + subscription, `{"topic":"t","ackDeadline":5}`, "INVALID_ARGUMENT", `"ackDeadline"`},
		{"N7: an unknown field deep in", "POST " + topic + ":publish", `{"messages":[{"key":"x"}]}`, "INVALID_ARGUMENT", `"key"`},
		{"N7: a wrong type", "PUT " + subscription, `{"ackDeadlineSeconds":"soon"}`, "INVALID_ARGUMENT", "ackDeadlineSeconds"},
		{"N7: no base64", "POST " + topic + ":publish", `{"messages":[{"data":"!"}]}`, "INVALID_ARGUMENT", "data"},
		{"N7: in a body that is one field", "POST /v1/projects/p/schemas?schemaId=s", `{"kind":"x"}`, "INVALID_ARGUMENT", `"kind"`},
		{"no JSON", "PUT " + topic, `{`, "INVALID_ARGUMENT", "JSON"},
		{"a body where none belongs", "POST " + subscription + ":detach", `{"subscription":"x"}`, "INVALID_ARGUMENT", "body"},
		{"an unknown parameter", "GET /v1/projects/p/topics?size=5", "", "INVALID_ARGUMENT", "size"},
		{"a parameter of the wrong type", "GET /v1/projects/p/topics?pageSize=many", "", "INVALID_ARGUMENT", "page_size"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, url := httpStandIn(t)
			method, path, _ := strings.Cut(tt.request, " ")
			code, body := call(t, method, url+path, tt.body, nil)
			got := parseError(t, body).Error
			if got.Status != tt.status || got.Code != code || !strings.Contains(got.Message, tt.text) {
				t.Errorf("%s = %d %s, want %s with %q in its message", tt.request, code, body, tt.status, tt.text)
			}
			if strings.Contains(got.Message, "proto:") {
				t.Errorf("message = %q, which shows our library", got.Message)
			}
			if s.method != "" {
				t.Errorf("%s was called", s.method)
			}
		})
	}
}

// N8: the header becomes metadata for Pull. It is not the deadline of the call, which would end
// before the response.
func TestHTTPServerTimeout(t *testing.T) {
	s, url := httpStandIn(t)
	path := url + "/v1/projects/p/subscriptions/s:pull"
	code, body := call(t, http.MethodPost, path, `{"maxMessages":1}`, http.Header{"X-Server-Timeout": {"20"}})
	if code != http.StatusOK {
		t.Fatalf("code = %d %s, want 200", code, body)
	}
	if diff := cmp.Diff([]string{"20"}, s.metadata.Get("x-server-timeout")); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if s.deadline {
		t.Error("the call has a deadline, want none")
	}
	code, body = call(t, http.MethodPost, path, `{"maxMessages":1}`, http.Header{"X-Server-Timeout": {"soon"}})
	if got := parseError(t, body).Error; code != http.StatusBadRequest || !strings.Contains(got.Message, "X-Server-Timeout") {
		t.Errorf("with a bad header: %d %q, want 400 naming it", code, got.Message)
	}
}

// N15 and the headers of curl: no header makes a request fail.
func TestHTTPTakesAnyHeader(t *testing.T) {
	s, url := httpStandIn(t)
	for _, header := range []http.Header{
		{"Authorization": {"Bearer x"}, "X-Goog-User-Project": {"q"}, "X-Goog-Request-Params": {"a=b"}, "X-Goog-Pubsub-Client-Telemetry": {"t"}},
		{"Content-Type": {"application/x-www-form-urlencoded"}},
		{"Content-Type": {"application/json; charset=UTF-8"}, "Accept-Encoding": {"gzip, deflate"}},
		{"Content-Type": {"application/grpc-web"}, "Connect-Protocol-Version": {"1"}},
	} {
		s.method = ""
		code, body := call(t, http.MethodPut, url+"/v1/projects/p/topics/topic-a", `{"labels":{"a":"b"}}`, header)
		if code != http.StatusOK || s.method != "CreateTopic" {
			t.Errorf("%v: %d %s and method %q, want 200 and CreateTopic", header, code, body, s.method)
		}
	}
}

// B3, B4 over HTTP: the largest request is accepted in base64. A larger one is INVALID_ARGUMENT.
func TestHTTPBodySize(t *testing.T) {
	s, url := httpStandIn(t)
	publish := func(size int) (int, string) {
		data := base64.StdEncoding.EncodeToString(make([]byte, size))
		return call(t, http.MethodPost, url+"/v1/projects/p/topics/topic-a:publish", fmt.Sprintf(`{"messages":[{"data":%q}]}`, data), nil)
	}
	if code, body := publish(10_485_000); code != http.StatusOK {
		t.Errorf("10 MiB of data: %d %.200s, want 200", code, body)
	}
	s.method = ""
	code, body := publish(12 << 20)
	got := parseError(t, body).Error
	if code != http.StatusBadRequest || got.Message != "Request payload size exceeds the limit: 10485760 bytes." || s.method != "" {
		t.Errorf("12 MiB of data: %d %.200s and method %q, want 400 with the text of the service", code, body, s.method)
	}
}

// B23 over HTTP: a compressed body is accepted.
func TestHTTPGzip(t *testing.T) {
	s, url := httpStandIn(t)
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = z.Write([]byte(`{"labels":{"a":"b"}}`))
	_ = z.Close()
	path := url + "/v1/projects/p/topics/topic-a"
	if code, answer := call(t, http.MethodPut, path, body.String(), http.Header{"Content-Encoding": {"gzip"}}); code != http.StatusOK {
		t.Fatalf("code = %d %s, want 200", code, answer)
	}
	want := &pubsubpb.Topic{Name: "projects/p/topics/topic-a", Labels: map[string]string{"a": "b"}}
	if diff := cmp.Diff(want, s.request, protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if code, answer := call(t, http.MethodPut, path, `{}`, http.Header{"Content-Encoding": {"gzip"}}); code != http.StatusBadRequest {
		t.Errorf("a body that is not gzip: %d %s, want 400", code, answer)
	}
}

// N12: readiness probes use the path /.
func TestHTTPRoot(t *testing.T) {
	_, url := httpStandIn(t)
	if code, body := call(t, http.MethodGet, url+"/", "", nil); code != http.StatusOK || strings.TrimSpace(body) != "Ok" {
		t.Errorf("GET / = %d %q, want 200 Ok", code, body)
	}
}

// F7: when the caller disconnects, the call ends.
func TestHTTPHangUp(t *testing.T) {
	called, ended := make(chan struct{}), make(chan struct{})
	wait := func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		close(called)
		<-ctx.Done()
		close(ended)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(wait))
	pubsubpb.RegisterPublisherServer(server, pubsubpb.UnimplementedPublisherServer{})
	pubsubpb.RegisterSubscriberServer(server, pubsubpb.UnimplementedSubscriberServer{})
	handler, err := newHTTPHandler(server)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(handler)
	defer ts.Close()
	defer server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	path := ts.URL + "/v1/projects/p/subscriptions/s:pull"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(`{"maxMessages":1}`))
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		response, err := http.DefaultClient.Do(r)
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	<-called
	cancel()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the call goes on 10 s after its caller has gone")
	}
	if err := <-answered; err == nil {
		t.Error("Do = nil, want an error")
	}
}

// The library of generated REST clients can read a response.
func TestHTTPAnswerIsProtoJSON(t *testing.T) {
	s, url := httpStandIn(t)
	want := &pubsubpb.Schema{Name: "projects/p/schemas/s", Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: "x", RevisionId: "0123abcd"}
	s.answer = want
	_, body := call(t, http.MethodGet, url+"/v1/projects/p/schemas/s?%24alt=json%3Benum-encoding%3Dint", "", nil)
	got := &pubsubpb.Schema{}
	if err := protojson.Unmarshal([]byte(body), got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}
