package pubsublocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/ast"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/parser"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

const (
	// maxDefinition is the maximum size of a definition in bytes.
	maxDefinition = 300_000
	// definitionFile is the name of the file in error positions.
	definitionFile = "schema.proto"
)

// compiledSchema is a compiled definition, which validates messages. It never
// changes, and is safe for concurrent use.
type compiledSchema struct {
	root  protoreflect.MessageDescriptor
	types *dynamicpb.Types // the types of this definition only
}

// compileSchema compiles a definition in proto2, proto3 or edition 2023. It
// must have one top-level message and no imports. Errors are INVALID_ARGUMENT,
// with the position if there is one.
func compileSchema(definition string) (*compiledSchema, error) {
	if definition == "" {
		return nil, status.Error(codes.InvalidArgument, "the definition of the schema is empty")
	}
	if len(definition) > maxDefinition {
		return nil, status.Errorf(codes.InvalidArgument, "the definition of the schema has %d bytes, but the maximum is %d",
			len(definition), maxDefinition)
	}
	compiled, err := compileFile(definition)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "invalid schema definition: %.1000v", err) // it is sent in a header
	}
	return compiled, nil
}

func compileFile(definition string) (*compiledSchema, error) {
	handler := reporter.NewHandler(nil) // stops at the first error
	file, err := parser.Parse(definitionFile, strings.NewReader(definition), handler)
	if err != nil {
		return nil, err
	}
	if err := checkTopLevel(file); err != nil {
		return nil, err
	}
	parsed, err := parser.ResultFromAST(file, true, handler)
	if err != nil {
		return nil, err
	}
	compiler := protocompile.Compiler{Resolver: protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		if path != definitionFile {
			return protocompile.SearchResult{}, fs.ErrNotExist
		}
		return protocompile.SearchResult{ParseResult: parsed}, nil
	})}
	files, err := compiler.Compile(context.Background(), definitionFile)
	if err != nil {
		return nil, err
	}
	linked, ok := files[0].(linker.Result)
	if !ok {
		return nil, errors.New("the file was not linked")
	}
	// The descriptors of the compiler search their fields one by one, which is
	// slow.
	descriptor, err := protodesc.NewFile(linked.FileDescriptorProto(), new(protoregistry.Files))
	if err != nil {
		return nil, err
	}
	registry := new(protoregistry.Files)
	if err := registry.RegisterFile(descriptor); err != nil {
		return nil, err
	}
	return &compiledSchema{root: descriptor.Messages().Get(0), types: dynamicpb.NewTypes(registry)}, nil
}

// checkTopLevel checks that a file has one top-level message, and beside it no
// import, enum, service or extension.
func checkTopLevel(file *ast.FileNode) error {
	messages := 0
	for _, decl := range file.Decls {
		fault := ""
		switch decl.(type) {
		case *ast.ImportNode:
			fault = "imports are not supported"
		case *ast.MessageNode:
			if messages++; messages > 1 {
				fault = "only one top-level message is allowed"
			}
		case *ast.EnumNode, *ast.ServiceNode, *ast.ExtendNode:
			fault = "beside the top-level message nothing else can be defined; put it into the message"
		}
		if fault != "" {
			return reporter.Error(file.NodeInfo(decl), errors.New(fault))
		}
	}
	if messages == 0 {
		return errors.New("there is no top-level message")
	}
	return nil
}

// validate returns INVALID_ARGUMENT if data is not a message of the schema.
// Such data cannot be decoded, lacks a required field, or has an unknown field
// at any depth.
func (c *compiledSchema) validate(data []byte, encoding pubsubpb.Encoding) error {
	m := dynamicpb.NewMessage(c.root)
	switch encoding {
	case pubsubpb.Encoding_BINARY:
		if err := (proto.UnmarshalOptions{Resolver: c.types}).Unmarshal(data, m); err != nil {
			return status.Errorf(codes.InvalidArgument, "the message is not a %s in binary encoding: %v", c.root.FullName(), err)
		}
		return checkKnown(m)
	case pubsubpb.Encoding_JSON:
		if err := (protojson.UnmarshalOptions{Resolver: c.types}).Unmarshal(data, m); err != nil {
			return status.Errorf(codes.InvalidArgument, "the message is not a %s in JSON encoding: %v", c.root.FullName(), err)
		}
		return nil
	default:
		return status.Errorf(codes.InvalidArgument, "encoding is %v, but must be JSON or BINARY", encoding)
	}
}

// checkKnown refuses a message with unknown fields: their number or wire type
// is not in the schema.
func checkKnown(m protoreflect.Message) error {
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		number, _, _ := protowire.ConsumeTag(unknown)
		return status.Errorf(codes.InvalidArgument, "the message has field %d in %s, which the schema does not have, or not with that type",
			number, m.Descriptor().FullName())
	}
	var err error
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					err = checkKnown(v.Message())
					return err == nil
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				if err = checkKnown(v.List().Get(i).Message()); err != nil {
					break
				}
			}
		default:
			err = checkKnown(v.Message())
		}
		return err == nil
	})
	return err
}

// compatibleWith returns INVALID_ARGUMENT if c and older cannot be revisions of
// one schema. A field that both have must have the same name, type and
// cardinality, and a required field must be in both. It checks all messages
// that the top-level one refers to, but not extensions.
func (c *compiledSchema) compatibleWith(older *compiledSchema) error {
	both := schemaComparison{newer: c.root, older: older.root, seen: map[[2]protoreflect.FullName]bool{}}
	if err := both.messages(c.root, older.root); err != nil {
		return status.Errorf(codes.InvalidArgument, "the definition is not compatible with an existing revision: %v", err)
	}
	return nil
}

type schemaComparison struct {
	newer, older protoreflect.MessageDescriptor // the top-level messages
	seen         map[[2]protoreflect.FullName]bool
}

func (c *schemaComparison) messages(newer, older protoreflect.MessageDescriptor) error {
	pair := [2]protoreflect.FullName{newer.FullName(), older.FullName()}
	if c.seen[pair] {
		return nil // already compared: a recursive type, or the type of several fields
	}
	c.seen[pair] = true
	for i := range older.Fields().Len() {
		was := older.Fields().Get(i)
		is := newer.Fields().ByNumber(was.Number())
		if is != nil {
			if err := c.fields(is, was); err != nil {
				return err
			}
		} else if was.Cardinality() == protoreflect.Required {
			return fmt.Errorf("required field %s was removed", was.FullName())
		}
	}
	for i := range newer.Fields().Len() {
		is := newer.Fields().Get(i)
		if is.Cardinality() == protoreflect.Required && older.Fields().ByNumber(is.Number()) == nil {
			return fmt.Errorf("required field %s was added", is.FullName())
		}
	}
	return nil
}

func (c *schemaComparison) fields(is, was protoreflect.FieldDescriptor) error {
	changed := func(what string, from, to any) error {
		return fmt.Errorf("field %d of %s: %s was %v, and is %v", is.Number(), is.ContainingMessage().FullName(), what, from, to)
	}
	if is.Name() != was.Name() {
		return changed("the name", was.Name(), is.Name())
	}
	if is.Cardinality() != was.Cardinality() {
		return changed("the cardinality", was.Cardinality(), is.Cardinality())
	}
	if is.Kind() != was.Kind() {
		return changed("the type", was.Kind(), is.Kind())
	}
	if is.IsMap() != was.IsMap() {
		return changed("being a map", was.IsMap(), is.IsMap())
	}
	if from, to := fieldTypeName(was, c.older), fieldTypeName(is, c.newer); from != to {
		return changed("the type", from, to)
	}
	if is.Message() != nil {
		return c.messages(is.Message(), was.Message())
	}
	return nil
}

// fieldTypeName returns the type name of a message or enum field, without the
// name of the top-level message. So a new package name is not a new type.
func fieldTypeName(field protoreflect.FieldDescriptor, root protoreflect.MessageDescriptor) string {
	var d protoreflect.Descriptor
	switch {
	case field.Message() != nil:
		d = field.Message()
	case field.Enum() != nil:
		d = field.Enum()
	default:
		return ""
	}
	return strings.TrimPrefix(string(d.FullName()), string(root.FullName()))
}
