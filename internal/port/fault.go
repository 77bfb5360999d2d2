package port

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"sort"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// maxFaultDepth ends the search of faultIn in messages that contain themselves.
const maxFaultDepth = 10

// position matches the position in an error of protojson, which is wrong for the
// body if faultIn has cut it.
var position = regexp.MustCompile(`\(line \d+:\d+\): `)

// faultIn returns the first wrong field of a message in JSON that protojson
// rejects, and the rule that it breaks. The texts of protojson change at random
// and name no path, so faultIn decodes every field alone. within is the path of
// the message, and empty for the whole one.
func faultIn(message protoreflect.MessageDescriptor, text []byte, within string, depth int) (path, rule string) {
	var values map[string]json.RawMessage
	if json.Unmarshal(text, &values) != nil || values == nil {
		return within, "must be an object"
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		path := strings.TrimPrefix(within+"."+name, ".")
		field := fieldOf(message, name)
		if field == nil {
			return path, "unknown field"
		}
		if !decodes(field, values[name]) {
			return faultAt(field, values[name], path, depth)
		}
	}
	err := protojson.Unmarshal(text, dynamicpb.NewMessage(message))
	if err == nil { // on its own it is within the limit of protojson
		return within, "is nested too deeply"
	}
	return within, position.ReplaceAllString(withoutNoise(err), "") // such as a duplicate field
}

// faultAt is faultIn for the value of one field.
func faultAt(field protoreflect.FieldDescriptor, text []byte, path string, depth int) (at, rule string) {
	if field.IsMap() {
		return path, "must be an object, whose keys and values have the types of the field"
	}
	if field.IsList() {
		var items []json.RawMessage
		_ = json.Unmarshal(text, &items)                // leaves none
		i := sort.Search(len(items), func(i int) bool { // each alone would take long for a long list
			begin, err := json.Marshal(items[:i+1])
			return err != nil || !decodes(field, begin)
		})
		if i == len(items) {
			return path, "must be a list"
		}
		text, path = items[i], fmt.Sprintf("%s[%d]", path, i)
	}
	if depth < maxFaultDepth && isOwn(field.Message()) {
		return faultIn(field.Message(), text, path, depth+1)
	}
	return path, typeRule(field)
}

// decodes reports whether protojson accepts the value of a field.
func decodes(field protoreflect.FieldDescriptor, text []byte) bool {
	whole := slices.Concat([]byte(`{"`+field.JSONName()+`":`), text, []byte("}"))
	return protojson.Unmarshal(whole, dynamicpb.NewMessage(field.ContainingMessage())) == nil
}

// fieldOf returns the field with a name of JSON or of the contract, or nil.
func fieldOf(message protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(name); field != nil {
		return field
	}
	return message.Fields().ByTextName(name)
}

// typeRule returns the rule that a value of the wrong type breaks.
func typeRule(field protoreflect.FieldDescriptor) string {
	if message := field.Message(); message != nil {
		switch message.FullName() {
		case "google.protobuf.Timestamp":
			return "must be a time such as 2026-01-31T12:00:00Z"
		case "google.protobuf.Duration":
			return "must be a duration in seconds such as 1.5s"
		case "google.protobuf.FieldMask":
			return "must be names of fields, separated by commas"
		}
		if !isWrapper(message) {
			return "must have the JSON form of " + string(message.FullName())
		}
	}
	switch kind := scalarOf(field); kind.Kind() {
	case protoreflect.BoolKind:
		return "must be true or false"
	case protoreflect.StringKind:
		return "must be a string in UTF-8"
	case protoreflect.BytesKind:
		return "must be a string in base64"
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "must be a number"
	case protoreflect.EnumKind:
		values, names := kind.Enum().Values(), []string(nil)
		for i := range values.Len() {
			names = append(names, string(values.Get(i).Name()))
		}
		return "must be one of " + strings.Join(names, ", ")
	default:
		least, most := boundsOf(field)
		return fmt.Sprintf("must be a whole number from %v to %v", least, most)
	}
}

// isOwn reports whether a message is an object in JSON. The messages of
// google.protobuf have other forms.
func isOwn(message protoreflect.MessageDescriptor) bool {
	return message != nil && message.ParentFile().Package() != "google.protobuf"
}

// isWrapper reports whether a message is one scalar, such as
// google.protobuf.Int32Value.
func isWrapper(message protoreflect.MessageDescriptor) bool {
	return message.ParentFile().Package() == "google.protobuf" && message.Fields().Len() == 1 && message.Fields().ByName("value") != nil
}

// scalarOf returns the field, or the value of its wrapper.
func scalarOf(field protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if message := field.Message(); message != nil && isWrapper(message) {
		return message.Fields().ByName("value")
	}
	return field
}

// boundsOf returns the smallest and the largest value of an integer, by its type
// and its rules in api/proto.
func boundsOf(field protoreflect.FieldDescriptor) (least, most *big.Int) {
	kind := scalarOf(field).Kind().String() // such as sfixed32
	bits := uint(64)
	if strings.HasSuffix(kind, "32") {
		bits = 32
	}
	one := big.NewInt(1)
	least, most = new(big.Int), new(big.Int).Lsh(one, bits)
	if kind[0] != 'u' && kind[0] != 'f' {
		most.Rsh(most, 1)
		least.Neg(most)
	}
	most.Sub(most, one)
	rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
	if field.IsList() {
		rules = rules.GetRepeated().GetItems()
	}
	typed := rules.ProtoReflect().WhichOneof(rules.ProtoReflect().Descriptor().Oneofs().ByName("type"))
	if typed == nil {
		return least, most
	}
	rules.ProtoReflect().Get(typed).Message().Range(func(rule protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		bound, _ := new(big.Int).SetString(value.String(), 10)
		switch rule.Name() {
		case "gte":
			least = bound
		case "gt":
			least = bound.Add(bound, one)
		case "lte":
			most = bound
		case "lt":
			most = bound.Sub(bound, one)
		}
		return true
	})
	return least, most
}
