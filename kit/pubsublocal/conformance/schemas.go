package conformance

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
)

// Three revisions of a schema. Year is removed and rating added, so that a message shows which
// revisions it fits.
const (
	filmV1 = `syntax = "proto3"; message Film { string title = 1; int32 year = 2; }`
	filmV2 = `syntax = "proto3"; message Film { string title = 1; }`
	filmV3 = `syntax = "proto3"; message Film { string title = 1; string rating = 3; }`
)

// schemas are the cases of section M about schemas and their revisions.
var schemas = []Case{
	{
		ID:       "M1",
		Sentence: "CreateSchema refuses a definition that does not parse; the name is {parent}/schemas/{schema_id}, that in the body is ignored.",
		Run: func(t *testing.T, e *Env) {
			name := e.Name("schemas")
			request := createSchemaRequest(name, filmV1)
			request.Schema.Name = e.Name("schemas")
			created, err := e.Schema.CreateSchema(t.Context(), request)
			must(t, err)
			want := []any{name, pubsubpb.Schema_PROTOCOL_BUFFER, filmV1}
			wantEqual(t, want, []any{created.GetName(), created.GetType(), created.GetDefinition()}, "created")
			got := getSchema(t, e, name)
			wantEqual(t, want, []any{got.GetName(), got.GetType(), got.GetDefinition()}, "GetSchema")
			wantNoSchema(t, e, request.GetSchema().GetName())

			for name, definition := range map[string]string{
				"empty":            "",
				"no protobuf":      "What a film.",
				"unfinished":       `syntax = "proto3"; message Film { string title = 1;`,
				"unknown type":     `syntax = "proto3"; message Film { Title title = 1; }`,
				"number 0":         `syntax = "proto3"; message Film { string title = 0; }`,
				"number twice":     `syntax = "proto3"; message Film { string title = 1; string rating = 1; }`,
				"unknown syntax":   `syntax = "proto4"; message Film { string title = 1; }`,
				"required, proto3": `syntax = "proto3"; message Film { required string title = 1; }`,
			} {
				t.Run(name, func(t *testing.T) {
					request := createSchemaRequest(e.Name("schemas"), definition)
					WantCode(t, errOf(e.Schema.CreateSchema(t.Context(), request)), codes.InvalidArgument)
					wantNoSchema(t, e, request.GetParent()+"/schemas/"+request.GetSchemaId())
				})
			}
			t.Run("no type", func(t *testing.T) {
				request := createSchemaRequest(e.Name("schemas"), filmV1)
				request.Schema.Type = pubsubpb.Schema_TYPE_UNSPECIFIED
				WantCode(t, errOf(e.Schema.CreateSchema(t.Context(), request)), codes.InvalidArgument)
			})
		},
	},
	{
		ID:       "M2",
		Sentence: "A protobuf definition is one file of proto2, proto3 or edition 2023 with exactly one top-level message and no imports.",
		Run: func(t *testing.T, e *Env) {
			for _, test := range []struct {
				name, definition string
				want             codes.Code
			}{
				{"proto2", `syntax = "proto2"; message Film { required string title = 1; optional int32 year = 2; }`, codes.OK},
				{"proto3", filmV1, codes.OK},
				{"edition 2023", `edition = "2023"; message Film { string title = 1; }`, codes.OK},
				{"package", `syntax = "proto3"; package films.v1; message Film { string title = 1; }`, codes.OK},
				{
					"nested message and enum",
					`syntax = "proto3"; message Film { message Role { string name = 1; } enum Kind { KIND_UNSPECIFIED = 0; } Role role = 1; Kind kind = 2; }`,
					codes.OK,
				},
				{"two messages", `syntax = "proto3"; message Film { string title = 1; } message Actor { string name = 1; }`, codes.InvalidArgument},
				{"no message", `syntax = "proto3"; enum Kind { KIND_UNSPECIFIED = 0; }`, codes.InvalidArgument},
				{
					"import",
					`syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Film { google.protobuf.Timestamp shown = 1; }`,
					codes.InvalidArgument,
				},
				{"import of nothing", `syntax = "proto3"; import "films.proto"; message Film { string title = 1; }`, codes.InvalidArgument},
			} {
				t.Run(test.name, func(t *testing.T) {
					_, err := e.Schema.CreateSchema(t.Context(), createSchemaRequest(e.Name("schemas"), test.definition))
					WantCode(t, err, test.want)
				})
			}
		},
	},
	{
		ID:       "M3",
		Sentence: "A definition over 300 KB is INVALID_ARGUMENT.",
		Run: func(t *testing.T, e *Env) {
			for _, test := range []struct {
				bytes int // not between 300,000 and 307,200, because the documented 300 KB may be either
				want  codes.Code
			}{
				{299_000, codes.OK},
				{300*1024 + 1, codes.InvalidArgument},
			} {
				t.Run(fmt.Sprint(test.bytes), func(t *testing.T) {
					definition := filmV1 + "\n//" + strings.Repeat("x", test.bytes-len(filmV1)-len("\n//"))
					WantCode(t, errOf(e.Schema.CreateSchema(t.Context(), createSchemaRequest(e.Name("schemas"), definition))), test.want)
					schema := newSchema(t, e, filmV1)
					WantCode(t, errOf(commitSchema(t, e, schema.GetName(), definition)), test.want)
				})
			}
		},
	},
	{
		ID:       "M4",
		Sentence: "A schema has at most 20 revisions; a further commit is RESOURCE_EXHAUSTED.",
		Run: func(t *testing.T, e *Env) {
			name, first := fullSchema(t, e)
			WantCode(t, errOf(commitSchema(t, e, name, filmRevision(21))), codes.ResourceExhausted)
			wantEqual(t, 20, len(revisionsOf(t, e, name, pubsubpb.SchemaView_BASIC)), "number of revisions")
			deleteRevision(t, e, name+"@"+first)
			if _, err := commitSchema(t, e, name, filmRevision(21)); err != nil {
				t.Errorf("CommitSchema after deleting a revision: %v", err)
			}
		},
	},
	{
		ID:       "M5",
		Sentence: "A revision id is 8 hexadecimal digits made by the server; revision_create_time is its time.",
		Run: func(t *testing.T, e *Env) {
			request := createSchemaRequest(e.Name("schemas"), filmV1)
			request.Schema.RevisionId = "deadbeef"
			first, err := e.Schema.CreateSchema(t.Context(), request)
			must(t, err)
			second := newRevision(t, e, first.GetName(), filmV2)
			for _, got := range []*pubsubpb.Schema{first, second} {
				if id := got.GetRevisionId(); !regexp.MustCompile(`^[0-9a-f]{8}$`).MatchString(id) || id == "deadbeef" {
					t.Errorf("got revision id %q, want 8 hexadecimal digits of the server", id)
				}
				if age := time.Since(got.GetRevisionCreateTime().AsTime()); age.Abs() > time.Minute {
					t.Errorf("got revision_create_time %v ago, want now", age)
				}
			}
			if first.GetRevisionId() == second.GetRevisionId() {
				t.Errorf("got revision id %q twice", first.GetRevisionId())
			}
			if first.GetRevisionCreateTime().AsTime().After(second.GetRevisionCreateTime().AsTime()) {
				t.Error("the second revision is older than the first")
			}
		},
	},
	{
		ID: "M6",
		Sentence: "CommitSchema makes the newest revision; an incompatible definition is INVALID_ARGUMENT, " +
			"the same definition again ALREADY_EXISTS.",
		Run: func(t *testing.T, e *Env) {
			schema := newSchema(t, e, filmV1)
			second := newRevision(t, e, schema.GetName(), filmV2)
			want := []any{schema.GetName(), second.GetRevisionId(), filmV2}
			check := func(t *testing.T) {
				t.Helper()
				got := getSchema(t, e, schema.GetName())
				wantEqual(t, want, []any{got.GetName(), got.GetRevisionId(), got.GetDefinition()}, "newest revision")
				wantEqual(t, 2, len(revisionsOf(t, e, schema.GetName(), pubsubpb.SchemaView_BASIC)), "number of revisions")
			}
			check(t)
			for _, test := range []struct {
				name   string
				change *pubsubpb.Schema
				want   codes.Code
			}{
				{
					"incompatible",
					&pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: `syntax = "proto3"; message Film { int32 title = 1; }`},
					codes.InvalidArgument,
				},
				{"no protobuf", &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: "What a film."}, codes.InvalidArgument},
				{"the same again", &pubsubpb.Schema{Type: pubsubpb.Schema_PROTOCOL_BUFFER, Definition: filmV2}, codes.AlreadyExists},
			} {
				t.Run(test.name, func(t *testing.T) {
					test.change.Name = schema.GetName()
					_, err := e.Schema.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{Name: schema.GetName(), Schema: test.change})
					WantCode(t, err, test.want)
					check(t)
				})
			}
		},
	},
	{
		ID: "M7",
		Sentence: "A commit must be compatible with every revision: optional fields come and go; a number keeps its type, cardinality " +
			"and name.",
		Run: func(t *testing.T, e *Env) {
			proto2 := func(fields string) string { return `syntax = "proto2"; message Film { ` + fields + ` }` }
			proto3 := func(fields string) string { return `syntax = "proto3"; message Film { ` + fields + ` }` }
			for _, test := range []struct {
				name     string
				existing []string
				commit   string
				want     codes.Code
			}{
				{"field added", []string{filmV2}, filmV1, codes.OK},
				{"field removed", []string{filmV1}, filmV2, codes.OK},
				{"field comes back", []string{filmV1, filmV2}, proto3("string title = 1; int32 year = 2; string rating = 3;"), codes.OK},
				{"repeated field added", []string{filmV2}, proto3("string title = 1; repeated string tags = 4;"), codes.OK},
				{"type changed", []string{filmV1}, proto3("string title = 1; int64 year = 2;"), codes.InvalidArgument},
				{"cardinality changed", []string{filmV1}, proto3("string title = 1; repeated int32 year = 2;"), codes.InvalidArgument},
				{"name changed", []string{filmV1}, proto3("string title = 1; int32 made = 2;"), codes.InvalidArgument},
				{"nested field changed",
					[]string{proto3("message Role { string name = 1; } Role role = 1;")},
					proto3("message Role { int32 name = 1; } Role role = 1;"), codes.InvalidArgument},
				{"number of an older revision with another type", []string{filmV1, filmV2}, proto3("string title = 1; string rating = 2;"), codes.InvalidArgument},
				{"number of an older revision with another name", []string{filmV1, filmV2}, proto3("string title = 1; int32 made = 2;"), codes.InvalidArgument},
				{"required field added", []string{proto2("optional string title = 1;")},
					proto2("optional string title = 1; required int32 year = 2;"), codes.InvalidArgument},
				{"required field removed", []string{proto2("optional string title = 1; required int32 year = 2;")},
					proto2("optional string title = 1;"), codes.InvalidArgument},
			} {
				t.Run(test.name, func(t *testing.T) {
					name := newSchema(t, e, test.existing[0]).GetName()
					for _, definition := range test.existing[1:] {
						newRevision(t, e, name, definition)
					}
					WantCode(t, errOf(commitSchema(t, e, name, test.commit)), test.want)
				})
			}
			t.Run("a deleted revision counts no more", func(t *testing.T) {
				first := newSchema(t, e, filmV1)
				newRevision(t, e, first.GetName(), filmV2)
				deleteRevision(t, e, first.GetName()+"@"+first.GetRevisionId())
				if _, err := commitSchema(t, e, first.GetName(), proto3("string title = 1; string rating = 2;")); err != nil {
					t.Errorf("CommitSchema: %v", err)
				}
			})
		},
	},
	{
		ID:       "M9",
		Sentence: "DeleteSchemaRevision needs name@revision; the last remaining one is FAILED_PRECONDITION.",
		Run: func(t *testing.T, e *Env) {
			first := newSchema(t, e, filmV1)
			name := first.GetName()
			second := newRevision(t, e, name, filmV2)
			remove := func(name string) error {
				return errOf(e.Schema.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: name}))
			}
			WantCode(t, remove(name), codes.InvalidArgument)
			WantCode(t, remove(name+"@"+unusedRevision([]string{first.GetRevisionId(), second.GetRevisionId()})), codes.NotFound)
			deleteRevision(t, e, name+"@"+second.GetRevisionId())
			wantNoSchema(t, e, name+"@"+second.GetRevisionId())
			WantCode(t, remove(name+"@"+first.GetRevisionId()), codes.FailedPrecondition)
			if got := getSchema(t, e, name); got.GetRevisionId() != first.GetRevisionId() {
				t.Errorf("got revision %q, want %q, which remains", got.GetRevisionId(), first.GetRevisionId())
			}
		},
	},
	{
		ID: "M10",
		Sentence: "GetSchema gives the newest or the named revision, by default in full; lists come by default without definitions, " +
			"revisions newest first.",
		Run: func(t *testing.T, e *Env) {
			first := newSchema(t, e, filmV1)
			name := first.GetName()
			second := newRevision(t, e, name, filmV2)
			for _, test := range []struct {
				name       string
				view       pubsubpb.SchemaView
				revision   *pubsubpb.Schema
				definition string
			}{
				{name, pubsubpb.SchemaView_SCHEMA_VIEW_UNSPECIFIED, second, filmV2},
				{name, pubsubpb.SchemaView_FULL, second, filmV2},
				{name, pubsubpb.SchemaView_BASIC, second, ""},
				{name + "@" + first.GetRevisionId(), pubsubpb.SchemaView_SCHEMA_VIEW_UNSPECIFIED, first, filmV1},
				{name + "@" + first.GetRevisionId(), pubsubpb.SchemaView_BASIC, first, ""},
				{name + "@" + second.GetRevisionId(), pubsubpb.SchemaView_FULL, second, filmV2},
			} {
				got, err := e.Schema.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: test.name, View: test.view})
				if err != nil {
					t.Fatalf("GetSchema(%q, %v): %v", test.name, test.view, err)
				}
				// The documentation does not say whether the name includes the revision.
				if got.GetDefinition() != test.definition || got.GetType() != pubsubpb.Schema_PROTOCOL_BUFFER || !strings.HasPrefix(got.GetName(), name) {
					t.Errorf("GetSchema(%q, %v): got %v, want definition %q", test.name, test.view, got, test.definition)
				}
				if test.definition != "" && got.GetRevisionId() != test.revision.GetRevisionId() {
					t.Errorf("GetSchema(%q, %v): got revision %q, want %q", test.name, test.view, got.GetRevisionId(), test.revision.GetRevisionId())
				}
			}
			wantNoSchema(t, e, name+"@"+unusedRevision([]string{first.GetRevisionId(), second.GetRevisionId()}))

			definitions := func(schemas []*pubsubpb.Schema) (all []string) {
				for _, s := range schemas {
					if strings.HasPrefix(s.GetName(), name) {
						all = append(all, s.GetDefinition())
					}
				}
				return all
			}
			for _, test := range []struct {
				view            pubsubpb.SchemaView
				list, revisions []string
			}{
				{pubsubpb.SchemaView_SCHEMA_VIEW_UNSPECIFIED, []string{""}, []string{"", ""}},
				{pubsubpb.SchemaView_BASIC, []string{""}, []string{"", ""}},
				{pubsubpb.SchemaView_FULL, []string{filmV2}, []string{filmV2, filmV1}},
			} {
				list := allSchemas(t, e.Schema.ListSchemas(t.Context(), &pubsubpb.ListSchemasRequest{Parent: "projects/" + e.Project, View: test.view}))
				wantEqual(t, test.list, definitions(list), "ListSchemas, %v", test.view)
				wantEqual(t, test.revisions, definitions(revisionsOf(t, e, name, test.view)), "ListSchemaRevisions, %v", test.view)
			}
		},
	},
}
