package pubsublocal

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxRevisions is the maximum number of revisions of a schema.
const maxRevisions = 20

// schemaRegistry stores the schemas of all projects, and implements
// google.pubsub.v1.SchemaService. A change takes effect for the next message. Its
// methods are safe for concurrent use.
type schemaRegistry struct {
	pubsubpb.UnimplementedSchemaServiceServer

	now func() time.Time
	// onDelete is called after a schema was deleted, with the lock held, so it must not call the registry. Set it before
	// the registry is used.
	onDelete func(name string)

	mu     sync.RWMutex
	byName map[string][]schemaRevision // guarded by mu; oldest first. A slice is replaced, never changed.
}

// schemaRevision is a revision of a schema. It never changes.
type schemaRevision struct {
	schema   *pubsubpb.Schema
	compiled *compiledSchema
}

func newSchemaRegistry(now func() time.Time) *schemaRegistry {
	return &schemaRegistry{now: now, onDelete: func(string) {}, byName: map[string][]schemaRevision{}}
}

// check returns an error if a topic cannot have these settings: UNIMPLEMENTED for a
// range of revisions, INVALID_ARGUMENT for a bad name, and NOT_FOUND if the schema
// does not exist.
func (r *schemaRegistry) check(settings *pubsubpb.SchemaSettings) error {
	if settings == nil {
		return nil
	}
	if err := checkUnimplemented(settings, "first_revision_id", "last_revision_id"); err != nil {
		return err
	}
	_, err := r.revisions(settings.GetSchema())
	return err
}

// validate returns the newest revision that accepts data. It returns
// INVALID_ARGUMENT if there is none or the schema was deleted.
func (r *schemaRegistry) validate(settings *pubsubpb.SchemaSettings, data []byte) (revisionID string, err error) {
	r.mu.RLock()
	revisions := r.byName[settings.GetSchema()]
	r.mu.RUnlock()
	if len(revisions) == 0 {
		return "", status.Error(codes.InvalidArgument, "Invalid data in message: The schema of the topic was deleted.")
	}
	for _, revision := range slices.Backward(revisions) {
		if revision.compiled.validate(data, settings.GetEncoding()) == nil {
			return revision.schema.GetRevisionId(), nil
		}
	}
	return "", status.Error(codes.InvalidArgument, "Invalid data in message: Message failed schema validation.")
}

// dump returns all revisions, schema by schema, oldest first.
func (r *schemaRegistry) dump() (all []*pubsubpb.Schema) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(r.byName)) {
		for _, revision := range r.byName[name] {
			all = append(all, revision.schema)
		}
	}
	return all
}

// restore adds a revision that dump returned, as the newest revision.
func (r *schemaRegistry) restore(s *pubsubpb.Schema) error {
	compiled, err := compileBody(s)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byName[s.GetName()] = append(r.byName[s.GetName()], schemaRevision{schema: s, compiled: compiled})
	return nil
}

// CreateSchema implements pubsubpb.SchemaServiceServer.
func (r *schemaRegistry) CreateSchema(_ context.Context, req *pubsubpb.CreateSchemaRequest) (*pubsubpb.Schema, error) {
	if err := checkProject(req.GetParent()); err != nil {
		return nil, err
	}
	name := req.GetParent() + "/schemas/" + req.GetSchemaId()
	if err := checkName(schemas, name); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) > 0 {
		return nil, alreadyExists(name)
	}
	compiled, err := compileBody(req.GetSchema())
	if err != nil {
		return nil, err
	}
	return r.add(name, req.GetSchema(), compiled), nil
}

// GetSchema implements pubsubpb.SchemaServiceServer.
func (r *schemaRegistry) GetSchema(_ context.Context, req *pubsubpb.GetSchemaRequest) (*pubsubpb.Schema, error) {
	revision, err := r.find(req.GetName())
	if err != nil {
		return nil, err
	}
	return viewOf(revision.schema, cmp.Or(req.GetView(), pubsubpb.SchemaView_FULL)), nil
}

// ListSchemas implements pubsubpb.SchemaServiceServer. It returns the newest
// revision of each schema of a project, on one page.
func (r *schemaRegistry) ListSchemas(_ context.Context, req *pubsubpb.ListSchemasRequest) (*pubsubpb.ListSchemasResponse, error) {
	if err := checkProject(req.GetParent()); err != nil {
		return nil, err
	}
	response := &pubsubpb.ListSchemasResponse{}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(r.byName)) {
		if strings.HasPrefix(name, req.GetParent()+"/schemas/") {
			response.Schemas = append(response.Schemas, viewOf(newestRevision(r.byName[name]).schema, req.GetView()))
		}
	}
	return response, nil
}

// ListSchemaRevisions implements pubsubpb.SchemaServiceServer. It returns the newest first, on one page.
func (r *schemaRegistry) ListSchemaRevisions(
	_ context.Context, req *pubsubpb.ListSchemaRevisionsRequest,
) (*pubsubpb.ListSchemaRevisionsResponse, error) {
	revisions, err := r.revisions(req.GetName())
	if err != nil {
		return nil, err
	}
	response := &pubsubpb.ListSchemaRevisionsResponse{}
	for _, revision := range slices.Backward(revisions) {
		response.Schemas = append(response.Schemas, viewOf(revision.schema, req.GetView()))
	}
	return response, nil
}

// CommitSchema implements pubsubpb.SchemaServiceServer.
func (r *schemaRegistry) CommitSchema(_ context.Context, req *pubsubpb.CommitSchemaRequest) (*pubsubpb.Schema, error) {
	name := req.GetName()
	if _, err := r.revisions(name); err != nil {
		return nil, err
	}
	compiled, err := compileBody(req.GetSchema())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) == 0 { // deleted meanwhile
		return nil, notFound(name)
	}
	for _, revision := range r.byName[name] {
		if revision.schema.GetDefinition() == req.GetSchema().GetDefinition() {
			return nil, alreadyExists(name + "@" + revision.schema.GetRevisionId())
		}
		if err := compiled.compatibleWith(revision.compiled); err != nil {
			return nil, err
		}
	}
	if len(r.byName[name]) >= maxRevisions {
		return nil, status.Errorf(codes.ResourceExhausted, "schema %s has %d revisions, which is the maximum; delete one first", name, maxRevisions)
	}
	return r.add(name, req.GetSchema(), compiled), nil
}

// DeleteSchemaRevision implements pubsubpb.SchemaServiceServer. It returns the
// newest revision that is left.
func (r *schemaRegistry) DeleteSchemaRevision(
	_ context.Context, req *pubsubpb.DeleteSchemaRevisionRequest,
) (*pubsubpb.Schema, error) {
	name, id, ok := strings.Cut(req.GetName(), "@")
	if err := checkName(schemas, name); err != nil {
		return nil, err
	}
	if !ok || id == "" {
		return nil, status.Errorf(codes.InvalidArgument, "name %q has no revision, which follows after an @", req.GetName())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) == 0 {
		return nil, notFound(name)
	}
	index, err := revisionOf(name, r.byName[name], id)
	if err != nil {
		return nil, err
	}
	if len(r.byName[name]) == 1 {
		return nil, status.Errorf(codes.FailedPrecondition, "revision %s is the last one of its schema; delete the schema instead", req.GetName())
	}
	r.byName[name] = slices.Delete(slices.Clone(r.byName[name]), index, index+1)
	return viewOf(newestRevision(r.byName[name]).schema, pubsubpb.SchemaView_FULL), nil
}

// DeleteSchema implements pubsubpb.SchemaServiceServer. After that, topics with the
// schema refuse all messages.
func (r *schemaRegistry) DeleteSchema(_ context.Context, req *pubsubpb.DeleteSchemaRequest) (*emptypb.Empty, error) {
	name := req.GetName()
	if err := checkName(schemas, name); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) == 0 {
		return nil, notFound(name)
	}
	delete(r.byName, name)
	r.onDelete(name)
	return &emptypb.Empty{}, nil
}

// compileBody compiles the schema of a request, if this server supports its type.
func compileBody(s *pubsubpb.Schema) (*compiledSchema, error) {
	if s == nil {
		return nil, status.Error(codes.InvalidArgument, "schema is empty")
	}
	if s.GetConfiguration() != nil {
		return nil, status.Error(codes.Unimplemented, "schema.compiled_proto_schema is not implemented; use schema.definition")
	}
	switch s.GetType() {
	case pubsubpb.Schema_PROTOCOL_BUFFER:
		return compileSchema(s.GetDefinition())
	case pubsubpb.Schema_AVRO:
		return nil, status.Error(codes.Unimplemented, "schemas of the type AVRO are not implemented; use PROTOCOL_BUFFER")
	default:
		return nil, status.Errorf(codes.InvalidArgument, "schema.type is %v, but must be PROTOCOL_BUFFER or AVRO", s.GetType())
	}
}

// revisions returns the revisions of a schema, oldest first. There is at least one.
func (r *schemaRegistry) revisions(name string) ([]schemaRevision, error) {
	if err := checkName(schemas, name); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.byName[name]) == 0 {
		return nil, notFound(name)
	}
	return r.byName[name], nil
}

// find returns the revision of a name such as schema@revision, or the newest one if
// the name has no revision.
func (r *schemaRegistry) find(name string) (schemaRevision, error) {
	name, id, ok := strings.Cut(name, "@")
	revisions, err := r.revisions(name)
	if err != nil {
		return schemaRevision{}, err
	}
	if !ok {
		return newestRevision(revisions), nil
	}
	index, err := revisionOf(name, revisions, id)
	if err != nil {
		return schemaRevision{}, err
	}
	return revisions[index], nil
}

// add adds a definition as the newest revision of a schema, and returns it. It is
// called with mu held.
func (r *schemaRegistry) add(name string, s *pubsubpb.Schema, compiled *compiledSchema) *pubsubpb.Schema {
	revisions := r.byName[name]
	added := &pubsubpb.Schema{
		Name:               name,
		Type:               s.GetType(),
		Definition:         s.GetDefinition(),
		RevisionId:         fmt.Sprintf("%08x", uuid.New().ID()), // 8 random hex digits
		RevisionCreateTime: timestamppb.New(r.now()),
	}
	r.byName[name] = append(slices.Clip(revisions), schemaRevision{schema: added, compiled: compiled})
	return viewOf(added, pubsubpb.SchemaView_FULL)
}

func newestRevision(revisions []schemaRevision) schemaRevision { return revisions[len(revisions)-1] }

// revisionOf returns the index of a revision, or NOT_FOUND.
func revisionOf(name string, revisions []schemaRevision, id string) (int, error) {
	index := slices.IndexFunc(revisions, func(r schemaRevision) bool { return r.schema.GetRevisionId() == id })
	if index < 0 {
		return 0, notFound(name + "@" + id)
	}
	return index, nil
}

// viewOf returns a copy of a schema. Only the FULL view has the definition.
func viewOf(s *pubsubpb.Schema, view pubsubpb.SchemaView) *pubsubpb.Schema {
	s = proto.CloneOf(s)
	if view != pubsubpb.SchemaView_FULL {
		s.Definition = ""
	}
	return s
}
