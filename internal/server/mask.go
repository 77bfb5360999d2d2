package server

import (
	"slices"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// update is a request in the form of AIP-134: a resource and a mask of the
// fields to change.
type update struct {
	resource protoreflect.Message
	mask     *fieldmaskpb.FieldMask
}

// updateOf returns the parts of an update request, or false for any other
// request. An update has a field update_mask and a field whose message is a
// google.api.resource.
func updateOf(request proto.Message) (update, bool) {
	message := request.ProtoReflect()
	fields := message.Descriptor().Fields()
	masked := fields.ByName("update_mask")
	if masked == nil || masked.Message() == nil {
		return update{}, false
	}
	mask, isMask := message.Get(masked).Message().Interface().(*fieldmaskpb.FieldMask)
	for i := range fields.Len() {
		field := fields.Get(i)
		if isMask && field.Message() != nil && proto.HasExtension(field.Message().Options(), annotations.E_Resource) {
			return update{message.Get(field).Message(), mask}, true
		}
	}
	return update{}, false
}

// changes reports whether the update sets the field of the resource. Without a
// mask it sets every field that is not empty.
func (u update) changes(field protoreflect.FieldDescriptor) bool {
	paths := u.mask.GetPaths()
	if len(paths) == 0 {
		return u.resource.Has(field)
	}
	return slices.Equal(paths, []string{"*"}) || slices.Contains(paths, field.TextName())
}

// rulesFor selects the rules of api/proto that apply to a request. In an
// update, rules of unchanged fields do not apply, because those values are
// ignored. Rules of the whole resource do not apply either: they need every
// field, so package domain checks them.
func rulesFor(request proto.Message) protovalidate.Filter {
	u, isUpdate := updateOf(request)
	return protovalidate.FilterFunc(func(message protoreflect.Message, descriptor protoreflect.Descriptor) bool {
		if !isUpdate || message.Interface() != u.resource.Interface() {
			return true
		}
		field, isField := descriptor.(protoreflect.FieldDescriptor)
		return isField && (!changeable(field) || u.changes(field))
	})
}

// changeable reports whether a caller may change the field of a resource. It
// may not change the etag (AIP-154) or a field that only the server sets
// (AIP-203).
func changeable(field protoreflect.FieldDescriptor) bool {
	behaviors, _ := proto.GetExtension(field.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return field.Name() != "etag" &&
		!slices.Contains(behaviors, annotations.FieldBehavior_OUTPUT_ONLY) &&
		!slices.Contains(behaviors, annotations.FieldBehavior_IDENTIFIER)
}
