package aip

import (
	"slices"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/problem"
)

// Update is a request in the form of AIP-134: a resource and a mask of the
// fields to change.
type Update struct {
	Resource protoreflect.Message
	Mask     *fieldmaskpb.FieldMask
}

// UpdateOf returns the parts of an update request, or false for any other
// request. An update has a field update_mask and a field whose message is a
// google.api.resource.
func UpdateOf(request proto.Message) (Update, bool) {
	message := request.ProtoReflect()
	fields := message.Descriptor().Fields()
	masked := fields.ByName("update_mask")
	if masked == nil || masked.Message() == nil {
		return Update{}, false
	}
	mask, isMask := message.Get(masked).Message().Interface().(*fieldmaskpb.FieldMask)
	for i := range fields.Len() {
		field := fields.Get(i)
		if isMask && field.Message() != nil && proto.HasExtension(field.Message().Options(), annotations.E_Resource) {
			return Update{message.Get(field).Message(), mask}, true
		}
	}
	return Update{}, false
}

// changes reports whether the update sets the field of the resource. Without a
// mask it sets every field that is not empty.
func (u Update) changes(field protoreflect.FieldDescriptor) bool {
	paths := u.Mask.GetPaths()
	if len(paths) == 0 {
		return u.Resource.Has(field)
	}
	return slices.Equal(paths, []string{"*"}) || slices.Contains(paths, field.TextName())
}

// RulesFor selects the rules of api/proto that apply to a request. In an
// update, rules of unchanged fields do not apply, because those values are
// ignored. Rules of the whole resource do not apply either: they need every
// field, so the domain checks them.
func RulesFor(request proto.Message) protovalidate.Filter {
	u, isUpdate := UpdateOf(request)
	return protovalidate.FilterFunc(func(message protoreflect.Message, descriptor protoreflect.Descriptor) bool {
		if !isUpdate || message.Interface() != u.Resource.Interface() {
			return true
		}
		field, isField := descriptor.(protoreflect.FieldDescriptor)
		return isField && (!Changeable(field) || u.changes(field))
	})
}

// Changeable reports whether a caller may change the field of a resource. It
// may not change the etag (AIP-154) or a field that only the server sets
// (AIP-203).
func Changeable(field protoreflect.FieldDescriptor) bool {
	behaviors, _ := proto.GetExtension(field.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return field.Name() != "etag" &&
		!slices.Contains(behaviors, annotations.FieldBehavior_OUTPUT_ONLY) &&
		!slices.Contains(behaviors, annotations.FieldBehavior_IDENTIFIER)
}

// Fields returns the fields that an update mask names; "*" names all, and no
// mask names the fields that are not empty (AIP-134). It ignores fields that
// only the server sets, so that a client may send back what it read (AIP-161).
// all has the fields that can be changed, by their names in proto. Any other
// field is problem.Invalid.
func Fields[F ~string](mask *fieldmaskpb.FieldMask, resource proto.Message, all []F) ([]F, error) {
	message := resource.ProtoReflect()
	known := message.Descriptor().Fields()
	paths := mask.GetPaths()
	if len(paths) == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(field F) bool {
			return !message.Has(known.ByTextName(string(field)))
		}), nil
	}
	if slices.Equal(paths, []string{"*"}) {
		return slices.Clone(all), nil
	}
	var fields []F
	for _, path := range paths {
		if field := known.ByTextName(path); field != nil && !Changeable(field) {
			continue
		}
		if !slices.Contains(all, F(path)) {
			return nil, problem.InvalidField("update_mask", "%q is no field that can be changed; these can: %v, and * alone is all of them", path, all)
		}
		fields = append(fields, F(path))
	}
	return fields, nil
}
