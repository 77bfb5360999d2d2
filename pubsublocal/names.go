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

// What a reference becomes when the resource that it names is deleted (A11, M18). Neither is a name.
const (
	deletedTopic  = "_deleted-topic_"
	deletedSchema = "_deleted-schema_"
)

// parseName takes a name such as projects/p/topics/t apart. INVALID_ARGUMENT if
// it is not the name of a resource of the collection (A1, A2, A3).
func parseName(c collection, name string) (project, id string, err error) {
	project, id, ok := splitName(c, name)
	if !ok {
		return "", "", invalidName("name", name)
	}
	return project, id, nil
}

// checkReference refuses a name by which one resource names another, with
// INVALID_ARGUMENT if it cannot be one (A3). The other may be in any project (A8).
func checkReference(c collection, name string) error {
	_, _, err := parseName(c, name)
	return err
}

// parseProject returns the project id in a name such as projects/p, else INVALID_ARGUMENT (A3).
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

// validID is the rule for last segments (A1, A2). A slash is none of its characters, so a fifth segment fails here, too.
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

// invalidName is the error for a value of a field that is no name. The text is that of the service.
func invalidName(field, value string) error {
	return status.Errorf(codes.InvalidArgument,
		"Invalid resource name given (%s=%s). Refer to https://cloud.google.com/pubsub/docs/admin#resource_names for more information.",
		field, value)
}

// notFound is the error for a resource that is not there (A5). what is its kind, such as topic.
func notFound(what, name string) error {
	return resourceError(codes.NotFound, "Resource not found (resource="+name+").", what, name)
}

// alreadyExists is the error for a name that is taken (A4). what is its kind, such as topic.
func alreadyExists(what, name string) error {
	return resourceError(codes.AlreadyExists, "Resource already exists in the project (resource="+name+").", what, name)
}

// resourceError keeps the text that the service has, which does not say the kind; the kind is in a detail (AIP-193).
func resourceError(code codes.Code, text, what, name string) error {
	plain := status.New(code, text)
	detailed, err := plain.WithDetails(&errdetails.ResourceInfo{ResourceType: what, ResourceName: name})
	if err != nil {
		return plain.Err() // the detail is a help, not the error
	}
	return detailed.Err()
}
