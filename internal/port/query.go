package port

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/aip"
)

// strictQuery is the gateway's parser of a query, except that it rejects unknown
// parameters: a caller who misspells etag would otherwise rely on a check that
// never runs. Its errors have the form "field: rule".
type strictQuery struct{ runtime.DefaultQueryParser }

func init() { runtime.SetQueryParameterParser(new(strictQuery))(nil) } // the gateway has one parser for all muxes

// Parse adds the query to a message. taken has the fields of the path and of the body.
func (q *strictQuery) Parse(message proto.Message, values url.Values, taken *utilities.DoubleArray) error {
	for key, texts := range values {
		path := protoName(key)
		_, err := fieldmaskpb.New(message, path) // fails if the message has no such field
		if err != nil || taken.HasCommonPrefix(strings.Split(path, ".")) {
			return fmt.Errorf("%s: unknown parameter", url.QueryEscape(key))
		}
		if !utf8.ValidString(strings.Join(texts, "")) {
			return fmt.Errorf("%s: must be UTF-8", key)
		}
	}
	if err := q.DefaultQueryParser.Parse(message, values, taken); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if u, ok := aip.UpdateOf(message); ok && u.Mask != nil {
		for i, path := range u.Mask.GetPaths() {
			u.Mask.Paths[i] = protoName(path)
		}
		u.Mask.Paths = slices.DeleteFunc(u.Mask.Paths, func(path string) bool { return path == "" }) // of an empty mask or body
	}
	return nil
}

var upper = regexp.MustCompile("[A-Z]")

// protoName returns a path of JSON names, such as filter.publishYear, in the names of proto.
func protoName(path string) string {
	return upper.ReplaceAllStringFunc(path, func(letter string) string { return "_" + strings.ToLower(letter) })
}
