package entity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// readProto reads the fields of the message of an entity. Fields that every entity has, such
// as name and etag, are left out.
func readProto(ctx context.Context, path, name string) ([]field, error) {
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			ImportPaths: []string{filepath.Dir(path), "api/proto", ".local/protos"},
		}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	if err := command(ctx, "make", "--silent", "protos"); err != nil {
		return nil, err
	}
	files, err := compiler.Compile(ctx, filepath.Base(path))
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	message := files[0].Messages().ByName(protoreflect.Name(camel(name)))
	if message == nil {
		message = files[0].Messages().ByName(protoreflect.Name(protoCamel(name)))
	}
	if message == nil {
		return nil, fmt.Errorf("%s has no message %s", path, protoCamel(name))
	}
	var fields []field
	var errs []error
	for i := range message.Fields().Len() {
		d := message.Fields().Get(i)
		if slices.Contains(given, string(d.Name())) {
			errs = append(errs, checkGiven(d))
			continue
		}
		f, err := fieldOf(d)
		errs = append(errs, err)
		fields = append(fields, f)
	}
	return fields, errors.Join(errs...)
}

// checkGiven returns an error if a field has the name, but not the meaning, of a field that
// every entity has. For example, name is the resource name (AIP-122), and not a person's.
func checkGiven(d protoreflect.FieldDescriptor) error {
	standard := map[string]bool{
		"name": d.Kind() == protoreflect.StringKind && hasOption(d, "field_behavior]:IDENTIFIER"), "etag": d.Kind() == protoreflect.StringKind,
		"state": d.Kind() == protoreflect.EnumKind, "version": d.Kind() == protoreflect.Int64Kind,
	}
	isTime := d.Kind() == protoreflect.MessageKind && d.Message().FullName() == "google.protobuf.Timestamp"
	if standard[string(d.Name())] || strings.HasSuffix(string(d.Name()), "_time") && isTime {
		return nil
	}
	return fmt.Errorf("field %q: every entity has a field of this name with another meaning: choose another, such as display_name (a resource name is an IDENTIFIER)", d.Name())
}

// checkRules refuses rules that this command cannot keep.
func checkRules(d protoreflect.FieldDescriptor) error {
	rules := strings.NewReplacer("ignore:IGNORE_IF_ZERO_VALUE", "", "repeated:{items:{string:{uuid:true}}}", "", "string:{uuid:true}", "", "required:true", "").
		Replace(strings.ReplaceAll(fmt.Sprint(d.Options()), " ", ""))
	if _, rest, ok := strings.Cut(rules, "[buf.validate.field]:{"); ok && !strings.HasPrefix(rest, "}") {
		return fmt.Errorf("field %q: rules of buf.validate other than string.uuid are not taken over: leave them out, and add them to the file that is made", d.Name())
	}
	return nil
}

// fieldOf reads a field of a message.
func fieldOf(d protoreflect.FieldDescriptor) (field, error) {
	f := field{Name: string(d.Name()), Optional: d.HasOptionalKeyword(), Required: hasOption(d, "field_behavior]:REQUIRED") || hasOption(d, "required:true"),
		OutputOnly: hasOption(d, "field_behavior]:OUTPUT_ONLY")}
	f.Comment = strings.Join(strings.Fields(d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments), " ")
	if d.IsMap() || d.ContainingOneof() != nil && !f.Optional {
		return f, fmt.Errorf("field %q: maps and oneofs are not supported: for a map take a list of messages with a key and a value", f.Name)
	}
	if err := checkRules(d); err != nil {
		return f, err
	}
	var err error
	switch d.Kind() {
	case protoreflect.StringKind, protoreflect.BoolKind, protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.DoubleKind, protoreflect.BytesKind:
		f.Type = d.Kind().String()
		if d.Kind() == protoreflect.StringKind && hasOption(d, "uuid:true") {
			f.Type = typeUUID
		}
	case protoreflect.EnumKind:
		f.Type = typeEnum
		f.Values, err = valuesOf(d)
	case protoreflect.MessageKind:
		f.Type, f.Parts, err = messageOf(d)
	default:
		err = fmt.Errorf("field %q: %s is not supported: use one of the types of --help", f.Name, d.Kind())
	}
	if err == nil && d.IsList() {
		if f.Type += "s"; !f.IsList() {
			err = fmt.Errorf("field %q: a list of %s is not supported: use one of the types of --help", f.Name, d.Kind())
		}
	}
	return f, err
}

// valuesOf returns the values of an enum, without the prefix of their names and without the
// first, which stands for a field that is not set.
func valuesOf(d protoreflect.FieldDescriptor) (values []string, err error) {
	all := d.Enum().Values()
	prefix, ok := strings.CutSuffix(string(all.Get(0).Name()), "UNSPECIFIED")
	if !ok {
		return nil, fmt.Errorf("field %q: the first value of the enum %s must end in UNSPECIFIED, and means that the field is not set", d.Name(), d.Enum().Name())
	}
	for i := 1; i < all.Len(); i++ {
		values = append(values, strings.ToLower(strings.TrimPrefix(string(all.Get(i).Name()), prefix)))
	}
	return values, nil
}

// messageOf returns the type of a field that has a message, and the parts of the message.
func messageOf(d protoreflect.FieldDescriptor) (typ string, parts []field, err error) {
	switch name := d.Message().FullName(); {
	case name == "google.protobuf.Timestamp":
		return typeTime, nil, nil
	case name == "google.protobuf.Duration":
		return typeDuration, nil, nil
	case name.Parent() == "google.protobuf":
		return "", nil, fmt.Errorf("field %q: %s is not supported: use one of the types of --help", d.Name(), name)
	}
	for i := range d.Message().Fields().Len() {
		of := d.Message().Fields().Get(i)
		if of.Kind() == protoreflect.MessageKind || of.IsList() {
			return "", nil, fmt.Errorf("field %q: its part %q must be a %s", d.Name(), of.Name(), strings.Join(scalars, ", "))
		}
		part, err := fieldOf(of)
		if err != nil {
			return "", nil, fmt.Errorf("field %q: %w", d.Name(), err)
		}
		parts = append(parts, part)
	}
	return typeMessage, parts, nil
}

// hasOption reports whether a field has an option, in the text format of protobuf.
func hasOption(d protoreflect.FieldDescriptor, option string) bool {
	return strings.Contains(strings.ReplaceAll(fmt.Sprint(d.Options()), " ", ""), option)
}
