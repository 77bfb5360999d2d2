package port

import (
	"net/url"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
)

// A handler gets no header that nobody has a use for.
func TestGatewayPassesOnFewHeaders(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"Traceparent": "traceparent", "Tracestate": "tracestate", "X-Request-Id": "x-request-id",
		"X-Serverless-Authorization": "x-serverless-authorization",
		"Cookie":                     "", "User-Agent": "", "Grpc-Metadata-Traceparent": "", "X-Goog-Iap-Jwt-Assertion": "",
	} {
		if got, ok := headerToMetadata(header); got != want || ok != (want != "") {
			t.Errorf("headerToMetadata(%q) = %q, %v, want %q", header, got, ok, want)
		}
	}
}

// A parameter of a query can name a field of a field. An unknown one is refused at any depth.
func TestQueriesNameNestedFields(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		message proto.Message
		key     string
		value   string
		known   bool
	}{
		{&errdetails.BadRequest_FieldViolation{}, "localizedMessage.locale", "de", true},
		{&errdetails.BadRequest_FieldViolation{}, "localized_message.locale", "de", true},
		{&errdetails.BadRequest_FieldViolation{}, "localizedMessage.local", "de", false},
		{&errdetails.BadRequest_FieldViolation{}, "field.locale", "de", false},
		{&errdetails.RetryInfo{}, "retryDelay", "1s", true},
		{&errdetails.RetryInfo{}, "retryDelay.seconds", "1", false},
	} {
		err := strictQuery{}.Parse(test.message, url.Values{test.key: {test.value}}, utilities.NewDoubleArray(nil))
		if (err == nil) != test.known {
			t.Errorf("Parse(%s) = %v, want that it is known: %t", test.key, err, test.known)
		}
	}
}
