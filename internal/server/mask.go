package server

import (
	"slices"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// update is a request in the form of AIP-134: a resource, and a mask that names
// the fields to change.
type update struct {
	resource protoreflect.Message
	mask     *fieldmaskpb.FieldMask
}

// updateOf returns the parts of an update; false when the request is none. It is
// one by its fields: `update_mask`, and a message that is a google.api.resource.
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

// changes reports whether the update gives the field of the resource a new value.
// Without a mask it changes the fields that are not empty.
func (u update) changes(field protoreflect.FieldDescriptor) bool {
	paths := u.mask.GetPaths()
	if len(paths) == 0 {
		return u.resource.Has(field)
	}
	return slices.Equal(paths, []string{"*"}) || slices.Contains(paths, field.TextName())
}

// rulesFor returns which rules of api/proto hold for a request. In an update,
// those of fields that it does not change do not: nobody reads them. Rules of the
// resource as a whole need all of its fields, and the domain has them.
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

// changeable reports whether a caller may change the field of a resource: it is
// not set by the server alone (AIP-203), and not the etag (AIP-154).
func changeable(field protoreflect.FieldDescriptor) bool {
	behaviors, _ := proto.GetExtension(field.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return field.Name() != "etag" &&
		!slices.Contains(behaviors, annotations.FieldBehavior_OUTPUT_ONLY) &&
		!slices.Contains(behaviors, annotations.FieldBehavior_IDENTIFIER)
}
