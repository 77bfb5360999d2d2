package main

import (
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/getkin/kin-openapi/openapi3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// limitMessage adds the rules of a message's fields to the schema of its JSON.
func limitMessage(schema *openapi3.Schema, message protoreflect.MessageDescriptor) {
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if property := schema.Properties[field.JSONName()]; property != nil && property.Value != nil {
			limit(property.Value, rulesOf(field))
		}
	}
}

// rulesOf returns the rules of a field; nil, which has no rule, if there are none.
func rulesOf(field protoreflect.FieldDescriptor) *validate.FieldRules {
	rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
	return rules
}

// limit adds rules to a schema. It is never stricter than the rules: what they
// allow, the schema allows.
func limit(schema *openapi3.Schema, rules *validate.FieldRules) {
	set := rules.ProtoReflect()
	oneof := set.WhichOneof(set.Descriptor().Oneofs().ByName("type"))
	if oneof == nil || oneof.Name() == "bytes" { // their length in base64 is different
		return
	}
	set.Get(oneof).Message().Range(func(rule protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch rule.Name() {
		case "len":
			schema.MinLength, schema.MaxLength = value.Uint(), new(value.Uint())
		case "min_len":
			schema.MinLength = value.Uint()
		case "max_len":
			schema.MaxLength = new(value.Uint())
		case "pattern":
			schema.Pattern = value.String()
		case "uuid":
			schema.Format = "uuid"
		case "gte", "gt":
			atLeast(schema, value, rule.Name() == "gt")
		case "lte", "lt":
			atMost(schema, value, rule.Name() == "lt")
		case "min_items":
			schema.MinItems = value.Uint()
		case "max_items":
			schema.MaxItems = new(value.Uint())
		case "unique":
			schema.UniqueItems = value.Bool()
		case "items":
			if items, ok := value.Message().Interface().(*validate.FieldRules); ok {
				limit(schema.Items.Value, items)
			}
		}
		return true
	})
	if rules.GetIgnore() == validate.Ignore_IGNORE_IF_ZERO_VALUE {
		allowZero(schema)
	}
}

// atLeast sets a minimum, except for values that are no numbers, such as durations.
// A 64-bit number is a string in JSON: a pattern can only exclude the sign.
func atLeast(schema *openapi3.Schema, value protoreflect.Value, exclusive bool) {
	switch least, ok := number(value); {
	case !ok:
	case schema.Type.Is("integer"), schema.Type.Is("number"):
		schema.WithMin(least)
		if exclusive {
			schema.WithExclusiveMin(true)
		}
	case least >= 0:
		schema.Pattern = "^[0-9]+$"
	}
}

func atMost(schema *openapi3.Schema, value protoreflect.Value, exclusive bool) {
	most, ok := number(value)
	if !ok || !schema.Type.Is("integer") && !schema.Type.Is("number") {
		return
	}
	schema.WithMax(most)
	if exclusive {
		schema.WithExclusiveMax(true)
	}
}

func number(value protoreflect.Value) (float64, bool) {
	switch v := value.Interface().(type) {
	case int32:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint32:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float32:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// allowZero widens the limits to allow 0 and "": the server writes them for unknown
// values, and reads them as not set.
func allowZero(schema *openapi3.Schema) {
	if schema.Min != nil && *schema.Min >= 0 {
		schema.Min, schema.ExclusiveMin = new(0.0), openapi3.ExclusiveBound{}
	}
	if schema.Max != nil && *schema.Max <= 0 {
		schema.Max, schema.ExclusiveMax = new(0.0), openapi3.ExclusiveBound{}
	}
	schema.MinLength, schema.MinItems = 0, 0
	if schema.Pattern != "" && !strings.HasPrefix(schema.Pattern, "^$|") {
		schema.Pattern = "^$|" + schema.Pattern
	}
}
