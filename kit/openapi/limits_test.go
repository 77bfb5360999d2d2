package main

import (
	"encoding/json"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/getkin/kin-openapi/openapi3"
	"google.golang.org/protobuf/encoding/protojson"
)

// Each rule becomes a keyword of JSON Schema that means the same, or that
// allows more.
func TestLimit(t *testing.T) {
	t.Parallel()
	text, integer := openapi3.NewStringSchema, openapi3.NewIntegerSchema
	for _, test := range []struct {
		rules  string
		schema *openapi3.Schema
		want   string
	}{
		{`{}`, text(), `{"type":"string"}`},
		{`{"string": {"minLen": 1, "maxLen": 5}}`, text(), `{"maxLength":5,"minLength":1,"type":"string"}`},
		{`{"string": {"len": 5}}`, text(), `{"maxLength":5,"minLength":5,"type":"string"}`},
		{`{"string": {"uuid": true}}`, text(), `{"format":"uuid","type":"string"}`},
		{`{"string": {"pattern": "^a$"}}`, text(), `{"pattern":"^a$","type":"string"}`},
		{`{"string": {"pattern": "^a$", "minLen": 1}, "ignore": "IGNORE_IF_ZERO_VALUE"}`, text(), `{"pattern":"^$|^a$","type":"string"}`},
		{`{"int32": {"gte": 3, "lte": 5}}`, integer(), `{"maximum":5,"minimum":3,"type":"integer"}`},
		{`{"int32": {"gt": 3, "lt": 5}}`, integer(), `{"exclusiveMaximum":true,"exclusiveMinimum":true,"maximum":5,"minimum":3,"type":"integer"}`},
		{`{"int32": {"gte": 3, "lte": 5}, "ignore": "IGNORE_IF_ZERO_VALUE"}`, integer(), `{"maximum":5,"minimum":0,"type":"integer"}`},
		{`{"int32": {"gt": 0}, "ignore": "IGNORE_IF_ZERO_VALUE"}`, integer(), `{"minimum":0,"type":"integer"}`},
		{`{"int32": {"gte": -5, "lte": -3}, "ignore": "IGNORE_IF_ZERO_VALUE"}`, integer(), `{"maximum":0,"minimum":-5,"type":"integer"}`},
		{`{"int64": {"gte": "0", "lte": "5"}}`, text(), `{"pattern":"^[0-9]+$","type":"string"}`},
		{`{"int64": {"gte": "-3"}}`, text(), `{"type":"string"}`},
		{`{"bytes": {"maxLen": 5}}`, text(), `{"type":"string"}`},
		{`{"duration": {"gte": "0s"}}`, text(), `{"type":"string"}`},
		{
			`{"repeated": {"minItems": 1, "maxItems": 3, "unique": true, "items": {"string": {"maxLen": 2}}}}`,
			openapi3.NewArraySchema().WithItems(text()),
			`{"items":{"maxLength":2,"type":"string"},"maxItems":3,"minItems":1,"type":"array","uniqueItems":true}`,
		},
	} {
		rules := new(validate.FieldRules)
		if err := protojson.Unmarshal([]byte(test.rules), rules); err != nil {
			t.Fatal(err)
		}
		limit(test.schema, rules)
		got, err := json.Marshal(test.schema)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != test.want {
			t.Errorf("limit(%s) = %s, want %s", test.rules, got, test.want)
		}
	}
}
