package pubsublocal

import (
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// collection is the third segment of a resource's name.
type collection string

const (
	topics        collection = "topics"
	subscriptions collection = "subscriptions"
	snapshots     collection = "snapshots"
	schemas       collection = "schemas"
)

// The value of a reference after the resource that it names was deleted (A11,
// M18). Neither is a valid name.
const (
	deletedTopic  = "_deleted-topic_"
	deletedSchema = "_deleted-schema_"
)

// parseName splits a name such as projects/p/topics/t. It returns
// INVALID_ARGUMENT if the name does not belong to the collection (A1, A2, A3).
func parseName(c collection, name string) (project, id string, err error) {
	project, id, ok := splitName(c, name)
	if !ok {
		return "", "", invalidName("name", name)
	}
	return project, id, nil
}

// checkReference returns INVALID_ARGUMENT if a name is not valid for a resource
// of the collection (A3). The project may be any (A8).
func checkReference(c collection, name string) error {
	_, _, err := parseName(c, name)
	return err
}

// parseProject returns the project id of a name such as projects/p. It returns
// INVALID_ARGUMENT for other names (A3).
func parseProject(name string) (string, error) {
	project, ok := strings.CutPrefix(name, "projects/")
	if !ok || project == "" || strings.Contains(project, "/") {
		return "", invalidName("name", name)
	}
	return project, nil
}

func splitName(c collection, name string) (project, id string, ok bool) {
	rest, ok := strings.CutPrefix(name, "projects/")
	if !ok {
		return "", "", false
	}
	project, rest, ok = strings.Cut(rest, "/")
	if !ok || project == "" {
		return "", "", false
	}
	id, ok = strings.CutPrefix(rest, string(c)+"/")
	return project, id, ok && validID(id)
}

// validID reports whether id may be the last segment of a name (A1, A2). It
// refuses a slash, and so names with more than four segments.
func validID(id string) bool {
	if len(id) < 3 || len(id) > 255 || !isLetter(id[0]) || strings.HasPrefix(id, "goog") {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !isLetter(c) && !isDigit(c) && !strings.ContainsRune("-_.~+%", rune(c)) {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }

// invalidName returns the error for an invalid resource name in a field. The
// service returns the same text.
func invalidName(field, value string) error {
	return status.Errorf(codes.InvalidArgument,
		"Invalid resource name given (%s=%s). Refer to https://cloud.google.com/pubsub/docs/admin#resource_names for more information.",
		field, value)
}

// notFound returns the error for a resource that does not exist (A5). what is
// its kind, such as topic.
func notFound(what, name string) error {
	return resourceError(codes.NotFound, "Resource not found (resource="+name+").", what, name)
}

// alreadyExists returns the error for a name that is in use (A4). what is its
// kind, such as topic.
func alreadyExists(what, name string) error {
	return resourceError(codes.AlreadyExists, "Resource already exists in the project (resource="+name+").", what, name)
}

// resourceError returns an error with the text of the service. The text does
// not name the kind, so a detail does (AIP-193).
func resourceError(code codes.Code, text, what, name string) error {
	plain := status.New(code, text)
	detailed, err := plain.WithDetails(&errdetails.ResourceInfo{ResourceType: what, ResourceName: name})
	if err != nil {
		return plain.Err() // the detail is optional
	}
	return detailed.Err()
}
