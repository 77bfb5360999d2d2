package pubsublocal

import (
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

func mustCompile(t testing.TB, definition string) *compiledSchema {
	t.Helper()
	c, err := compileSchema(definition)
	if err != nil {
		t.Fatalf("compileSchema(%s): %v", definition, err)
	}
	return c
}

// A valid definition is one file with one top-level message. All others are
// refused, and the error has the place.
func TestCompileSchema(t *testing.T) {
	tests := []struct {
		name       string
		definition string
		wantError  string // part of the error; empty: it compiles
	}{
		{"proto3", `syntax = "proto3"; package a.b; option go_package = "x"; message M { string s = 1; }`, ""},
		{"proto2", `syntax = "proto2"; message M { required string s = 1; optional group G = 2 { optional int32 n = 1; } }`, ""},
		{"no syntax is proto2", `message M { required string s = 1; }`, ""},
		{"edition 2023", `edition = "2023"; message M { string s = 1 [features.field_presence = IMPLICIT]; }`, ""},
		{"nested", `syntax = "proto3"; message M { enum E { ZERO = 0; } message N { M m = 1; } E e = 1; map<string, N> n = 2; }`, ""},
		{"message only", `syntax = "proto3"; message M {}`, ""},
		{"empty", ``, "empty"},
		{"only comments", `// nothing`, "no top-level message"},
		{"no message", `syntax = "proto3"; package p;`, "no top-level message"},
		{"two messages", "syntax = \"proto3\";\nmessage M {}\n  message N {}", "schema.proto:3:3: only one top-level message"},
		{"message and enum", `syntax = "proto3"; message M {} enum E { ZERO = 0; }`, "schema.proto:1:33: beside the top-level message"},
		{"only an enum", `syntax = "proto3"; enum E { ZERO = 0; }`, "beside the top-level message"},
		{"service", `syntax = "proto3"; message M {} service S { rpc Get(M) returns (M); }`, "beside the top-level message"},
		{"extension", `message M { extensions 5; } extend M { optional int32 x = 5; }`, "beside the top-level message"},
		{"import", "syntax = \"proto3\";\nimport \"google/protobuf/timestamp.proto\"; message M {}", "schema.proto:2:1: imports are not supported"},
		{"import of itself", `syntax = "proto3"; import "schema.proto"; message M {}`, "imports are not supported"},
		{"not protobuf", `{"type": "record"}`, "schema.proto:1:1: syntax error"},
		{"unclosed", "syntax = \"proto3\";\nmessage M {\n", "schema.proto:3:1: syntax error"},
		{"unknown type", "syntax = \"proto3\";\nmessage M {\n  Missing m = 1;\n}", "schema.proto:3:3: field M.m: unknown type Missing"},
		{"number used twice", `syntax = "proto3"; message M { string a = 1; string b = 1; }`, "have the same tag 1"},
		{"required in proto3", `syntax = "proto3"; message M { required string a = 1; }`, "required"},
		{"unknown option", `syntax = "proto3"; message M { option (mine) = 1; }`, "unknown extension mine"},
		{"unknown syntax", `syntax = "proto4"; message M {}`, "schema.proto:1:10:"},
		{"later edition", `edition = "2024"; message M {}`, "schema.proto:1:11:"},
		{"bytes that are no text", "syntax = \"proto3\"; message \xff {}", "invalid character"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := compileSchema(tt.definition)
			if tt.wantError == "" {
				if err != nil {
					t.Errorf("compileSchema() = %v, want no error", err)
				}
				return
			}
			if got := status.Code(err); got != codes.InvalidArgument || !strings.Contains(err.Error(), tt.wantError) {
				t.Errorf("compileSchema() = %v, want INVALID_ARGUMENT with %q", err, tt.wantError)
			}
		})
	}
}

// In both encodings, a message is refused if it has an unknown field at any depth, or lacks a required field. The cases
// M14 to M16 have the rest.
func TestSchemaValidate(t *testing.T) {
	const proto3 = `syntax = "proto3"; package p; message M {
		string some_text = 1; int32 number = 2; N child = 3; repeated N list = 4; map<string, N> by_name = 5; bytes raw = 6; E kind = 7;
		message N { int32 n = 1; N deeper = 2; }
		enum E { ZERO = 0; ONE = 1; }
	}`
	const proto2 = `syntax = "proto2"; message M {
		required string text = 1; optional N child = 2; optional group G = 3 { optional int32 n = 1; }
		message N { required int32 n = 1; }
		extensions 100 to 199; extend M { optional int32 extra = 100; }
	}`
	varint := func(number protowire.Number, v uint64) string {
		return string(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v))
	}
	text := func(number protowire.Number, v string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), v))
	}
	group := func(number protowire.Number, v string) string {
		return string(protowire.AppendGroup(protowire.AppendTag(nil, number, protowire.StartGroupType), number, []byte(v)))
	}
	const binary, json = pubsubpb.Encoding_BINARY, pubsubpb.Encoding_JSON
	tests := []struct {
		name       string
		definition string
		encoding   pubsubpb.Encoding
		data       string
		want       codes.Code
	}{
		{"all known", proto3, binary, text(1, "a") + varint(2, 7) + text(3, varint(1, 1)+text(2, varint(1, 2))) + text(6, "\xff"), codes.OK},
		{"nothing is a message", proto3, binary, "", codes.OK},
		{"list and map", proto3, binary, text(4, varint(1, 1)) + text(5, text(1, "k")+text(2, varint(1, 1))), codes.OK},
		{"enum value not named", proto3, binary, varint(7, 9), codes.OK},
		{"unknown behind a known one", proto3, binary, text(1, "a") + varint(9, 1), codes.InvalidArgument},
		{"unknown in a child", proto3, binary, text(3, varint(9, 1)), codes.InvalidArgument},
		{"unknown in a grandchild", proto3, binary, text(3, text(2, varint(9, 1))), codes.InvalidArgument},
		{"unknown in a list", proto3, binary, text(4, varint(1, 1)) + text(4, varint(9, 1)) + text(4, ""), codes.InvalidArgument},
		{"unknown in a map's value", proto3, binary, text(5, text(1, "k")+text(2, varint(9, 1))), codes.InvalidArgument},
		{"another wire type", proto3, binary, text(2, "a"), codes.InvalidArgument},
		{"required", proto2, binary, text(1, "a") + text(2, varint(1, 1)) + group(3, varint(1, 1)), codes.OK},
		{"required is missing", proto2, binary, text(2, varint(1, 1)), codes.InvalidArgument},
		{"required is missing in a child", proto2, binary, text(1, "a") + text(2, ""), codes.InvalidArgument},
		{"unknown in a group", proto2, binary, text(1, "a") + group(3, varint(9, 1)), codes.InvalidArgument},
		{"own extension", proto2, binary, text(1, "a") + varint(100, 1), codes.OK},
		{"unknown extension", proto2, binary, text(1, "a") + varint(101, 1), codes.InvalidArgument},

		{"nothing but braces", proto3, json, ` {} `, codes.OK},
		{"null", proto3, json, `{"child": null}`, codes.OK},
		{"unknown name in a child", proto3, json, `{"child": {"deeper": {"other": 1}}}`, codes.InvalidArgument},
		{"out of range", proto3, json, `{"number": 3000000000}`, codes.InvalidArgument},
		{"the same field twice", proto3, json, `{"some_text": "a", "someText": "a"}`, codes.InvalidArgument},
		{"empty is not JSON", proto3, json, ``, codes.InvalidArgument},
		{"a list", proto3, json, `[]`, codes.InvalidArgument},
		{"required in JSON", proto2, json, `{"text": "a", "[M.extra]": 1}`, codes.OK},
		{"required is missing in a child in JSON", proto2, json, `{"text": "a", "child": {}}`, codes.InvalidArgument},

		{"no encoding", proto3, pubsubpb.Encoding_ENCODING_UNSPECIFIED, `{}`, codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := mustCompile(t, tt.definition).validate([]byte(tt.data), tt.encoding)
			if got := status.Code(err); got != tt.want {
				t.Errorf("validate(%q) = %v, want %v", tt.data, err, tt.want)
			}
		})
	}
}

// The differences between two revisions that M7 does not have, in both directions.
func TestSchemaCompatible(t *testing.T) {
	const optional = `syntax = "proto2"; message M { optional int32 a = 1; }`
	with := func(body string) string { return `syntax = "proto3"; message M { ` + body + ` }` }
	tests := []struct {
		name     string
		one, two string
		want     codes.Code
	}{
		{"the same", with("int32 a = 1;"), with("int32 a = 1;"), codes.OK},
		{"nothing in common", with("int32 a = 1;"), with("string b = 2;"), codes.OK},
		{"a name with another number", with("int32 a = 1;"), with("string a = 2;"), codes.OK},
		{"presence", with("int32 a = 1;"), with("optional int32 a = 1;"), codes.OK},
		{"another syntax", with("int32 a = 1;"), optional, codes.OK},
		{"another package and message", with("N n = 1; message N {}"),
			`syntax = "proto3"; package p; message X { N n = 1; message N {} }`, codes.OK},
		{"enum values", with("E e = 1; enum E { ZERO = 0; }"), with("E e = 1; enum E { ZERO = 0; ONE = 1; }"), codes.OK},
		{"nested, one more", with("N n = 1; message N { M m = 1; }"), with("N n = 1; message N { M m = 1; int32 a = 2; }"), codes.OK},
		{"unused message", with("message N { int32 a = 1; }"), with("message N { string a = 1; }"), codes.OK},

		{"another type of the same wire type", with("int32 a = 1;"), with("int64 a = 1;"), codes.InvalidArgument},
		{"required", optional, `message M { required int32 a = 1; }`, codes.InvalidArgument},
		{"another message", with("N n = 1; message N {} message O {}"), with("O n = 1; message N {} message O {}"), codes.InvalidArgument},
		{"another enum", with("E e = 1; enum E { A = 0; } enum F { B = 0; }"),
			with("F e = 1; enum E { A = 0; } enum F { B = 0; }"), codes.InvalidArgument},
		{"group", `message M { optional group G = 1 {} }`, `message M { optional G g = 1; message G {} }`, codes.InvalidArgument},
		{"map and list of its entries", with("map<int32, int32> n = 1;"),
			with("repeated NEntry n = 1; message NEntry { int32 key = 1; int32 value = 2; }"), codes.InvalidArgument},
		{"map's value", with("map<int32, int32> n = 1;"), with("map<int32, string> n = 1;"), codes.InvalidArgument},
		{"nested in a cycle", with("N n = 1; message N { M m = 1; int32 a = 2; }"),
			with("N n = 1; message N { M m = 1; bool a = 2; }"), codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			one, two := mustCompile(t, tt.one), mustCompile(t, tt.two)
			if err := two.compatibleWith(one); status.Code(err) != tt.want {
				t.Errorf("two.compatibleWith(one) = %v, want %v", err, tt.want)
			}
			if err := one.compatibleWith(two); status.Code(err) != tt.want {
				t.Errorf("one.compatibleWith(two) = %v, want %v", err, tt.want)
			}
		})
	}
}

// For every definition and message, the result is OK or INVALID_ARGUMENT,
// without a panic.
func FuzzSchema(f *testing.F) {
	for _, definition := range []string{
		`syntax = "proto3"; message M { string s = 1; map<string, M> m = 2; oneof o { int32 a = 3; E e = 4; } enum E { Z = 0; } }`,
		`message M { required string s = 1; optional group G = 2 { repeated sint64 n = 1 [packed = true]; } extensions 100 to max; }`,
		`edition = "2023"; message M { M m = 1 [features.message_encoding = DELIMITED]; extensions 5; extend M { bytes x = 5; } }`,
		`message M { option message_set_wire_format = true; extensions 4 to max; extend M { optional M m = 7; } }`,
		`package google; message protobuf { message Any {} }`,
		`message M { optional float f = 1 [default = nan]; optional bytes b = 2 [default = "\377"]; reserved 5 to 7, 9; }`,
	} {
		f.Add(definition, []byte("\x0a\x01a"), true)
		f.Add(definition, []byte(`{"s": "a", "m": {"k": {}}, "[M.x]": "AA=="}`), false)
	}
	f.Fuzz(func(t *testing.T, definition string, data []byte, binary bool) {
		c, err := compileSchema(definition)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument || strings.Contains(err.Error(), "panic handling") {
				t.Fatalf("compileSchema() = %v, want INVALID_ARGUMENT", err)
			}
			return
		}
		encoding := pubsubpb.Encoding_JSON
		if binary {
			encoding = pubsubpb.Encoding_BINARY
		}
		if err := c.validate(data, encoding); err != nil && status.Code(err) != codes.InvalidArgument {
			t.Errorf("validate() = %v, want INVALID_ARGUMENT or none", err)
		}
		if err := c.compatibleWith(c); err != nil {
			t.Errorf("compatibleWith(itself) = %v, want no error", err)
		}
	})
}
