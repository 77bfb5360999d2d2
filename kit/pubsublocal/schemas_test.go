package pubsublocal

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	testProject = "projects/p"
	testSchema  = "projects/p/schemas/events"
	wantHex     = `^[0-9a-f]{8}$`
)

var schemaTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// revision returns a definition with the fields 1 to n. All of them are
// compatible.
func revision(n int) *pubsubpb.Schema {
	definition := `syntax = "proto3"; message M { `
	for i := range n {
		definition += fmt.Sprintf("int32 f%[1]d = %[1]d; ", i+1)
	}
	return &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: definition + "}"}
}

// newTestSchemas returns a registry with the schema testSchema and n revisions,
// and their ids.
func newTestSchemas(t *testing.T, revisions int) (r *schemaRegistry, ids []string) {
	t.Helper()
	r = newSchemaRegistry(func() time.Time { return schemaTime })
	for i := range revisions {
		var s *pubsubpb.Schema
		var err error
		if i == 0 {
			s, err = r.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{Parent: testProject, SchemaId: "events", Schema: revision(1)})
		} else {
			s, err = r.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{Name: testSchema, Schema: revision(i + 1)})
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.GetRevisionId())
	}
	return r, ids
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

// A schema is created under its name with an id and a time, or refused (M1, M5,
// M20, M21, A1–A4).
func TestCreateSchema(t *testing.T) {
	compiled := &pubsubpb.Schema{
		Type:          pubsubpb.Schema_PROTOCOL_BUFFER,
		Configuration: &pubsubpb.Schema_CompiledProtoSchema{CompiledProtoSchema: &pubsubpb.CompiledProtoSchema{}},
	}
	bad := &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: "message"}
	named := revision(1)
	named.Name, named.RevisionId = "projects/other/schemas/other", "00000000"
	tests := []struct {
		name       string
		parent, id string
		schema     *pubsubpb.Schema
		want       codes.Code
	}{
		{"good", testProject, "other", revision(1), codes.OK},
		{"a name in the body is ignored", testProject, "other", named, codes.OK},
		{"the name in another project", "projects/q", "events", revision(1), codes.OK},
		{"the name exists", testProject, "events", revision(1), codes.AlreadyExists},
		{"the name exists, and the definition is bad", testProject, "events", bad, codes.AlreadyExists},
		{"no id", testProject, "", revision(1), codes.InvalidArgument},
		{"bad id", testProject, "1st", revision(1), codes.InvalidArgument},
		{"reserved id", testProject, "google-events", revision(1), codes.InvalidArgument},
		{"id with a revision", testProject, "events@12345678", revision(1), codes.InvalidArgument},
		{"bad parent", "p", "other", revision(1), codes.InvalidArgument},
		{"no schema", testProject, "other", nil, codes.InvalidArgument},
		{"bad definition", testProject, "other", bad, codes.InvalidArgument},
		{"no definition", testProject, "other", &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER}, codes.InvalidArgument},
		{"no type", testProject, "other", &pubsubpb.Schema{Definition: revision(1).GetDefinition()}, codes.InvalidArgument},
		{"Avro", testProject, "other", &pubsubpb.Schema{Type: pubsubpb.Schema_AVRO, Definition: "{}"}, codes.Unimplemented},
		{"compiled", testProject, "other", compiled, codes.Unimplemented},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := newTestSchemas(t, 1)
			got, err := r.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{Parent: tt.parent, SchemaId: tt.id, Schema: tt.schema})
			wantCode(t, "CreateSchema()", err, tt.want)
			if tt.want != codes.OK {
				if len(r.dump()) != 1 {
					t.Errorf("a refused schema was stored: %v", r.dump())
				}
				return
			}
			want := proto.CloneOf(tt.schema)
			want.Name, want.RevisionId, want.RevisionCreateTime = tt.parent+"/schemas/"+tt.id, got.GetRevisionId(), timestamppb.New(schemaTime)
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("CreateSchema() (-want +got):\n%s", diff)
			}
			if id := got.GetRevisionId(); !regexp.MustCompile(wantHex).MatchString(id) || id == "00000000" {
				t.Errorf("revision_id = %q, want 8 hex digits of the server", id)
			}
		})
	}
}

// A commit becomes the newest revision, or changes nothing (M6, M7).
func TestCommitSchema(t *testing.T) {
	incompatible := func(definition string) *pubsubpb.Schema {
		return &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: definition}
	}
	tests := []struct {
		name   string
		target string
		schema *pubsubpb.Schema
		want   codes.Code
	}{
		{"good", testSchema, revision(4), codes.OK},
		{"incompatible with all", testSchema, incompatible(`syntax = "proto3"; message M { string f1 = 1; }`), codes.InvalidArgument},
		{"incompatible with an old one only", testSchema, incompatible(`syntax = "proto3"; message M { string f2 = 2; }`), codes.InvalidArgument},
		{"the newest again", testSchema, revision(1), codes.AlreadyExists},
		{"an old one again", testSchema, revision(2), codes.AlreadyExists},
		{"another type", testSchema, &pubsubpb.Schema{Type: pubsubpb.Schema_AVRO, Definition: "{}"}, codes.InvalidArgument},
		{"no type", testSchema, &pubsubpb.Schema{Definition: revision(4).GetDefinition()}, codes.InvalidArgument},
		{"no schema", testSchema, nil, codes.InvalidArgument},
		{"bad definition", testSchema, incompatible("message"), codes.InvalidArgument},
		{"missing schema", "projects/p/schemas/missing", revision(4), codes.NotFound},
		{"name with a revision", testSchema + "@12345678", revision(4), codes.InvalidArgument},
		{"bad name", "events", revision(4), codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newSchemaRegistry(func() time.Time { return schemaTime })
			for _, n := range []int{2, 1} { // so that only the old revision has field 2
				s := revision(n)
				s.Name, s.RevisionId = testSchema, fmt.Sprintf("%08x", n)
				if err := r.restore(s); err != nil {
					t.Fatal(err)
				}
			}
			want := "00000001"
			got, err := r.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{Name: tt.target, Schema: tt.schema})
			wantCode(t, "CommitSchema()", err, tt.want)
			if tt.want == codes.OK {
				want = got.GetRevisionId()
			}
			newest, err := r.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: testSchema})
			if err != nil || newest.GetRevisionId() != want {
				t.Errorf("the newest revision is %v, %v, want %s", newest, err, want)
			}
		})
	}
}

// A schema has at most 20 revisions. A further commit or rollback is refused
// until one is deleted (M4).
func TestSchemaRevisionLimit(t *testing.T) {
	r, ids := newTestSchemas(t, maxRevisions)
	commit := &pubsubpb.CommitSchemaRequest{Name: testSchema, Schema: revision(maxRevisions + 1)}
	_, err := r.CommitSchema(t.Context(), commit)
	wantCode(t, "CommitSchema()", err, codes.ResourceExhausted)
	_, err = r.RollbackSchema(t.Context(), &pubsubpb.RollbackSchemaRequest{Name: testSchema, RevisionId: ids[0]})
	wantCode(t, "RollbackSchema()", err, codes.ResourceExhausted)
	_, err = r.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: testSchema + "@" + ids[3]})
	wantCode(t, "DeleteSchemaRevision()", err, codes.OK)
	_, err = r.CommitSchema(t.Context(), commit)
	wantCode(t, "CommitSchema() after a deletion", err, codes.OK)
}

// A rollback copies an old revision as the newest one. The old one stays (M8).
func TestRollbackSchema(t *testing.T) {
	r, ids := newTestSchemas(t, 3)
	got, err := r.RollbackSchema(t.Context(), &pubsubpb.RollbackSchemaRequest{Name: testSchema, RevisionId: ids[0]})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetDefinition() != revision(1).GetDefinition() || got.GetRevisionId() == ids[0] {
		t.Errorf("RollbackSchema() = %v, want the definition of %s with another id", got, ids[0])
	}
	newest, err := r.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: testSchema})
	if err != nil || newest.GetRevisionId() != got.GetRevisionId() {
		t.Errorf("the newest revision is %v, %v, want %s", newest, err, got.GetRevisionId())
	}
	if n := len(r.dump()); n != 4 {
		t.Errorf("there are %d revisions, want 4", n)
	}
	for _, tt := range []struct {
		name, id string
		want     codes.Code
	}{
		{testSchema, "", codes.InvalidArgument},
		{testSchema, "missing", codes.NotFound},
		{"projects/p/schemas/missing", ids[0], codes.NotFound},
		{testSchema + "@" + ids[0], ids[0], codes.InvalidArgument},
	} {
		_, err := r.RollbackSchema(t.Context(), &pubsubpb.RollbackSchemaRequest{Name: tt.name, RevisionId: tt.id})
		wantCode(t, fmt.Sprintf("RollbackSchema(%s, %s)", tt.name, tt.id), err, tt.want)
	}
}

// A revision is deleted by name@revision. The last one cannot be deleted (M9).
func TestDeleteSchemaRevision(t *testing.T) {
	r, ids := newTestSchemas(t, 3)
	for _, tt := range []struct {
		name string
		want codes.Code
	}{
		{testSchema, codes.InvalidArgument},
		{testSchema + "@", codes.InvalidArgument},
		{testSchema + "@missing", codes.NotFound},
		{"projects/p/schemas/missing@" + ids[0], codes.NotFound},
		{"events@" + ids[0], codes.InvalidArgument},
		{testSchema + "@" + ids[2], codes.OK},
		{testSchema + "@" + ids[2], codes.NotFound},
		{testSchema + "@" + ids[0], codes.OK},
		{testSchema + "@" + ids[1], codes.FailedPrecondition},
	} {
		got, err := r.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: tt.name})
		wantCode(t, "DeleteSchemaRevision("+tt.name+")", err, tt.want)
		if err == nil && got.GetRevisionId() != ids[1] {
			t.Errorf("DeleteSchemaRevision(%s) = %v, want the newest one then, %s", tt.name, got, ids[1])
		}
	}
	for i, want := range []codes.Code{codes.NotFound, codes.OK, codes.NotFound} {
		_, err := r.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: testSchema + "@" + ids[i]})
		wantCode(t, fmt.Sprintf("GetSchema(revision %d)", i), err, want)
		_, err = r.RollbackSchema(t.Context(), &pubsubpb.RollbackSchemaRequest{Name: testSchema, RevisionId: ids[i]})
		wantCode(t, fmt.Sprintf("RollbackSchema(revision %d)", i), err, want)
	}
}

// GetSchema returns one revision, with or without its definition (M10).
func TestGetSchema(t *testing.T) {
	r, ids := newTestSchemas(t, 3)
	tests := []struct {
		name       string
		request    *pubsubpb.GetSchemaRequest
		wantID     string
		definition bool
		want       codes.Code
	}{
		{"newest", &pubsubpb.GetSchemaRequest{Name: testSchema}, ids[2], true, codes.OK},
		{"full", &pubsubpb.GetSchemaRequest{Name: testSchema, View: pubsubpb.SchemaView_FULL}, ids[2], true, codes.OK},
		{"basic", &pubsubpb.GetSchemaRequest{Name: testSchema, View: pubsubpb.SchemaView_BASIC}, ids[2], false, codes.OK},
		{"a revision", &pubsubpb.GetSchemaRequest{Name: testSchema + "@" + ids[0]}, ids[0], true, codes.OK},
		{"missing", &pubsubpb.GetSchemaRequest{Name: "projects/p/schemas/missing"}, "", false, codes.NotFound},
		{"missing revision", &pubsubpb.GetSchemaRequest{Name: testSchema + "@missing"}, "", false, codes.NotFound},
		{"bad name", &pubsubpb.GetSchemaRequest{Name: "projects/p/topics/events"}, "", false, codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := r.GetSchema(t.Context(), tt.request)
			wantCode(t, "GetSchema()", err, tt.want)
			if got.GetRevisionId() != tt.wantID || (got.GetDefinition() != "") != tt.definition {
				t.Errorf("GetSchema() = %v, want revision %q, with definition: %v", got, tt.wantID, tt.definition)
			}
			if err == nil && got.GetName() != testSchema {
				t.Errorf("name = %q, want %q", got.GetName(), testSchema)
			}
		})
	}
}

// ListSchemas returns the schemas of one project, each with its newest revision
// and without a definition, by name and in pages (A9, A10, M10).
func TestListSchemas(t *testing.T) {
	r, ids := newTestSchemas(t, 2)
	for _, name := range []string{"projects/p/schemas/zzz", "projects/p/schemas/aaa", "projects/pp/schemas/other"} {
		s := revision(1)
		s.Name, s.RevisionId = name, "00000001"
		if err := r.restore(s); err != nil {
			t.Fatal(err)
		}
	}
	list := func(ctx context.Context, view pubsubpb.SchemaView) (got [][]string) {
		for token, first := "", true; first || token != ""; first = false {
			response, err := r.ListSchemas(ctx, &pubsubpb.ListSchemasRequest{Parent: testProject, View: view, PageSize: 2, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range response.GetSchemas() {
				names = append(names, s.GetName()+"@"+s.GetRevisionId())
				if got, want := s.GetDefinition() != "", view == pubsubpb.SchemaView_FULL; got != want {
					t.Errorf("view %v has a definition: %v, want %v", view, got, want)
				}
			}
			got = append(got, names)
			token = response.GetNextPageToken()
		}
		return got
	}
	want := [][]string{{"projects/p/schemas/aaa@00000001", testSchema + "@" + ids[1]}, {"projects/p/schemas/zzz@00000001"}}
	for view := range pubsubpb.SchemaView_name {
		if diff := cmp.Diff(want, list(t.Context(), pubsubpb.SchemaView(view))); diff != "" {
			t.Errorf("ListSchemas(%v) (-want +got):\n%s", pubsubpb.SchemaView(view), diff)
		}
	}
	for _, req := range []*pubsubpb.ListSchemasRequest{
		{Parent: "p"}, {Parent: testProject, PageSize: -1}, {Parent: testProject, PageToken: "mine"},
	} {
		_, err := r.ListSchemas(t.Context(), req)
		wantCode(t, fmt.Sprintf("ListSchemas(%v)", req), err, codes.InvalidArgument)
	}
}

// ListSchemaRevisions returns the newest first, each once, even if others are
// added or deleted between two pages (M10, A10).
func TestListSchemaRevisions(t *testing.T) {
	r, ids := newTestSchemas(t, 5)
	list := func(req *pubsubpb.ListSchemaRevisionsRequest) (got []string, next string) {
		req.Name = testSchema
		response, err := r.ListSchemaRevisions(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range response.GetSchemas() {
			got = append(got, s.GetRevisionId())
			if got, want := s.GetDefinition() != "", req.GetView() == pubsubpb.SchemaView_FULL; got != want {
				t.Errorf("view %v has a definition: %v, want %v", req.GetView(), got, want)
			}
		}
		return got, response.GetNextPageToken()
	}
	all := []string{ids[4], ids[3], ids[2], ids[1], ids[0]}
	for view := range pubsubpb.SchemaView_name {
		got, _ := list(&pubsubpb.ListSchemaRevisionsRequest{View: pubsubpb.SchemaView(view)})
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("ListSchemaRevisions(%v) (-want +got):\n%s", pubsubpb.SchemaView(view), diff)
		}
	}

	first, token := list(&pubsubpb.ListSchemaRevisionsRequest{PageSize: 2})
	if diff := cmp.Diff(all[:2], first); diff != "" {
		t.Errorf("first page (-want +got):\n%s", diff)
	}
	if _, err := r.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{Name: testSchema, Schema: revision(6)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: testSchema + "@" + ids[3]}); err != nil {
		t.Fatal(err)
	}
	second, token := list(&pubsubpb.ListSchemaRevisionsRequest{PageSize: 3, PageToken: token})
	if diff := cmp.Diff(all[2:], second); diff != "" || token != "" {
		t.Errorf("second page, token %q (-want +got):\n%s", token, diff)
	}

	_, err := r.ListSchemaRevisions(t.Context(), &pubsubpb.ListSchemaRevisionsRequest{Name: "projects/p/schemas/missing"})
	wantCode(t, "ListSchemaRevisions(missing)", err, codes.NotFound)
	_, err = r.ListSchemaRevisions(t.Context(), &pubsubpb.ListSchemaRevisionsRequest{Name: testSchema, PageToken: "mine"})
	wantCode(t, "ListSchemaRevisions(bad token)", err, codes.InvalidArgument)
}

// A deleted schema is gone, and its name can be used again (A5, M18).
func TestDeleteSchema(t *testing.T) {
	r, _ := newTestSchemas(t, 2)
	settings := &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: pubsubpb.Encoding_JSON}
	if !r.exists(testSchema) {
		t.Error("exists() = false before the deletion")
	}
	for _, tt := range []struct {
		name string
		want codes.Code
	}{{testSchema, codes.OK}, {testSchema, codes.NotFound}, {"events", codes.InvalidArgument}} {
		_, err := r.DeleteSchema(t.Context(), &pubsubpb.DeleteSchemaRequest{Name: tt.name})
		wantCode(t, "DeleteSchema("+tt.name+")", err, tt.want)
	}
	if r.exists(testSchema) {
		t.Error("exists() = true after the deletion")
	}
	_, err := r.validate(settings, []byte("{}"))
	wantCode(t, "validate() after the deletion", err, codes.InvalidArgument)
	wantCode(t, "check() after the deletion", r.check(settings), codes.NotFound)
	_, err = r.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{Parent: testProject, SchemaId: "events", Schema: revision(1)})
	wantCode(t, "CreateSchema() after the deletion", err, codes.OK)
	if n := len(r.dump()); n != 1 {
		t.Errorf("the new schema has %d revisions, want 1", n)
	}
}

// Validation stores nothing. The schema is given by name or in the request
// (M17).
func TestValidateSchemaAndMessage(t *testing.T) {
	r, ids := newTestSchemas(t, 2)
	before := r.dump()
	for _, tt := range []struct {
		parent string
		schema *pubsubpb.Schema
		want   codes.Code
	}{
		{testProject, revision(1), codes.OK},
		{"p", revision(1), codes.InvalidArgument},
		{testProject, nil, codes.InvalidArgument},
		{testProject, &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: "message"}, codes.InvalidArgument},
		{testProject, &pubsubpb.Schema{Type: pubsubpb.Schema_AVRO, Definition: "{}"}, codes.Unimplemented},
	} {
		_, err := r.ValidateSchema(t.Context(), &pubsubpb.ValidateSchemaRequest{Parent: tt.parent, Schema: tt.schema})
		wantCode(t, fmt.Sprintf("ValidateSchema(%s, %v)", tt.parent, tt.schema), err, tt.want)
	}

	byName := func(name string) *pubsubpb.ValidateMessageRequest {
		return &pubsubpb.ValidateMessageRequest{Parent: testProject, SchemaSpec: &pubsubpb.ValidateMessageRequest_Name{Name: name}}
	}
	inline := func(s *pubsubpb.Schema) *pubsubpb.ValidateMessageRequest {
		return &pubsubpb.ValidateMessageRequest{Parent: testProject, SchemaSpec: &pubsubpb.ValidateMessageRequest_Schema{Schema: s}}
	}
	const json, binary = pubsubpb.Encoding_JSON, pubsubpb.Encoding_BINARY
	for _, tt := range []struct {
		name     string
		request  *pubsubpb.ValidateMessageRequest
		message  string
		encoding pubsubpb.Encoding
		want     codes.Code
	}{
		{"newest", byName(testSchema), `{"f2": 1}`, json, codes.OK},
		{"newest, binary", byName(testSchema), "\x10\x01", binary, codes.OK},
		{"newest, unknown field", byName(testSchema), `{"f3": 1}`, json, codes.InvalidArgument},
		{"a revision", byName(testSchema + "@" + ids[0]), `{"f2": 1}`, json, codes.InvalidArgument},
		{"missing", byName("projects/p/schemas/missing"), `{}`, json, codes.NotFound},
		{"bad name", byName("events"), `{}`, json, codes.InvalidArgument},
		{"inline", inline(revision(3)), `{"f3": 1}`, json, codes.OK},
		{"inline, unknown field", inline(revision(3)), `{"f4": 1}`, json, codes.InvalidArgument},
		{"inline, Avro", inline(&pubsubpb.Schema{Type: pubsubpb.Schema_AVRO, Definition: "{}"}), `{}`, json, codes.Unimplemented},
		{"no encoding", inline(revision(3)), `{}`, pubsubpb.Encoding_ENCODING_UNSPECIFIED, codes.InvalidArgument},
		{"no schema", &pubsubpb.ValidateMessageRequest{Parent: testProject}, `{}`, json, codes.InvalidArgument},
		{"no parent", &pubsubpb.ValidateMessageRequest{SchemaSpec: byName(testSchema).GetSchemaSpec()}, `{}`, json, codes.InvalidArgument},
	} {
		tt.request.Message, tt.request.Encoding = []byte(tt.message), tt.encoding
		_, err := r.ValidateMessage(t.Context(), tt.request)
		wantCode(t, "ValidateMessage("+tt.name+")", err, tt.want)
	}
	if diff := cmp.Diff(before, r.dump(), protocmp.Transform()); diff != "" {
		t.Errorf("validation changed schemas (-before +after):\n%s", diff)
	}
}

// A topic's settings name a schema, two revisions in order, and an encoding
// (M11).
func TestSchemaCheck(t *testing.T) {
	r, ids := newTestSchemas(t, 3)
	const json = pubsubpb.Encoding_JSON
	tests := []struct {
		name     string
		settings *pubsubpb.SchemaSettings
		want     codes.Code
	}{
		{"none", nil, codes.OK},
		{"all revisions", &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: json}, codes.OK},
		{"a range", &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: json, FirstRevisionId: ids[0], LastRevisionId: ids[2]}, codes.OK},
		{"one", &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: json, FirstRevisionId: ids[1], LastRevisionId: ids[1]}, codes.OK},
		{"empty range", &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: json, FirstRevisionId: ids[1], LastRevisionId: ids[0]},
			codes.InvalidArgument},
		{"no encoding", &pubsubpb.SchemaSettings{Schema: testSchema}, codes.InvalidArgument},
		{"unknown encoding", &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: 9}, codes.InvalidArgument},
		{"no schema", &pubsubpb.SchemaSettings{Encoding: json}, codes.InvalidArgument},
		{"bad name", &pubsubpb.SchemaSettings{Schema: "events", Encoding: json}, codes.InvalidArgument},
		{"deleted", &pubsubpb.SchemaSettings{Schema: deletedSchema, Encoding: json}, codes.InvalidArgument},
		{"missing", &pubsubpb.SchemaSettings{Schema: "projects/p/schemas/missing", Encoding: json}, codes.NotFound},
		{"missing first", &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: json, FirstRevisionId: "missing"}, codes.NotFound},
		{"missing last", &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: json, LastRevisionId: "missing"}, codes.NotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantCode(t, "check()", r.check(tt.settings), tt.want) })
	}
}

// validate returns the newest matching revision of the range, also directly
// after a change. If an end of the range is deleted, its neighbor is the end
// (M12, M19).
func TestSchemaValidateRange(t *testing.T) {
	r, ids := newTestSchemas(t, 5) // revision i+1 has the fields 1 to i+1
	for _, i := range []int{1, 3} {
		if _, err := r.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: testSchema + "@" + ids[i]}); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name        string
		first, last string
		data        string
		want        string // empty: refused
	}{
		{"the newest fits", "", "", `{"f1": 1}`, ids[4]},
		{"only the newest fits", "", "", `{"f5": 1}`, ids[4]},
		{"none fits", "", "", `{"f6": 1}`, ""},
		{"last", "", ids[2], `{"f1": 1}`, ids[2]},
		{"last is too old", "", ids[2], `{"f4": 1}`, ""},
		{"first", ids[2], "", `{"f1": 1}`, ids[4]},
		{"one", ids[2], ids[2], `{"f3": 1}`, ids[2]},
		{"deleted last", "", ids[3], `{"f3": 1}`, ids[2]},
		{"deleted last is not used", "", ids[3], `{"f4": 1}`, ""},
		{"deleted first", ids[1], ids[2], `{"f1": 1}`, ids[2]},
		{"all deleted", ids[3], ids[3], `{}`, ""},
		{"first never was", "missing", "", `{}`, ""},
		{"last never was", "", "missing", `{}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := r.validate(&pubsubpb.SchemaSettings{
				Schema: testSchema, Encoding: pubsubpb.Encoding_JSON, FirstRevisionId: tt.first, LastRevisionId: tt.last,
			}, []byte(tt.data))
			if got != tt.want {
				t.Errorf("validate() = %q, %v, want %q", got, err, tt.want)
			}
			const refused = "Invalid data in message: Message failed schema validation."
			if tt.want == "" && (status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != refused) {
				t.Errorf("validate() = %v, want INVALID_ARGUMENT %q", err, refused)
			}
		})
	}

	// An older revision is used if newer ones do not match: here the newest
	// lacks field 3.
	settings := &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: pubsubpb.Encoding_BINARY}
	rolledBack, err := r.RollbackSchema(t.Context(), &pubsubpb.RollbackSchemaRequest{Name: testSchema, RevisionId: ids[0]})
	if err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{"\x08\x01": rolledBack.GetRevisionId(), "\x18\x01": ids[4]} {
		if got, err := r.validate(settings, []byte(data)); got != want {
			t.Errorf("validate(%q) after the rollback = %q, %v, want %q", data, got, err, want)
		}
	}
}

// restore makes the same registry from what dump returns, including ranges with
// deleted ends.
func TestSchemaDumpAndRestore(t *testing.T) {
	r, ids := newTestSchemas(t, 4)
	_, err := r.CreateSchema(t.Context(), &pubsubpb.CreateSchemaRequest{Parent: testProject, SchemaId: "aaa", Schema: revision(1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: testSchema + "@" + ids[2]}); err != nil {
		t.Fatal(err)
	}
	again := newSchemaRegistry(time.Now)
	again.onChange = func(string, []*pubsubpb.Schema) { t.Error("restore called onChange") }
	for _, s := range r.dump() {
		if err := again.restore(s); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(r.dump(), again.dump(), protocmp.Transform()); diff != "" || len(again.dump()) != 5 {
		t.Errorf("dump() after restore (-want +got):\n%s", diff)
	}
	settings := &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: pubsubpb.Encoding_JSON, LastRevisionId: ids[2]}
	if got, err := again.validate(settings, []byte(`{"f2": 1}`)); got != ids[1] {
		t.Errorf("validate() after restore = %q, %v, want %q", got, err, ids[1])
	}

	wantCode(t, "restore(twice)", again.restore(r.dump()[0]), codes.AlreadyExists)
	for _, bad := range []*pubsubpb.Schema{
		{Name: "events", RevisionId: "00000001"},
		{Name: testSchema},
		{Name: testSchema, RevisionId: "00000001", Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: "message"},
	} {
		wantCode(t, fmt.Sprintf("restore(%v)", bad), again.restore(bad), codes.InvalidArgument)
	}
}

// onChange is called for each change with all revisions, and never without a
// change.
func TestSchemaOnChange(t *testing.T) {
	r := newSchemaRegistry(time.Now)
	var got []string
	r.onChange = func(name string, revisions []*pubsubpb.Schema) {
		line := name
		for _, s := range revisions {
			line += fmt.Sprintf(" %t", s.GetDefinition() != "")
		}
		got = append(got, line)
	}
	create := &pubsubpb.CreateSchemaRequest{Parent: testProject, SchemaId: "events", Schema: revision(1)}
	commit := &pubsubpb.CommitSchemaRequest{Name: testSchema, Schema: revision(2)}
	created, err := r.CreateSchema(t.Context(), create)
	wantCode(t, "CreateSchema()", err, codes.OK)
	_, err = r.CreateSchema(t.Context(), create)
	wantCode(t, "CreateSchema() again", err, codes.AlreadyExists)
	_, err = r.CommitSchema(t.Context(), commit)
	wantCode(t, "CommitSchema()", err, codes.OK)
	_, err = r.CommitSchema(t.Context(), commit)
	wantCode(t, "CommitSchema() again", err, codes.AlreadyExists)
	_, err = r.RollbackSchema(t.Context(), &pubsubpb.RollbackSchemaRequest{Name: testSchema, RevisionId: created.GetRevisionId()})
	wantCode(t, "RollbackSchema()", err, codes.OK)
	_, err = r.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: testSchema + "@" + created.GetRevisionId()})
	wantCode(t, "DeleteSchemaRevision()", err, codes.OK)
	_, err = r.DeleteSchema(t.Context(), &pubsubpb.DeleteSchemaRequest{Name: testSchema})
	wantCode(t, "DeleteSchema()", err, codes.OK)

	want := []string{
		testSchema + " true", testSchema + " true true", testSchema + " true true true", testSchema + " false true true", testSchema,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("onChange (-want +got):\n%s", diff)
	}
}

// A caller that changes a response does not change the schema.
func TestSchemaAnswersAreCopies(t *testing.T) {
	r, _ := newTestSchemas(t, 1)
	got, err := r.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: testSchema})
	if err != nil {
		t.Fatal(err)
	}
	got.Definition = "changed"
	if again, err := r.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: testSchema}); err != nil || again.GetDefinition() == "changed" {
		t.Errorf("GetSchema() = %v, %v, want the definition that was created", again, err)
	}
}

// Messages are validated while revisions are added and deleted. The race
// detector checks this.
func TestSchemaConcurrency(t *testing.T) {
	r, ids := newTestSchemas(t, 1)
	settings := &pubsubpb.SchemaSettings{Schema: testSchema, Encoding: pubsubpb.Encoding_BINARY, FirstRevisionId: ids[0]}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if _, err := r.validate(settings, []byte("\x08\x01")); err != nil {
					t.Errorf("validate() = %v, want no error", err)
				}
			}
		})
	}
	for range 10 {
		added, err := r.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{Name: testSchema, Schema: revision(2)})
		if err != nil {
			t.Fatal(err)
		}
		name := testSchema + "@" + added.GetRevisionId()
		if _, err := r.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

// dump returns every revision of every schema, by name, oldest first. A deleted
// revision has no definition: restore needs it to keep the order. The caller must not
// change the messages.
func (r *schemaRegistry) dump() []*pubsubpb.Schema {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []*pubsubpb.Schema
	for _, name := range slices.Sorted(maps.Keys(r.byName)) {
		all = append(all, revisionSchemas(r.byName[name])...)
	}
	return all
}
