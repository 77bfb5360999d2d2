package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const (
	jsonType  = "application/json"
	linesType = "application/x-ndjson"
	sseType   = "text/event-stream"
)

// complete adds to a document the facts that are only in the descriptors.
func complete(doc *openapi3.T, files *protoregistry.Files) error {
	var err error
	files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		limitMessages(doc, file.Messages())
		namePaths(doc, file.Messages())
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if err = completeMethod(doc, methods.Get(j)); err != nil {
					return false
				}
			}
		}
		return true
	})
	completeErrors(doc)
	doc.Servers = openapi3.Servers{{URL: "/"}}
	doc.Components.SecuritySchemes = openapi3.SecuritySchemes{"idToken": {Value: &openapi3.SecurityScheme{
		Type: "http", Scheme: "bearer", BearerFormat: "JWT",
		Description: "An OpenID Connect ID token of the caller. A server for development may need none.",
	}}}
	doc.Security = openapi3.SecurityRequirements{{"idToken": {}}}
	return err
}

// completeErrors describes the body of an error as AIP-193 has it over HTTP: an
// object with one property, error.
func completeErrors(doc *openapi3.T) {
	status := doc.Components.Schemas["google.rpc.Status"].Value
	status.Description = "An error. Its ErrorInfo, in details, has the reason for programs."
	status.Properties["code"].Value.Description = "The status code of HTTP."
	status.Properties["status"] = openapi3.NewSchemaRef("", openapi3.NewStringSchema())
	status.Properties["status"].Value.Description = "The code of gRPC, as google.rpc.Code names it, such as INVALID_ARGUMENT."
	status.Required = []string{"code", "status", "message", "details"}
	for _, item := range doc.Paths.Map() {
		for _, operation := range item.Operations() {
			content := operation.Responses.Default().Value.Content[jsonType]
			body := openapi3.NewObjectSchema().WithRequired([]string{"error"})
			body.Properties = openapi3.Schemas{"error": content.Schema}
			content.Schema = openapi3.NewSchemaRef("", body)
		}
	}
}

func limitMessages(doc *openapi3.T, messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		message := messages.Get(i)
		if schema := doc.Components.Schemas[string(message.FullName())]; schema != nil {
			limitMessage(schema.Value, message)
		}
		limitMessages(doc, message.Messages())
	}
}

// namePaths names the variable after a collection in a path by the singular of the
// resource: /v1/books/{book}. The generator makes the name from the plural.
func namePaths(doc *openapi3.T, messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		resource, _ := proto.GetExtension(messages.Get(i).Options(), annotations.E_Resource).(*annotations.ResourceDescriptor)
		if resource.GetPlural() == "" || resource.GetSingular() == "" {
			continue
		}
		variable := regexp.MustCompile(`(/` + regexp.QuoteMeta(resource.GetPlural()) + `/)\{(\w+)\}`)
		for path, item := range doc.Paths.Map() {
			match := variable.FindStringSubmatch(path)
			if match == nil || match[2] == resource.GetSingular() {
				continue
			}
			doc.Paths.Delete(path)
			doc.Paths.Set(variable.ReplaceAllString(path, "${1}{"+resource.GetSingular()+"}"), item)
			for _, operation := range item.Operations() {
				operation.Parameters.GetByInAndName(openapi3.ParameterInPath, match[2]).Name = resource.GetSingular()
			}
		}
	}
}

// completeMethod completes the operation of a method. A method that is not served
// over REST has none.
func completeMethod(doc *openapi3.T, method protoreflect.MethodDescriptor) error {
	rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		return nil
	}
	verb, operation := find(doc, fmt.Sprintf("%s_%s", method.Parent().Name(), method.Name()))
	if operation == nil {
		return fmt.Errorf("%s: no operation was generated", method.FullName())
	}
	// The generator puts the whole comment into the summary.
	operation.Summary, operation.Description = string(method.Name()), operation.Summary
	if operation.RequestBody != nil {
		completeBody(operation.RequestBody.Value, verb, rule, method.Input())
	}
	completeParameters(operation, template(rule), method.Input())
	if method.IsStreamingServer() {
		completeStream(operation)
	}
	return nil
}

func find(doc *openapi3.T, id string) (verb string, _ *openapi3.Operation) {
	for _, item := range doc.Paths.Map() {
		for verb, operation := range item.Operations() {
			if operation.OperationID == id {
				return verb, operation
			}
		}
	}
	return "", nil
}

// completeBody adds limits to a request body. In an inline body of a PATCH no field
// is required: the caller sends only the fields to change.
func completeBody(body *openapi3.RequestBody, verb string, rule *annotations.HttpRule, input protoreflect.MessageDescriptor) {
	body.Extensions = nil // x-originalParamName
	if rule.GetBody() != "*" {
		input = input.Fields().ByName(protoreflect.Name(rule.GetBody())).Message()
	}
	schema := body.Content[jsonType].Schema.Value
	limitMessage(schema, input)
	if verb == http.MethodPatch && body.Content[jsonType].Schema.Ref == "" {
		schema.Required = nil
	}
}

func completeParameters(operation *openapi3.Operation, template string, input protoreflect.MessageDescriptor) {
	for _, ref := range operation.Parameters {
		switch parameter := ref.Value; parameter.In {
		case openapi3.ParameterInQuery:
			if field := fieldAt(input, strings.Split(parameter.Name, "."), protoreflect.FieldDescriptors.ByJSONName); field != nil {
				limit(parameter.Schema.Value, rulesOf(field))
			}
		case openapi3.ParameterInPath:
			completeName(parameter, template, input)
		}
	}
}

// nameVariable matches a field and its pattern: {book.name=books/*}.
var nameVariable = regexp.MustCompile(`\{([\w.]+)=([\w/]+/)\*\}`)

// completeName limits the last part of a name by the pattern of the whole name.
func completeName(parameter *openapi3.Parameter, template string, input protoreflect.MessageDescriptor) {
	match := nameVariable.FindStringSubmatch(template)
	if match == nil {
		return
	}
	collection := match[2]
	parameter.Description = fmt.Sprintf("What follows `%s` in the name.", collection)
	field := fieldAt(input, strings.Split(match[1], "."), func(fields protoreflect.FieldDescriptors, name string) protoreflect.FieldDescriptor {
		return fields.ByName(protoreflect.Name(name))
	})
	if rest, ok := strings.CutPrefix(rulesOf(field).GetString().GetPattern(), "^"+collection); ok {
		parameter.Schema.Value.Pattern = "^" + rest
	}
}

// fieldAt returns the field at the end of a path, or nil.
func fieldAt(message protoreflect.MessageDescriptor, path []string, by func(protoreflect.FieldDescriptors, string) protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	field := by(message.Fields(), path[0])
	if field == nil || len(path) == 1 {
		return field
	}
	return fieldAt(field.Message(), path[1:], by)
}

func template(rule *annotations.HttpRule) string {
	for _, path := range []string{rule.GetGet(), rule.GetPut(), rule.GetPost(), rule.GetDelete(), rule.GetPatch()} {
		if path != "" {
			return path
		}
	}
	return rule.GetCustom().GetPath()
}

// completeStream says that a stream is lines of JSON, or server-sent events.
func completeStream(operation *openapi3.Operation) {
	response := operation.Responses.Status(http.StatusOK).Value
	response.Description = new("A stream. Each line, or the data of each event, is one JSON object.")
	response.Content = openapi3.Content{
		linesType: response.Content[jsonType],
		sseType:   openapi3.NewMediaType().WithSchema(openapi3.NewStringSchema()),
	}
}
