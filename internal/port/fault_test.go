package port

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/bufbuild/protocompile"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/aip"
)

// everyType is a message with a field of every type.
const everyType = `syntax = "proto3";
package every.v1;
import "buf/validate/validate.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Color { COLOR_UNSPECIFIED = 0; COLOR_RED = 1; }
message Every {
  int32 page_size = 1 [(buf.validate.field).int32.gte = 0];
  int32 any_size = 2;
  sint64 big_size = 3 [(buf.validate.field).sint64 = {gt: -10, lt: 10}];
  uint32 small_count = 4;
  fixed64 big_count = 5 [(buf.validate.field).fixed64.lte = 1000];
  bool is_open = 6;
  Color color = 7;
  string title = 8;
  bytes raw = 9;
  double rate = 10;
  google.protobuf.Timestamp due_time = 11;
  google.protobuf.Duration max_wait = 12;
  google.protobuf.FieldMask read_mask = 13;
  google.protobuf.Int32Value some_size = 14;
  google.protobuf.BoolValue some_flag = 15;
  google.protobuf.Struct attributes = 16;
  repeated int32 sizes = 17 [(buf.validate.field).repeated.items.int32.gte = 1];
  map<string, int32> stocks = 18;
  Every inner = 19;
  repeated Every inners = 20;
  oneof choice { string by_name = 21; int32 by_number = 22; }
}`

func everyMessage(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	linkedIn := protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		if path == "every.proto" {
			return protocompile.SearchResult{Source: strings.NewReader(everyType)}, nil
		}
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		return protocompile.SearchResult{Desc: file}, err
	})
	files, err := (&protocompile.Compiler{Resolver: linkedIn}).Compile(t.Context(), "every.proto")
	if err != nil {
		t.Fatal(err)
	}
	text, err := proto.Marshal(protodesc.ToFileDescriptorProto(files[0]))
	if err != nil {
		t.Fatal(err)
	}
	var made descriptorpb.FileDescriptorProto // whose options have the types of Go
	if err := proto.Unmarshal(text, &made); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(&made, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().ByName("Every")
}

const (
	wholeNumber = "must be a whole number from "
	anyInt32    = wholeNumber + "-2147483648 to 2147483647"
)

// A parameter of the wrong type is refused by its name and its rule.
func TestQueryNamesFieldAndRule(t *testing.T) {
	t.Parallel()
	every := everyMessage(t)
	taken := utilities.NewDoubleArray([][]string{{"title"}})
	for query, want := range map[string]string{
		"pageSize=abc":                  "pageSize: " + wholeNumber + "0 to 2147483647",
		"page_size=99999999999999":      "pageSize: " + wholeNumber + "0 to 2147483647",
		"pageSize=":                     "pageSize: " + wholeNumber + "0 to 2147483647",
		"anySize=1.5":                   "anySize: " + anyInt32,
		"bigSize=x":                     "bigSize: " + wholeNumber + "-9 to 9",
		"smallCount=-1":                 "smallCount: " + wholeNumber + "0 to 4294967295",
		"bigCount=x":                    "bigCount: " + wholeNumber + "0 to 1000",
		"isOpen=maybe":                  "isOpen: must be true or false",
		"isOpen=1":                      "isOpen: must be true or false",
		"color=COLOR_BLUE":              "color: must be one of COLOR_UNSPECIFIED, COLOR_RED",
		"raw=%2A":                       "raw: must be a string in base64",
		"rate=much":                     "rate: must be a number",
		"dueTime=today":                 "dueTime: must be a time such as 2026-01-31T12:00:00Z",
		"maxWait=1h":                    "maxWait: must be a duration in seconds such as 1.5s",
		"someSize=x":                    "someSize: " + anyInt32,
		"someFlag=x":                    "someFlag: must be true or false",
		"attributes=x":                  "attributes: must have the JSON form of google.protobuf.Struct",
		"sizes=1&sizes=x":               "sizes[1]: " + wholeNumber + "1 to 2147483647",
		"inner.inner.pageSize=x":        "inner.inner.pageSize: " + wholeNumber + "0 to 2147483647",
		"byName=%ff":                    "byName: must be UTF-8",
		"anySize=1&anySize=2":           "anySize: must be given once",
		"anySize=1&any_size=2":          "any_size: must be given once",
		"readMask=title&read_mask=rate": "read_mask: must be given once",
		"byName=x&byNumber=1":           `query: error parsing "byNumber", oneof every.v1.Every.choice is already set`,
		"shade=1":                       "shade: unknown parameter",
		"%ff=1":                         "%FF: unknown parameter",
		"a%20b:=1":                      "a+b%3A: unknown parameter",
		"title=x":                       "title: unknown parameter", // it is in the path
		"inner=x":                       "inner: unknown parameter",
		"inners.rate=1":                 "inners.rate: unknown parameter",
		"stocks=1":                      "stocks: unknown parameter",
		"dueTime.seconds=1":             "dueTime.seconds: unknown parameter",
		"anySize.x=1":                   "anySize.x: unknown parameter",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if err := (strictQuery{}).Parse(dynamicpb.NewMessage(every), values, taken); err == nil || err.Error() != want {
			t.Errorf("%s = %v, want %s", query, err, want)
		}
	}
}

// A query sets fields of every type, by their names in JSON and in the contract.
func TestQuerySetsFields(t *testing.T) {
	t.Parallel()
	every := everyMessage(t)
	values, err := url.ParseQuery("pageSize=7&big_size=-3&smallCount=4&bigCount=5&isOpen=true&color=1&raw=AP8&rate=1.5&dueTime=2026-01-31T12:00:00Z&maxWait=1.5s" +
		"&readMask=title,due_time&someSize=8&some_flag=false&sizes=1&sizes=2&inner.color=COLOR_RED&inner.readMask=*&inner.byNumber=9&byName=")
	if err != nil {
		t.Fatal(err)
	}
	got, want := dynamicpb.NewMessage(every), dynamicpb.NewMessage(every)
	if err := (strictQuery{}).Parse(got, values, utilities.NewDoubleArray(nil)); err != nil {
		t.Fatal(err)
	}
	if err := prototext.Unmarshal([]byte(`page_size: 7 big_size: -3 small_count: 4 big_count: 5 is_open: true color: COLOR_RED raw: "\000\377" rate: 1.5
		due_time: {seconds: 1769860800} max_wait: {seconds: 1 nanos: 500000000} read_mask: {paths: "title" paths: "due_time"} some_size: {value: 8} some_flag: {}
		sizes: 1 sizes: 2 inner: {color: COLOR_RED read_mask: {paths: "*"} by_number: 9} by_name: ""`), want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("query = %v, want %v", got, want)
	}
}

// A wrong body is refused by the path of the field and its rule.
func TestBodyNamesFieldAndRule(t *testing.T) {
	t.Parallel()
	every := everyMessage(t)
	for body, want := range map[string]string{
		`{"title": 123}`:                            "title: must be a string in UTF-8",
		"{\"title\": \"\xff\"}":                     "title: must be a string in UTF-8",
		`{"pageSize": "x"}`:                         "pageSize: " + wholeNumber + "0 to 2147483647",
		`{"any_size": 1.5}`:                         "any_size: " + anyInt32,
		`{"bigCount": true}`:                        "bigCount: " + wholeNumber + "0 to 1000",
		`{"smallCount": 4294967296}`:                "smallCount: " + wholeNumber + "0 to 4294967295",
		`{"isOpen": "true"}`:                        "isOpen: must be true or false",
		`{"color": "COLOR_BLUE"}`:                   "color: must be one of COLOR_UNSPECIFIED, COLOR_RED",
		`{"raw": "*"}`:                              "raw: must be a string in base64",
		`{"rate": "much"}`:                          "rate: must be a number",
		`{"dueTime": 5}`:                            "dueTime: must be a time such as 2026-01-31T12:00:00Z",
		`{"maxWait": "1h"}`:                         "maxWait: must be a duration in seconds such as 1.5s",
		`{"readMask": ["title"]}`:                   "readMask: must be names of fields, separated by commas",
		`{"someSize": {"value": 1}}`:                "someSize: " + anyInt32,
		`{"attributes": 1}`:                         "attributes: must have the JSON form of google.protobuf.Struct",
		`{"sizes": 1}`:                              "sizes: must be a list",
		`{"sizes": [1, "x"]}`:                       "sizes[1]: " + wholeNumber + "1 to 2147483647",
		`{"stocks": {"a": "x"}}`:                    "stocks: must be an object, whose keys and values have the types of the field",
		`{"inner": "x"}`:                            "inner: must be an object",
		`{"inner": {"inner": {"color": 1.5}}}`:      "inner.inner.color: must be one of COLOR_UNSPECIFIED, COLOR_RED",
		`{"inner": {"shade": 1}}`:                   "inner.shade: unknown field",
		`{"inners": [{}, {"inner": {"rate": []}}]}`: "inners[1].inner.rate: must be a number",
		`{"inners": [null]}`:                        "inners[0]: must be an object",
		`{"shade": 1, "title": "x"}`:                "shade: unknown field",
		`null`:                                      "must be an object",
		`[]`:                                        "must be an object",
		`{"title": "x", "title": "y"}`:              `duplicate field "title"`,
		`{"title": "x"} {}`:                         "invalid character '{' after top-level value",
		`{"title": "x`:                              "unexpected end of JSON input",
		strings.Repeat(`{"inner":`, 9_000) + "1" + strings.Repeat("}", 9_000): "inner" + strings.Repeat(".inner", maxFaultDepth) + ": must have the JSON form of every.v1.Every",
	} {
		codec := &strictJSON{JSONPb: &runtime.JSONPb{}}
		err := codec.NewDecoder(strings.NewReader(body)).Decode(dynamicpb.NewMessage(every))
		if err == nil || err.Error() != "body: "+want {
			t.Errorf("%.60s = %v, want body: %s", body, err, want)
		}
	}
}

// The errors of the gateway about a path, a query and a body have the name of the
// field in the request.
func TestGatewayErrorsAreNamed(t *testing.T) {
	t.Parallel()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	for _, test := range []struct{ method, text, field, message string }{
		{"Publisher/ListTopics", `type mismatch, parameter: page_size, error: strconv.ParseInt: parsing "x": invalid syntax`, "page_size", "page_size: " + anyInt32},
		{"Publisher/ListTopics", "pageSize: must be a number", "pageSize", "pageSize: must be a number"},
		{"Publisher/Publish", "body: messages[0].data: must be a string in base64", "messages[0].data", "messages[0].data: must be a string in base64"},
		{"Publisher/Publish", "body: unexpected end of JSON input", "body", "body: unexpected end of JSON input"},
		{"SchemaService/CreateSchema", "body: definition: must be a string in UTF-8", "schema.definition", "schema.definition: must be a string in UTF-8"},
		{"Publisher/ListTopics", "invalid grpc-timeout: soon", "", "invalid grpc-timeout: soon"},
	} {
		ctx, err := runtime.AnnotateContext(t.Context(), runtime.NewServeMux(), request, "/google.pubsub.v1."+test.method)
		if err != nil {
			t.Fatal(err)
		}
		got := status.Convert(named(ctx, status.Error(codes.InvalidArgument, test.text)))
		field := ""
		if bad := detail[*errdetails.BadRequest](got); bad != nil {
			field = bad.GetFieldViolations()[0].GetField()
		}
		if got.Message() != test.message || field != test.field {
			t.Errorf("%s = %q about %q, want %q about %q", test.text, got.Message(), field, test.message, test.field)
		}
	}
}

// The paths of a mask get their names in proto, if a mask may have them. The
// gateway's own are cut where it may not.
func TestMasksHaveNamesOfProto(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		given      bool
		path, want string
	}{
		{true, "ackDeadlineSeconds", "ack_deadline_seconds"}, {true, "push_config.pushEndpoint", "push_config.push_endpoint"},
		{true, "pushConfig.oidcToken.serviceAccountEmail", "push_config.oidc_token.service_account_email"}, {true, "*", "*"},
		{true, "pushConfig.attributes.aB", "pushConfig.attributes.aB"}, {true, "pushConfig.shade", "pushConfig.shade"},
		{false, "push_config.attributes.aB", "push_config.attributes"}, {false, "message_retention_duration.x.y", "message_retention_duration"},
	} {
		u, _ := aip.UpdateOf(&pubsubpb.UpdateSubscriptionRequest{
			Subscription: &pubsubpb.Subscription{}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{test.path}},
		})
		if textMask(u, test.given); u.Mask.GetPaths()[0] != test.want {
			t.Errorf("textMask(%q, %t) = %q, want %q", test.path, test.given, u.Mask.GetPaths()[0], test.want)
		}
	}
}
