package pubsublocal

import (
	"cmp"
	"context"
	"fmt"
	"math"
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

// maxRevisions is the maximum number of revisions of a schema. Deleted ones do not
// count.
const maxRevisions = 20

// schemaRegistry stores the schemas of all projects, and implements
// google.pubsub.v1.SchemaService. A change takes effect for the next message. Its
// methods are safe for concurrent use.
type schemaRegistry struct {
	pubsubpb.UnimplementedSchemaServiceServer

	now func() time.Time
	// onChange, if not nil, is called after each change of a schema with all its
	// revisions, as dump returns them. It gets none if the schema was deleted. It is
	// called with the lock held, so it must not call the registry. Set it before the
	// registry is used.
	onChange func(name string, revisions []*pubsubpb.Schema)

	mu     sync.RWMutex
	byName map[string][]schemaRevision // guarded by mu; oldest first. A slice is replaced, never changed.
}

// schemaRevision is a revision of a schema. A deleted one keeps its place, because a
// topic may still name it as the end of a range.
type schemaRevision struct {
	schema   *pubsubpb.Schema // without definition if deleted; never changed
	compiled *compiledSchema  // nil: deleted
}

func newSchemaRegistry(now func() time.Time) *schemaRegistry {
	return &schemaRegistry{now: now, byName: map[string][]schemaRevision{}}
}

// check returns an error if a topic cannot have these settings. It is
// INVALID_ARGUMENT for a bad name, no encoding, or a range that ends before it
// starts. It is NOT_FOUND if the schema or a revision does not exist.
func (r *schemaRegistry) check(settings *pubsubpb.SchemaSettings) error {
	if settings == nil {
		return nil
	}
	name := settings.GetSchema()
	if _, _, err := parseName(schemas, name); err != nil {
		return err
	}
	switch settings.GetEncoding() {
	case pubsubpb.Encoding_JSON, pubsubpb.Encoding_BINARY:
	default:
		return status.Errorf(codes.InvalidArgument, "schema_settings.encoding is %v, but must be JSON or BINARY", settings.GetEncoding())
	}
	revisions, err := r.revisions(name)
	if err != nil {
		return err
	}
	for _, id := range []string{settings.GetFirstRevisionId(), settings.GetLastRevisionId()} {
		if id == "" {
			continue
		}
		if _, err := revisionOf(name, revisions, id); err != nil {
			return err
		}
	}
	if first, last, _ := revisionRange(revisions, settings); first > last {
		return status.Errorf(codes.InvalidArgument, "schema_settings.first_revision_id %s is newer than last_revision_id %s",
			settings.GetFirstRevisionId(), settings.GetLastRevisionId())
	}
	return nil
}

// validate returns the newest revision in the range of the settings that accepts
// data. It returns INVALID_ARGUMENT if there is none or the schema was deleted.
func (r *schemaRegistry) validate(settings *pubsubpb.SchemaSettings, data []byte) (revisionID string, err error) {
	r.mu.RLock()
	revisions := r.byName[settings.GetSchema()]
	r.mu.RUnlock()
	if len(revisions) == 0 {
		return "", status.Error(codes.InvalidArgument, "Invalid data in message: The schema of the topic was deleted.")
	}
	if first, last, ok := revisionRange(revisions, settings); ok {
		for i := last; i >= first; i-- {
			if c := revisions[i].compiled; c != nil && c.validate(data, settings.GetEncoding()) == nil {
				return revisions[i].schema.GetRevisionId(), nil
			}
		}
	}
	return "", status.Error(codes.InvalidArgument, "Invalid data in message: Message failed schema validation.")
}

// exists reports whether a schema has this name.
func (r *schemaRegistry) exists(name string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byName[name]) > 0
}

// restore adds a revision that onChange had, as the newest one. It does not call
// onChange.
func (r *schemaRegistry) restore(s *pubsubpb.Schema) error {
	name := s.GetName()
	if _, _, err := parseName(schemas, name); err != nil {
		return err
	}
	if s.GetRevisionId() == "" {
		return status.Errorf(codes.InvalidArgument, "schema %s: revision_id is empty", name)
	}
	revision := schemaRevision{schema: proto.CloneOf(s)}
	if s.GetDefinition() != "" {
		var err error
		if revision.compiled, err = compileBody(s); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	revisions := r.byName[name]
	if revisionIndex(revisions, s.GetRevisionId()) >= 0 {
		return alreadyExists("schema revision", name+"@"+s.GetRevisionId())
	}
	r.byName[name] = append(slices.Clip(revisions), revision)
	return nil
}

// CreateSchema implements pubsubpb.SchemaServiceServer.
func (r *schemaRegistry) CreateSchema(_ context.Context, req *pubsubpb.CreateSchemaRequest) (*pubsubpb.Schema, error) {
	if _, err := parseProject(req.GetParent()); err != nil {
		return nil, err
	}
	name := req.GetParent() + "/schemas/" + req.GetSchemaId()
	if _, _, err := parseName(schemas, name); err != nil {
		return nil, err
	}
	if r.exists(name) { // this error comes before errors of the definition
		return nil, alreadyExists("schema", name)
	}
	compiled, err := compileBody(req.GetSchema())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) > 0 {
		return nil, alreadyExists("schema", name)
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
// revision of each schema of a project.
func (r *schemaRegistry) ListSchemas(_ context.Context, req *pubsubpb.ListSchemasRequest) (*pubsubpb.ListSchemasResponse, error) {
	if _, err := parseProject(req.GetParent()); err != nil {
		return nil, err
	}
	var found []*pubsubpb.Schema
	r.mu.RLock()
	for name, revisions := range r.byName {
		if strings.HasPrefix(name, req.GetParent()+"/schemas/") {
			found = append(found, newestRevision(revisions).schema)
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(found, func(a, b *pubsubpb.Schema) int { return cmp.Compare(a.GetName(), b.GetName()) })
	found, next, err := page(found, (*pubsubpb.Schema).GetName, req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &pubsubpb.ListSchemasResponse{Schemas: viewsOf(found, req.GetView()), NextPageToken: next}, nil
}

// ListSchemaRevisions implements pubsubpb.SchemaServiceServer. It returns the newest first.
func (r *schemaRegistry) ListSchemaRevisions(
	_ context.Context, req *pubsubpb.ListSchemaRevisionsRequest,
) (*pubsubpb.ListSchemaRevisionsResponse, error) {
	revisions, err := r.revisions(req.GetName())
	if err != nil {
		return nil, err
	}
	type row struct {
		schema *pubsubpb.Schema
		key    string // page sorts by it: smaller for newer revisions, and never changes
	}
	var rows []row
	for i, revision := range slices.Backward(revisions) {
		if revision.compiled != nil {
			rows = append(rows, row{revision.schema, fmt.Sprintf("%010d", math.MaxInt32-i)})
		}
	}
	rows, next, err := page(rows, func(r row) string { return r.key }, req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	var found []*pubsubpb.Schema
	for _, row := range rows {
		found = append(found, row.schema)
	}
	return &pubsubpb.ListSchemaRevisionsResponse{Schemas: viewsOf(found, req.GetView()), NextPageToken: next}, nil
}

// CommitSchema implements pubsubpb.SchemaServiceServer.
func (r *schemaRegistry) CommitSchema(_ context.Context, req *pubsubpb.CommitSchemaRequest) (*pubsubpb.Schema, error) {
	name := req.GetName()
	revisions, err := r.revisions(name)
	if err != nil {
		return nil, err
	}
	if was, is := newestRevision(revisions).schema.GetType(), req.GetSchema().GetType(); was != is {
		return nil, status.Errorf(codes.InvalidArgument, "schema.type is %v, but the type of %s is %v", is, name, was)
	}
	compiled, err := compileBody(req.GetSchema())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) == 0 { // deleted meanwhile
		return nil, notFound("schema", name)
	}
	for _, revision := range r.byName[name] {
		if revision.compiled != nil && revision.schema.GetDefinition() == req.GetSchema().GetDefinition() {
			return nil, alreadyExists("schema revision with this definition", name+"@"+revision.schema.GetRevisionId())
		}
	}
	for _, revision := range r.byName[name] {
		if revision.compiled == nil {
			continue
		}
		if err := compiled.compatibleWith(revision.compiled); err != nil {
			return nil, err
		}
	}
	if err := r.checkRoom(name); err != nil {
		return nil, err
	}
	return r.add(name, req.GetSchema(), compiled), nil
}

// RollbackSchema implements pubsubpb.SchemaServiceServer.
func (r *schemaRegistry) RollbackSchema(_ context.Context, req *pubsubpb.RollbackSchemaRequest) (*pubsubpb.Schema, error) {
	name := req.GetName()
	if _, _, err := parseName(schemas, name); err != nil {
		return nil, err
	}
	if req.GetRevisionId() == "" {
		return nil, status.Error(codes.InvalidArgument, "revision_id is empty, but must name the revision to roll back to")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) == 0 {
		return nil, notFound("schema", name)
	}
	index, err := revisionOf(name, r.byName[name], req.GetRevisionId())
	if err != nil {
		return nil, err
	}
	if err := r.checkRoom(name); err != nil {
		return nil, err
	}
	old := r.byName[name][index]
	return r.add(name, old.schema, old.compiled), nil
}

// DeleteSchemaRevision implements pubsubpb.SchemaServiceServer. It returns the
// newest revision that is left.
func (r *schemaRegistry) DeleteSchemaRevision(
	_ context.Context, req *pubsubpb.DeleteSchemaRevisionRequest,
) (*pubsubpb.Schema, error) {
	name, id, ok := strings.Cut(req.GetName(), "@")
	if _, _, err := parseName(schemas, name); err != nil {
		return nil, err
	}
	if !ok || id == "" {
		return nil, status.Errorf(codes.InvalidArgument, "name %q has no revision, which follows after an @", req.GetName())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) == 0 {
		return nil, notFound("schema", name)
	}
	index, err := revisionOf(name, r.byName[name], id)
	if err != nil {
		return nil, err
	}
	if countRevisions(r.byName[name]) == 1 {
		return nil, status.Errorf(codes.FailedPrecondition, "revision %s is the last one of its schema; delete the schema instead", req.GetName())
	}
	revisions := slices.Clone(r.byName[name])
	place := proto.CloneOf(revisions[index].schema)
	place.Definition = ""
	revisions[index] = schemaRevision{schema: place}
	r.set(name, revisions)
	return viewOf(newestRevision(revisions).schema, pubsubpb.SchemaView_FULL), nil
}

// DeleteSchema implements pubsubpb.SchemaServiceServer. After that, topics with the
// schema refuse all messages.
func (r *schemaRegistry) DeleteSchema(_ context.Context, req *pubsubpb.DeleteSchemaRequest) (*emptypb.Empty, error) {
	name := req.GetName()
	if _, _, err := parseName(schemas, name); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[name]) == 0 {
		return nil, notFound("schema", name)
	}
	r.set(name, nil)
	return &emptypb.Empty{}, nil
}

// ValidateSchema implements pubsubpb.SchemaServiceServer.
func (r *schemaRegistry) ValidateSchema(
	_ context.Context, req *pubsubpb.ValidateSchemaRequest,
) (*pubsubpb.ValidateSchemaResponse, error) {
	if _, err := parseProject(req.GetParent()); err != nil {
		return nil, err
	}
	if _, err := compileBody(req.GetSchema()); err != nil {
		return nil, err
	}
	return &pubsubpb.ValidateSchemaResponse{}, nil
}

// ValidateMessage implements pubsubpb.SchemaServiceServer. Its error says what is
// wrong with the message, unlike an error of Publish.
func (r *schemaRegistry) ValidateMessage(
	_ context.Context, req *pubsubpb.ValidateMessageRequest,
) (*pubsubpb.ValidateMessageResponse, error) {
	if _, err := parseProject(req.GetParent()); err != nil {
		return nil, err
	}
	var compiled *compiledSchema
	switch spec := req.GetSchemaSpec().(type) {
	case *pubsubpb.ValidateMessageRequest_Name:
		revision, err := r.find(spec.Name)
		if err != nil {
			return nil, err
		}
		compiled = revision.compiled
	case *pubsubpb.ValidateMessageRequest_Schema:
		var err error
		if compiled, err = compileBody(spec.Schema); err != nil {
			return nil, err
		}
	default:
		return nil, status.Error(codes.InvalidArgument, "schema_spec is empty, but must be a name or a schema")
	}
	if err := compiled.validate(req.GetMessage(), req.GetEncoding()); err != nil {
		return nil, err
	}
	return &pubsubpb.ValidateMessageResponse{}, nil
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

// revisions returns the revisions of a schema, oldest first, including deleted ones.
// At least one is not deleted.
func (r *schemaRegistry) revisions(name string) ([]schemaRevision, error) {
	if _, _, err := parseName(schemas, name); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.byName[name]) == 0 {
		return nil, notFound("schema", name)
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

// checkRoom returns an error if a schema has no room for one more revision. It is
// called with mu held.
func (r *schemaRegistry) checkRoom(name string) error {
	if countRevisions(r.byName[name]) >= maxRevisions {
		return status.Errorf(codes.ResourceExhausted, "schema %s has %d revisions, which is the maximum; delete one first", name, maxRevisions)
	}
	return nil
}

// add adds a definition as the newest revision of a schema, and returns it. It is
// called with mu held.
func (r *schemaRegistry) add(name string, s *pubsubpb.Schema, compiled *compiledSchema) *pubsubpb.Schema {
	revisions := r.byName[name]
	id := newRevisionID()
	for revisionIndex(revisions, id) >= 0 {
		id = newRevisionID()
	}
	added := &pubsubpb.Schema{
		Name:               name,
		Type:               s.GetType(),
		Definition:         s.GetDefinition(),
		RevisionId:         id,
		RevisionCreateTime: timestamppb.New(r.now()),
	}
	r.set(name, append(slices.Clip(revisions), schemaRevision{schema: added, compiled: compiled}))
	return viewOf(added, pubsubpb.SchemaView_FULL)
}

// newRevisionID returns 8 random hex digits.
func newRevisionID() string { return fmt.Sprintf("%08x", uuid.New().ID()) }

// set replaces the revisions of a schema. Without revisions, the schema is deleted.
// It is called with mu held.
func (r *schemaRegistry) set(name string, revisions []schemaRevision) {
	if len(revisions) == 0 {
		delete(r.byName, name)
	} else {
		r.byName[name] = revisions
	}
	if r.onChange != nil {
		r.onChange(name, revisionSchemas(revisions))
	}
}

// newestRevision returns the newest revision that is not deleted. There is always
// one.
func newestRevision(revisions []schemaRevision) schemaRevision {
	for _, revision := range slices.Backward(revisions) {
		if revision.compiled != nil {
			return revision
		}
	}
	return schemaRevision{}
}

// countRevisions counts the revisions that are not deleted.
func countRevisions(revisions []schemaRevision) int {
	n := 0
	for _, revision := range revisions {
		if revision.compiled != nil {
			n++
		}
	}
	return n
}

// revisionIndex returns the index of a revision, which may be deleted. It returns -1
// if there never was one.
func revisionIndex(revisions []schemaRevision, id string) int {
	return slices.IndexFunc(revisions, func(r schemaRevision) bool { return r.schema.GetRevisionId() == id })
}

// revisionOf returns the index of a revision. It returns NOT_FOUND if the revision is
// deleted or never existed.
func revisionOf(name string, revisions []schemaRevision, id string) (int, error) {
	index := revisionIndex(revisions, id)
	if index < 0 || revisions[index].compiled == nil {
		return 0, notFound("schema revision", name+"@"+id)
	}
	return index, nil
}

// revisionRange returns the indexes of the first and the last revision of a range,
// both inclusive. They may be deleted revisions. ok is false if the schema never had
// one of them.
func revisionRange(revisions []schemaRevision, settings *pubsubpb.SchemaSettings) (first, last int, ok bool) {
	first, last = 0, len(revisions)-1
	if id := settings.GetFirstRevisionId(); id != "" {
		first = revisionIndex(revisions, id)
	}
	if id := settings.GetLastRevisionId(); id != "" {
		last = revisionIndex(revisions, id)
	}
	return first, last, first >= 0 && last >= 0
}

func revisionSchemas(revisions []schemaRevision) []*pubsubpb.Schema {
	var all []*pubsubpb.Schema
	for _, revision := range revisions {
		all = append(all, revision.schema)
	}
	return all
}

// viewOf returns a copy of a schema. Only the FULL view has the definition.
func viewOf(s *pubsubpb.Schema, view pubsubpb.SchemaView) *pubsubpb.Schema {
	s = proto.CloneOf(s)
	if view != pubsubpb.SchemaView_FULL {
		s.Definition = ""
	}
	return s
}

func viewsOf(all []*pubsubpb.Schema, view pubsubpb.SchemaView) []*pubsubpb.Schema {
	var shown []*pubsubpb.Schema
	for _, s := range all {
		shown = append(shown, viewOf(s, view))
	}
	return shown
}
