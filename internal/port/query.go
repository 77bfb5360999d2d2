package port

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/aip"
)

// strictQueries installs strictQuery once per process, because the library
// keeps the parser in a global variable.
var strictQueries = sync.OnceFunc(func() {
	runtime.NewServeMux(runtime.SetQueryParameterParser(strictQuery{}))
})

// strictQuery parses the query of a URL. It rejects unknown parameters: a caller
// who misspells etag would otherwise rely on a check that never runs. Its errors
// have the form "field: rule".
type strictQuery struct{}

// Parse makes JSON of the query, so that a parameter has the forms and the errors
// of a field in a body. taken has the fields of the path and of the body.
func (strictQuery) Parse(message proto.Message, values url.Values, taken *utilities.DoubleArray) error {
	query, masks := make(map[string]any), make(map[string]func())
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fields, names := parameterOf(message.ProtoReflect().Descriptor(), strings.Split(key, "."))
		if fields == nil || taken.HasCommonPrefix(names) {
			return fmt.Errorf("%s: unknown parameter", url.QueryEscape(key))
		}
		last, texts, path := fields[len(fields)-1], values[key], strings.Join(names, ".")
		switch _, isGiven := masks[path]; {
		case !utf8.ValidString(strings.Join(texts, "")):
			return fmt.Errorf("%s: must be UTF-8", key)
		case isGiven, len(texts) > 1 && !last.IsList():
			return fmt.Errorf("%s: must be given once", key)
		case isMask(last):
			masks[path] = func() { setMask(message.ProtoReflect(), fields, texts[0]) }
		case !put(query, fields, texts):
			return fmt.Errorf("%s: must be given once", key)
		}
	}
	text, err := json.Marshal(query)
	if err != nil { // cannot happen with valid texts
		return fmt.Errorf("query: %w", err)
	}
	parsed := message.ProtoReflect().New()
	if protojson.Unmarshal(text, parsed.Interface()) != nil {
		path, rule := faultIn(parsed.Descriptor(), text, "", 0)
		return fmt.Errorf("%s: %s", cmp.Or(path, "query"), rule)
	}
	proto.Merge(message, parsed.Interface())
	for _, set := range masks {
		set()
	}
	if u, ok := aip.UpdateOf(message); ok {
		textMask(u, strings.Join(append(values["updateMask"], values["update_mask"]...), "") != "")
	}
	return nil
}

// parameterOf returns the fields on a path such as filter.publishYear, with their
// names in proto, or nil if no parameter can have the path. A message of
// google.protobuf, such as a duration, is one value; other messages, their lists
// and maps are no parameters.
func parameterOf(message protoreflect.MessageDescriptor, path []string) (fields []protoreflect.FieldDescriptor, names []string) {
	for i, name := range path {
		field := fieldOf(message, name)
		if field == nil || isOwn(field.Message()) == (i == len(path)-1) || i < len(path)-1 && !aip.IsPartial(field) {
			return nil, nil
		}
		fields, names, message = append(fields, field), append(names, string(field.Name())), field.Message()
	}
	return fields, names
}

// put adds the texts of a parameter to the JSON of the query. It returns false if
// its field has a value already.
func put(query map[string]any, fields []protoreflect.FieldDescriptor, texts []string) bool {
	last := len(fields) - 1
	for _, field := range fields[:last] {
		inner, ok := query[field.JSONName()].(map[string]any)
		if !ok {
			inner = make(map[string]any)
			query[field.JSONName()] = inner
		}
		query = inner
	}
	values := make([]any, len(texts))
	for i, text := range texts {
		values[i] = literal(scalarOf(fields[last]).Kind(), text)
	}
	name := fields[last].JSONName()
	if _, ok := query[name]; ok {
		return false
	}
	query[name] = values
	if !fields[last].IsList() {
		query[name] = values[0]
	}
	return true
}

// literal returns the JSON of a parameter. Numbers may be strings in the JSON of
// a message, but not booleans and the numbers of enums.
func literal(kind protoreflect.Kind, text string) any {
	number, err := strconv.Atoi(text)
	switch {
	case kind == protoreflect.BoolKind && (text == "true" || text == "false"):
		return json.RawMessage(text)
	case kind == protoreflect.EnumKind && err == nil:
		return number
	}
	return text
}

func isMask(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && field.Message().FullName() == "google.protobuf.FieldMask"
}

// setMask sets a mask as it is: its JSON has neither "*" nor the names of the
// contract. An empty mask is none (AIP-134).
func setMask(message protoreflect.Message, fields []protoreflect.FieldDescriptor, text string) {
	if text == "" {
		return
	}
	last := len(fields) - 1
	for _, field := range fields[:last] {
		message = message.Mutable(field).Message()
	}
	mask := &fieldmaskpb.FieldMask{Paths: strings.Split(text, ",")}
	message.Set(fields[last], protoreflect.ValueOfMessage(mask.ProtoReflect()))
}

// textMask renames the paths of an update mask to their names in proto. If the
// caller gave no mask, the gateway has made one of the fields in the body. It has
// one empty path for a body without fields, and paths into messages such as
// google.protobuf.Struct, which are changed as a whole.
func textMask(u aip.Update, given bool) {
	for i, path := range u.Mask.GetPaths() {
		u.Mask.Paths[i] = textPath(u.Resource.Descriptor(), path, !given)
	}
	if slices.Equal(u.Mask.GetPaths(), []string{""}) {
		u.Mask.Paths = nil
	}
}

// textPath returns a path of a mask with names in proto, or the path as it is if
// no mask may have it. With cut it ends at the last field that a mask may have.
func textPath(message protoreflect.MessageDescriptor, path string, cut bool) string {
	var names []string
	for name := range strings.SplitSeq(path, ".") {
		if message == nil && cut {
			break
		}
		if message == nil || fieldOf(message, name) == nil {
			return path
		}
		field := fieldOf(message, name)
		names, message = append(names, field.TextName()), nil
		if aip.IsPartial(field) {
			message = field.Message()
		}
	}
	return strings.Join(names, ".")
}
