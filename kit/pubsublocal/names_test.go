package pubsublocal

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
)

// checkStatus compares an error with a code and a part of its text. codes.OK means no error.
func checkStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if got := status.Code(err); got != code {
		t.Errorf("error = %v, want code %v", err, code)
	}
	if got := status.Convert(err).Message(); !strings.Contains(got, text) {
		t.Errorf("error text = %q, want %q in it", got, text)
	}
}

// A name has four segments, with the right collection and a valid id.
func TestParseName(t *testing.T) {
	long := "a" + strings.Repeat("b", 254)
	tests := []struct {
		name    string
		in      collection
		project string
		id      string // empty: refused
	}{
		{"projects/p/topics/abc", topics, "p", "abc"},
		{"projects/p/subscriptions/Z9-_.~+%", subscriptions, "p", "Z9-_.~+%"},
		{"projects/example.com:p/snapshots/abc", snapshots, "example.com:p", "abc"},
		{"projects/p/schemas/" + long, schemas, "p", long},
		{"projects/p/topics/a-goog", topics, "p", "a-goog"},
		{"projects/p/topics/" + long + "b", topics, "", ""}, // A1
		{"projects/p/topics/ab", topics, "", ""},            // A1
		{"projects/p/topics/", topics, "", ""},              // A1
		{"projects/p/topics/1abc", topics, "", ""},          // A1
		{"projects/p/topics/_abc", topics, "", ""},          // A1
		{"projects/p/topics/ab c", topics, "", ""},          // A1
		{"projects/p/topics/abc@1", topics, "", ""},         // A1
		{"projects/p/topics/abä", topics, "", ""},           // A1
		{"projects/p/topics/goog", topics, "", ""},          // A2
		{"projects/p/topics/google", topics, "", ""},        // A2
		{"projects/p/topics/abc", subscriptions, "", ""},    // A3
		{"projects/p/topicsx/abc", topics, "", ""},          // A3
		{"projects/p/topics/abc/d", topics, "", ""},         // A3
		{"projects/p/topics", topics, "", ""},               // A3
		{"projects//topics/abc", topics, "", ""},            // A3
		{"projects/p", topics, "", ""},                      // A3
		{"/projects/p/topics/abc", topics, "", ""},          // A3
		{"project/p/topics/abc", topics, "", ""},            // A3
		{"abc", topics, "", ""},                             // A3
		{"", topics, "", ""},                                // A3
		{deletedTopic, topics, "", ""},                      // A3, A11
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			project, id, err := parseName(test.in, test.name)
			if project != test.project || id != test.id {
				t.Errorf("parseName() = %q, %q, want %q, %q", project, id, test.project, test.id)
			}
			code, text := codes.OK, ""
			if test.id == "" {
				code, text = codes.InvalidArgument, "(name="+test.name+")"
			}
			checkStatus(t, err, code, text)
			checkStatus(t, checkReference(test.in, test.name), code, text)
		})
	}
}

// The name of a project in a list request is projects/p (A3).
func TestParseProject(t *testing.T) {
	for name, want := range map[string]string{
		"projects/p": "p", "projects/": "", "projects/p/": "", "projects/p/topics": "", "p": "", "": "",
	} {
		got, err := parseProject(name)
		if got != want {
			t.Errorf("parseProject(%q) = %q, want %q", name, got, want)
		}
		if want == "" {
			checkStatus(t, err, codes.InvalidArgument, "(name="+name+")")
		} else {
			checkStatus(t, err, codes.OK, "")
		}
	}
}

// The service returns the same text. A detail has the kind (A4, A5).
func TestResourceErrors(t *testing.T) {
	const name = "projects/p/topics/abc"
	for _, test := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{notFound("topic", name), codes.NotFound, "Resource not found (resource=" + name + ")."},
		{alreadyExists("topic", name), codes.AlreadyExists, "Resource already exists in the project (resource=" + name + ")."},
	} {
		checkStatus(t, test.err, test.code, test.text)
		want := []any{&errdetails.ResourceInfo{ResourceType: "topic", ResourceName: name}}
		if diff := cmp.Diff(want, status.Convert(test.err).Details(), protocmp.Transform()); diff != "" {
			t.Errorf("details (-want +got):\n%s", diff)
		}
	}
}
