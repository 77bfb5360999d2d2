package pubsublocal

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// collection is the third segment of a resource's name.
type collection string

const (
	topics        collection = "topics"
	subscriptions collection = "subscriptions"
	schemas       collection = "schemas"
)

// The value of a reference after the resource that it names was deleted (A11,
// M18). Neither is a valid name.
const (
	deletedTopic  = "_deleted-topic_"
	deletedSchema = "_deleted-schema_"
)

var (
	resourceName = regexp.MustCompile(`^projects/[^/]+/([a-z]+)/([A-Za-z][A-Za-z0-9_.~+%-]{2,254})$`)
	projectName  = regexp.MustCompile(`^projects/[^/]+$`)
)

// isName reports whether a name such as projects/p/topics/t is valid for the
// collection (A1, A2, A3). The project may be any (A8).
func isName(c collection, name string) bool {
	parts := resourceName.FindStringSubmatch(name)
	return parts != nil && parts[1] == string(c) && !strings.HasPrefix(parts[2], "goog")
}

// checkName returns INVALID_ARGUMENT if a name is not valid for a resource of
// the collection.
func checkName(c collection, name string) error {
	if !isName(c, name) {
		return invalidName("name", name)
	}
	return nil
}

// checkProject returns INVALID_ARGUMENT if a name is not one of a project, such
// as projects/p (A3).
func checkProject(name string) error {
	if !projectName.MatchString(name) {
		return invalidName("name", name)
	}
	return nil
}

// invalidName returns the error for an invalid resource name in a field. The
// service returns the same text.
func invalidName(field, value string) error {
	return status.Errorf(codes.InvalidArgument,
		"Invalid resource name given (%s=%s). Refer to https://cloud.google.com/pubsub/docs/admin#resource_names for more information.",
		field, value)
}

// notFound returns the error for a resource that does not exist (A5).
func notFound(name string) error {
	return status.Errorf(codes.NotFound, "Resource not found (resource=%s).", name)
}

// alreadyExists returns the error for a name that is in use (A4).
func alreadyExists(name string) error {
	return status.Errorf(codes.AlreadyExists, "Resource already exists in the project (resource=%s).", name)
}
