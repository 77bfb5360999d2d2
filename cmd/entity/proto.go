package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// readProto reads the fields of the message of an entity. Fields that every entity has, such
// as name and etag, are left out.
func readProto(ctx context.Context, path, name string) ([]field, error) {
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			ImportPaths: []string{filepath.Dir(path), "api/proto", "third_party/googleapis", "third_party/protovalidate"},
		}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	files, err := compiler.Compile(ctx, filepath.Base(path))
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	message := files[0].Messages().ByName(protoreflect.Name(protoCamel(name)))
	if message == nil {
		return nil, fmt.Errorf("%s has no message %s", path, protoCamel(name))
	}
	var fields []field
	var errs []error
	for i := range message.Fields().Len() {
		d := message.Fields().Get(i)
		if isGiven(string(d.Name())) {
			continue
		}
		f, err := fieldOf(d)
		errs = append(errs, err)
		fields = append(fields, f)
	}
	return fields, errors.Join(errs...)
}

// isGiven reports whether every entity has a field of this name.
func isGiven(name string) bool {
	switch name {
	case "name", "state", "version", "create_time", "update_time", "delete_time", "etag":
		return true
	}
	return false
}

func fieldOf(d protoreflect.FieldDescriptor) (field, error) {
	f := field{Name: string(d.Name()), Optional: d.HasOptionalKeyword()}
	location := d.ParentFile().SourceLocations().ByDescriptor(d)
	f.Comment = strings.Join(strings.Fields(location.LeadingComments), " ")
	unsupported := fmt.Errorf("field %q: %s is not supported: use one of the types of --help", f.Name, d.Kind())
	if d.IsMap() || d.ContainingOneof() != nil && !f.Optional {
		return f, fmt.Errorf("field %q: maps and oneofs are not supported", f.Name)
	}
	switch d.Kind() {
	case protoreflect.StringKind, protoreflect.BoolKind, protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.DoubleKind, protoreflect.BytesKind:
		f.Type = d.Kind().String()
		if isUUID(d) {
			f.Type = typeUUID
		}
	case protoreflect.EnumKind:
		f.Type = typeEnum
		prefix := strings.ToUpper(f.Name) + "_"
		for i := 1; i < d.Enum().Values().Len(); i++ { // 0 is not set
			f.Values = append(f.Values, strings.ToLower(strings.TrimPrefix(string(d.Enum().Values().Get(i).Name()), prefix)))
		}
	case protoreflect.MessageKind:
		switch d.Message().FullName() {
		case "google.protobuf.Timestamp":
			f.Type = typeTime
		case "google.protobuf.Duration":
			f.Type = typeDuration
		default:
			f.Type = typeMessage
			for i := range d.Message().Fields().Len() {
				part, err := fieldOf(d.Message().Fields().Get(i))
				if err != nil {
					return f, err
				}
				part.Comment = ""
				f.Parts = append(f.Parts, part)
			}
		}
	default:
		return f, unsupported
	}
	if d.IsList() {
		f.Type += "s"
	}
	return f, nil
}

// isUUID reports whether the options of a field say that it is a UUID.
func isUUID(d protoreflect.FieldDescriptor) bool {
	return d.Kind() == protoreflect.StringKind && strings.Contains(strings.ReplaceAll(fmt.Sprint(d.Options()), " ", ""), "uuid:true")
}
