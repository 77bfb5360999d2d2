package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.com/videocatalog/internal/names"
)

// field is a field that the owner of an entity sets.
type field struct {
	Name     string   `yaml:"name"`
	Type     string   `yaml:"type"` // as usage describes it, without ! and ?
	Required bool     `yaml:"required,omitempty"`
	Optional bool     `yaml:"optional,omitempty"` // of a scalar: "not set" differs from its zero value
	Comment  string   `yaml:"comment,omitempty"`
	Values   []string `yaml:"values,omitempty"` // of an enum
	Parts    []field  `yaml:"parts,omitempty"`  // of a message
	// Number is the number in the messages. It never changes.
	Number int `yaml:"number,omitempty"`
	// Migration is the number of the migration that adds the column.
	Migration int `yaml:"migration,omitempty"`

	entity string // its name in Go
}

// The types by their names on the command line. A list has the letter s behind the type of
// its items.
const (
	typeString   = "string"
	typeBool     = "bool"
	typeInt32    = "int32"
	typeInt64    = "int64"
	typeDouble   = "double"
	typeBytes    = "bytes"
	typeTime     = "time"
	typeDuration = "duration"
	typeUUID     = "uuid"
	typeEnum     = "enum"
	typeMessage  = "message"
)

var (
	scalars = []string{typeString, typeBool, typeInt32, typeInt64, typeDouble}
	single  = append([]string{typeBytes, typeTime, typeDuration, typeUUID, typeEnum, typeMessage}, scalars...)
	lists   = []string{"strings", "bools", "int32s", "int64s", "doubles", "uuids"}
)

// kind returns the type, or that of the items of a list.
func (f field) kind() string {
	if f.isList() {
		return strings.TrimSuffix(f.Type, "s")
	}
	return f.Type
}

func (f field) isList() bool { return slices.Contains(lists, f.Type) }

var snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*$`)

// taken are the names of fields that every entity has, or that generated code needs.
var taken = []string{"id", "name", "state", "version", "create_time", "update_time", "delete_time", "etag", "event_id", "has_next", "bytes_before", "deleted", "descriptor", "string", "reset"}

// check returns the mistakes in a field.
func (f field) check() (errs []error) {
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("field %q: "+format, append([]any{f.Name}, args...)...))
	}
	switch {
	case !snake.MatchString(f.Name) || len(f.Name) > 40:
		wrong("the name must be lower_snake_case with at most 40 characters")
	case slices.Contains(taken, f.Name):
		wrong("every entity has this name, or needs it: choose another")
	case names.IsKeyword(f.Name):
		wrong("the name is a keyword of SQL: choose another")
	case f.Type == typeTime && strings.HasSuffix(f.Name, "_ms"), f.Type == typeDuration && strings.HasSuffix(f.Name, "_ms"):
		wrong("the suffix _ms is added in events: leave it out")
	}
	if !slices.Contains(single, f.Type) && !f.isList() {
		wrong("unknown type %q, want one of %s, or a list of them: %s", f.Type, strings.Join(single, ", "), strings.Join(lists, ", "))
	}
	if f.Optional && !slices.Contains(scalars, f.Type) {
		wrong("%s cannot be optional: it is empty if it is not set", f.Type)
	}
	if f.Required && (f.Optional || slices.Contains(append([]string{typeDuration, typeMessage}, scalars[1:]...), f.Type)) {
		wrong("%s cannot be required: required is for string, bytes, time, uuid, enum and lists", f.Type)
	}
	if (f.Type == typeEnum) != (len(f.Values) > 0) || (f.Type == typeMessage) != (len(f.Parts) > 0) {
		wrong("an enum has values, as in color:enum(red,green), and a message has parts, as in address:{street:string,city:string}")
	}
	errs = append(errs, f.checkInner(wrong)...)
	return errs
}

// checkInner checks the values of an enum and the parts of a message.
func (f field) checkInner(wrong func(format string, args ...any)) (errs []error) {
	for i, value := range f.Values {
		if !snake.MatchString(value) || value == "unspecified" || slices.Contains(f.Values[:i], value) {
			wrong("the value %q must be lower_snake_case, other than unspecified, and listed once", value)
		}
	}
	for i, part := range f.Parts {
		if !slices.Contains(scalars, part.Type) || part.Optional || part.Required {
			wrong("the part %q must be a %s", part.Name, strings.Join(scalars, ", "))
			continue
		}
		errs = append(errs, part.check()...)
		if slices.ContainsFunc(f.Parts[:i], func(other field) bool { return other.Name == part.Name }) {
			wrong("the part %q is listed twice", part.Name)
		}
	}
	return errs
}

// Names.

// Go is the name in the domain.
func (f field) Go() string { return camel(f.Name) }

// ProtoGo is the name in the Go code of protoc-gen-go.
func (f field) ProtoGo() string { return protoCamel(f.Name) }

// Row is the name in the Go code of sqlc.
func (f field) Row() string { return sqlCamel(f.Column()) }

// Var is the name of a variable.
func (f field) Var() string { return lowerCamel(f.Name) + "JSON" }

// Proto is the name of the nested enum or message.
func (f field) Proto() string { return protoCamel(f.Name) }

// DomainType is the name of the type of an enum or a message in the domain.
func (f field) DomainType() string { return f.entity + camel(f.Name) }

// MapName begins the names of the functions that convert an enum or a message.
func (f field) MapName() string { return strings.ToLower(f.entity[:1]) + f.entity[1:] + camel(f.Name) }

// Column is the name of the column.
func (f field) Column() string {
	if f.Type == typeDuration {
		return f.Name + "_ms"
	}
	return f.Name
}

// Param is the name of the parameter of a query.
func (f field) Param() string { return "@" + f.Column() }

// EventName is the name in the event.
func (f field) EventName() string {
	if f.Type == typeTime || f.Type == typeDuration {
		return f.Name + "_ms"
	}
	return f.Name
}

// EventGo is that name in Go.
func (f field) EventGo() string { return protoCamel(f.EventName()) }

// Comments.

// Doc is the comment in the API.
func (f field) Doc() string {
	text := f.Comment
	if text == "" {
		text = "The " + words(f.Name) + "."
	}
	switch {
	case f.Comment != "":
	case f.Required:
		text = strings.TrimSuffix(text, ".") + "; required."
	case f.Type == typeString:
		text = strings.TrimSuffix(text, ".") + ", at most 200 characters."
	}
	return strings.Join(strings.Fields(text), " ")
}

// EventDoc is the comment in the event.
func (f field) EventDoc() string {
	switch f.Type {
	case typeTime:
		return "The " + words(f.Name) + " in milliseconds since 1970-01-01 UTC; 0: not set."
	case typeDuration:
		return "The " + words(f.Name) + " in milliseconds."
	default:
		return "The " + words(f.Name) + "."
	}
}

// GoComment is the comment in the domain.
func (f field) GoComment() string {
	switch f.Type {
	case typeTime:
		return " // in UTC and whole milliseconds; zero if it is not set"
	case typeUUID:
		return " // uuid.Nil if it is not set"
	case typeDuration:
		return " // in whole milliseconds"
	}
	if f.Optional {
		return " // nil if it is not set"
	}
	return ""
}

// prepositions are words that the API linter does not want in names.
var prepositions = []string{
	"after", "at", "before", "between", "but", "by", "except", "for", "from", "in", "including", "into", "of", "over", "per", "since", "to", "toward",
	"under", "upon", "with", "within", "without",
}

// LintExceptions are the rules of the API linter that the name breaks.
func (f field) LintExceptions() (rules []string) {
	if slices.ContainsFunc(strings.Split(f.Name, "_"), func(part string) bool { return slices.Contains(prepositions, part) }) {
		rules = append(rules, "core::0140::prepositions")
	}
	if f.Type == typeTime && !strings.HasSuffix(f.Name, "_time") {
		rules = append(rules, "core::0142::time-field-names")
	}
	return append(rules, f.EventLintExceptions()...)
}

// EventLintExceptions are the rules of the API linter that the name breaks in the event.
func (f field) EventLintExceptions() []string {
	if slices.Contains([]string{"currency", "country", "language", "lang", "mime", "region", "timezone", "zone", "content_type"}, f.Name) {
		return []string{"core::0143::standardized-codes"}
	}
	return nil
}
