package aip

import (
	"cmp"
	"slices"
	"strings"

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

// isWhole reports whether the mask is "*", which names all fields.
func (u Update) isWhole() bool { return slices.Equal(u.Mask.GetPaths(), []string{"*"}) }

// paths returns the paths of the mask, without a path inside another. Without a
// mask it returns the paths of the fields that are not empty (AIP-134).
func (u Update) paths() []string {
	switch {
	case len(u.Mask.GetPaths()) == 0:
		return filled(u.Resource, "")
	case u.isWhole():
		return namesOf(u.Resource)
	}
	mask := proto.CloneOf(u.Mask)
	mask.Normalize()
	return mask.GetPaths()
}

// namesOf returns the names of all fields of a message.
func namesOf(message protoreflect.Message) (names []string) {
	for i := range message.Descriptor().Fields().Len() {
		names = append(names, message.Descriptor().Fields().Get(i).TextName())
	}
	return names
}

// filled returns the paths of the fields that are not empty. If a message has fields
// that are not empty, their paths replace its own. within ends in a dot, or is empty.
func filled(message protoreflect.Message, within string) (paths []string) {
	for i := range message.Descriptor().Fields().Len() {
		field := message.Descriptor().Fields().Get(i)
		if !message.Has(field) {
			continue
		}
		path := within + field.TextName()
		var inner []string
		if IsPartial(field) {
			inner = filled(message.Get(field).Message(), path+".")
		}
		if len(inner) == 0 {
			inner = []string{path}
		}
		paths = append(paths, inner...)
	}
	return paths
}

// RulesFor selects the rules of api/proto that apply to a request: not the rules of fields that
// only the server sets. In an update, rules of unchanged fields do not apply, because those
// values are ignored. Rules of a whole message that is changed in part do not apply either:
// they need every field, so the domain checks them.
func RulesFor(request proto.Message) protovalidate.Filter {
	var parts map[proto.Message][]string
	if u, ok := UpdateOf(request); ok {
		parts = u.parts()
	}
	return protovalidate.FilterFunc(func(message protoreflect.Message, descriptor protoreflect.Descriptor) bool {
		changed, isPart := parts[message.Interface()]
		field, isField := descriptor.(protoreflect.FieldDescriptor)
		if isField && behaves(field, annotations.FieldBehavior_OUTPUT_ONLY) {
			return false
		}
		return !isPart || isField && (!changeable(field) || slices.Contains(changed, field.TextName()))
	})
}

// parts returns the messages that the update changes in part, each with the
// names of the fields that it changes.
func (u Update) parts() map[proto.Message][]string {
	parts := map[proto.Message][]string{u.Resource.Interface(): nil}
	for _, path := range u.paths() {
		message := u.Resource
		for name := range strings.SplitSeq(path, ".") {
			parts[message.Interface()] = append(parts[message.Interface()], name)
			field := message.Descriptor().Fields().ByTextName(name)
			if field == nil || !IsPartial(field) || !message.Has(field) {
				break
			}
			message = message.Get(field).Message()
		}
	}
	return parts
}

// changeable reports whether a caller may change a field. It may not change a field that only
// the server sets (AIP-203), nor the etag (AIP-154) or the name of a resource.
func changeable(field protoreflect.FieldDescriptor) bool {
	isOfResource := proto.HasExtension(field.ContainingMessage().Options(), annotations.E_Resource)
	return !behaves(field, annotations.FieldBehavior_OUTPUT_ONLY) &&
		(!isOfResource || field.Name() != "etag" && !behaves(field, annotations.FieldBehavior_IDENTIFIER))
}

func behaves(field protoreflect.FieldDescriptor, as annotations.FieldBehavior) bool {
	behaviors, _ := proto.GetExtension(field.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behaviors, as)
}

// DropOutputOnly clears the fields that only the server sets, also in messages inside the
// message: a request that has them is the same as one without (AIP-203).
func DropOutputOnly(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case behaves(field, annotations.FieldBehavior_OUTPUT_ONLY):
			message.Clear(field)
		case field.IsMap() && field.MapValue().Message() != nil:
			value.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
				DropOutputOnly(item.Message())
				return true
			})
		case field.IsMap(), field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				DropOutputOnly(value.List().Get(i).Message())
			}
		default:
			DropOutputOnly(value.Message())
		}
		return true
	})
}

// IsPartial reports whether a mask may name fields inside the field (AIP-161). A
// list, a map and a message of google.protobuf are changed as a whole.
func IsPartial(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && field.Cardinality() != protoreflect.Repeated && field.Message().ParentFile().Package() != "google.protobuf"
}

// CheckMask returns problem.Invalid for a path of a mask that does not end at a field of the resource, or goes
// into a field that is changed as a whole. A path may name a field that only the server sets, which is then
// ignored, so that a client may send back what it read (AIP-161).
func CheckMask(mask *fieldmaskpb.FieldMask, resource proto.Message) error {
	u := Update{resource.ProtoReflect(), mask}
	for _, path := range u.paths() {
		if err := checkPath(u.Resource.Descriptor(), path); err != nil {
			return err
		}
	}
	return nil
}

func checkPath(message protoreflect.MessageDescriptor, path string) error {
	within := ""
	for name := range strings.SplitSeq(path, ".") {
		if message == nil {
			return problem.InvalidField("update_mask", "%q goes into %q, which can only be changed as a whole", path, within)
		}
		field := message.Fields().ByTextName(name)
		if field == nil {
			return problem.InvalidField("update_mask", "%q is no field: %q has no %q", path, cmp.Or(within, string(message.Name())), name)
		}
		within, message = strings.TrimPrefix(within+"."+name, "."), nil
		if IsPartial(field) {
			message = field.Message()
		}
	}
	return nil
}

// Merged returns a copy of the current resource with the fields of the mask taken
// from update. An update can change a part of a message. "*" is all fields, and no mask is the fields that are not
// empty (AIP-134). CheckMask must have accepted the mask.
func Merged[M proto.Message](mask *fieldmaskpb.FieldMask, current, update M) M {
	u := Update{update.ProtoReflect(), mask}
	merged := proto.CloneOf(current)
	for _, path := range u.paths() {
		set(merged.ProtoReflect(), u.Resource, path)
	}
	return merged
}

// set copies the field at a path from a message to another. In a message that it copies, the
// fields that only the server sets stay as they are; the items of a list are replaced.
func set(to, from protoreflect.Message, path string) {
	name, inside, _ := strings.Cut(path, ".")
	field := to.Descriptor().Fields().ByTextName(name)
	switch {
	case field == nil || !changeable(field):
	case inside != "":
		set(to.Mutable(field).Message(), from.Get(field).Message(), inside)
	case IsPartial(field) && (to.Has(field) || from.Has(field)):
		within := to.Mutable(field).Message()
		for _, name := range namesOf(within) {
			set(within, from.Get(field).Message(), name)
		}
		if !from.Has(field) && len(filled(within, "")) == 0 {
			to.Clear(field)
		}
	case from.Has(field):
		to.Set(field, from.Get(field))
	default:
		to.Clear(field)
	}
}
