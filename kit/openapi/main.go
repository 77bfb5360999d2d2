// Command openapi is a protoc plugin that writes api/openapi.json, OpenAPI 3.0.
// It knows no message of ours: everything comes from the descriptors.
//
// protoc-gen-openapiv2 of grpc-gateway does most of it, but writes Swagger 2.0,
// without the rules of buf.validate. This plugin runs it on the same request,
// converts its output, and adds the missing parts:
//
//   - the limits of fields: lengths, ranges, patterns, unique and required;
//   - the content types of a stream;
//   - how callers prove who they are.
//
// It writes 3.0 and not 3.1, which not every validator reads. A rule that JSON
// Schema has no word for, such as a CEL expression, is only in the description.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/getkin/kin-openapi/openapi2"
	"github.com/getkin/kin-openapi/openapi2conv"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"example.com/servicekit/tool"
)

func main() {
	tool.Main("openapi", "", func(_ context.Context, _ []string, stdout io.Writer) error { return run(os.Stdin, stdout) })
}

func run(in io.Reader, out io.Writer) error {
	input, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	request := new(pluginpb.CodeGeneratorRequest)
	if err := proto.Unmarshal(input, request); err != nil {
		return fmt.Errorf("parse request: %w", err)
	}
	swagger, err := runOpenAPIv2(input)
	if err != nil {
		return err
	}
	document, err := convert(swagger, request.GetProtoFile())
	if err != nil {
		return err
	}
	output, err := proto.Marshal(&pluginpb.CodeGeneratorResponse{
		SupportedFeatures: new(uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)),
		File: []*pluginpb.CodeGeneratorResponse_File{
			{Name: new("openapi.json"), Content: new(string(document))},
		},
	})
	if err != nil {
		return fmt.Errorf("make response: %w", err)
	}
	_, err = out.Write(output)
	return err
}

// runOpenAPIv2 returns the only file that protoc-gen-openapiv2 makes from a request.
func runOpenAPIv2(request []byte) ([]byte, error) {
	cmd := exec.CommandContext(context.Background(), "go", "tool", "protoc-gen-openapiv2")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run protoc-gen-openapiv2: %w", err)
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(output, response); err != nil {
		return nil, fmt.Errorf("parse what protoc-gen-openapiv2 wrote: %w", err)
	}
	if response.GetError() != "" {
		return nil, errors.New(response.GetError())
	}
	if n := len(response.GetFile()); n != 1 {
		return nil, fmt.Errorf("protoc-gen-openapiv2 wrote %d files, want 1: set allow_merge", n)
	}
	return []byte(response.GetFile()[0].GetContent()), nil
}

// convert returns the document in OpenAPI 3.0, from Swagger 2.0 and the descriptors.
func convert(swagger []byte, protos []*descriptorpb.FileDescriptorProto) ([]byte, error) {
	files, err := protodesc.NewFiles(&descriptorpb.FileDescriptorSet{File: protos})
	if err != nil {
		return nil, fmt.Errorf("read descriptors: %w", err)
	}
	var old openapi2.T
	if err := json.Unmarshal(swagger, &old); err != nil {
		return nil, fmt.Errorf("read what protoc-gen-openapiv2 wrote: %w", err)
	}
	doc, err := openapi2conv.ToV3(&old)
	if err != nil {
		return nil, fmt.Errorf("convert to OpenAPI 3.0: %w", err)
	}
	if err := complete(doc, files); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write OpenAPI 3.0: %w", err)
	}
	return append(text, '\n'), nil
}
