package port

import "testing"

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
