package entity

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.com/servicekit/naming"
)

// field is a field that the owner of an entity sets.
type field struct {
	Name     string   `yaml:"name"`
	Type     string   `yaml:"type"` // as usage describes it, without ! and ?
	Required bool     `yaml:"required,omitempty"`
	Optional bool     `yaml:"optional,omitempty"` // of a scalar: "not set" differs from its zero value
	Ref      bool     `yaml:"ref,omitempty"`      // of a uuid: lists can be filtered by it
	Comment  string   `yaml:"comment,omitempty"`
	Values   []string `yaml:"values,omitempty"` // of an enum
	Parts    []field  `yaml:"parts,omitempty"`  // of a message
	// OutputOnly means that only the server sets the field.
	OutputOnly bool `yaml:"output_only,omitempty"`
	// Number is the number in the messages. It never changes.
	Number int `yaml:"number,omitempty"`
	// Migration is the number of the migration that adds the column.
	Migration int `yaml:"migration,omitempty"`

	entity string // its name
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
	typeMessages = "messages"
	typeUser     = "user"   // only of Users
	typeTenant   = "tenant" // only of Tenants
)

var (
	scalars = []string{typeString, typeBool, typeInt32, typeInt64, typeDouble}
	single  = append(slices.Clone(scalars), typeBytes, typeTime, typeDuration, typeUUID, typeEnum, typeMessage)
	lists   = []string{"strings", "bools", "int32s", "int64s", "doubles", "uuids", typeMessages}
)

// kind returns the type, or the type of the items of a list.
func (f field) kind() string {
	if f.IsList() {
		return strings.TrimSuffix(f.Type, "s")
	}
	return f.Type
}

// IsList reports whether the field is a list.
func (f field) IsList() bool { return slices.Contains(lists, f.Type) }

var (
	// snake matches a name.
	snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	// snakeOfType matches the name of a type or a method too: behind a digit, protoc-gen-go writes its letters in another case.
	snakeOfType = regexp.MustCompile(`^[a-z]+[0-9]*(_[a-z]+[0-9]*)*$`)
	enumValue   = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*$`)
	entityName  = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
)

const snakeRule = "lower_snake_case, with digits only behind the letters of a word, such as line1"

// given are the fields that every entity has.
var given = []string{"name", "state", "version", "create_time", "update_time", "delete_time", "etag"}

// taken are the given names, and others that generated code needs.
var taken = slices.Concat(given, []string{"id", "event_id", "has_next", "bytes_before", "deleted"}, systemColumns, methods)

// systemColumns are columns that every table of PostgreSQL has.
var systemColumns = []string{"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}

// check returns the mistakes in a field.
func (f field) check() (errs []error) {
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("field %q: "+format, append([]any{f.Name}, args...)...))
	}
	switch {
	case !snake.MatchString(f.Name) || len(f.Name) > 40:
		wrong("the name must be lower_snake_case, with at most 40 characters")
	case f.isNested() && !snakeOfType.MatchString(f.Name):
		wrong("the name of a message or an enum must be " + snakeRule)
	case slices.Contains(taken, f.Name):
		wrong("every entity has this name, or needs it: choose another, such as %s", f.another())
	case naming.IsPythonKeyword(f.Name):
		wrong("the name is a keyword of Python: choose another, such as %s", f.another())
	case naming.IsSQLKeyword(f.Name):
		wrong("the name is a keyword of SQL: choose another, such as %s", f.another())
	case f.Type == typeTime && strings.HasSuffix(f.Name, "_ms"), f.Type == typeDuration && strings.HasSuffix(f.Name, "_ms"):
		wrong("the suffix _ms is added in events: leave it out")
	}
	if !slices.Contains(single, f.Type) && !f.IsList() {
		wrong("unknown type %q, want one of %s, or a list of them: %s", f.Type, strings.Join(single, ", "), strings.Join(lists, ", "))
	}
	if f.Optional && !slices.Contains(scalars, f.Type) {
		wrong("%s cannot be optional: it is empty if it is not set", f.Type)
	}
	if f.Required && (f.Optional || slices.Contains(append([]string{typeDuration, typeMessage}, scalars[1:]...), f.Type)) {
		wrong("%s cannot be required: required is for string, bytes, time, uuid, enum and lists", f.Type)
	}
	switch {
	case f.Type == typeEnum && len(f.Values) < 2:
		wrong("an enum has two values or more, as in color:enum(red,green)")
	case f.kind() == typeMessage && len(f.Parts) == 0:
		wrong("a message has parts, as in address:{street:string,city:string} or lines:[{title:string,quantity:int32}]")
	case f.Type != typeEnum && len(f.Values) > 0, f.kind() != typeMessage && len(f.Parts) > 0:
		wrong("%s has neither values nor parts", f.Type)
	case f.isNested() && slices.Contains([]string{"snapshot", "created", "updated", "undeleted"}, f.typeName()):
		wrong("the event has a message of this name: choose another, such as %s", f.another())
	}
	return append(errs, f.checkInner()...)
}

// another returns a name in place of one that cannot be.
func (f field) another() string {
	if name := map[string]string{"id": "external_id", "name": "display_name", "order": "sort_order"}[f.Name]; name != "" {
		return name
	}
	return f.entity + "_" + f.Name
}

// checkInner checks the values of an enum and the parts of a message.
func (f field) checkInner() (errs []error) {
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("field %q: "+format, append([]any{f.Name}, args...)...))
	}
	for i, value := range f.Values {
		if !enumValue.MatchString(value) || value == "unspecified" || slices.Contains(f.Values[:i], value) {
			wrong("the value %q must be lower_snake_case, other than unspecified, and listed once", value)
		}
	}
	for i, part := range f.Parts {
		switch {
		case !snake.MatchString(part.Name) || len(part.Name) > 40:
			wrong("the name of the part %q must be lower_snake_case, with at most 40 characters", part.Name)
		case slices.Contains(methods, part.Name):
			wrong("the part %q has the name of a method of messages: choose another, such as %[1]s_%[2]s", part.Name)
		case naming.IsPythonKeyword(part.Name):
			wrong("the part %q is a keyword of Python: choose another, such as %[1]s_%[2]s", part.Name)
		case !slices.Contains(scalars, part.Type) || part.Optional || part.Required:
			wrong("the part %q must be one of %s, without ! and ?", part.Name, strings.Join(scalars, ", "))
		case slices.ContainsFunc(f.Parts[:i], part.sharesName):
			wrong("the part %q is listed twice", part.Name)
		}
	}
	return errs
}

// sharesName reports whether two fields have the same name in a layer.
func (f field) sharesName(other field) bool {
	return f.isNested() && other.isNested() && f.typeName() == other.typeName() || f.Go() == other.Go() || f.ProtoGo() == other.ProtoGo() ||
		f.EventName() == other.EventName() || f.Column() == other.Column() ||
		f.Name == "get_"+other.Name || other.Name == "get_"+f.Name // the method that reads a field
}

// Names.

// Go is the name in the domain.
func (f field) Go() string { return camel(f.Name) }

// ProtoGo is the name in the Go code of protoc-gen-go.
func (f field) ProtoGo() string { return protoCamel(f.Name) }

// Row is the name in the Go code of sqlc.
func (f field) Row() string { return sqlCamel(f.Column()) }

// Var is the name of a variable with the value as JSON.
func (f field) Var() string { return lowerCamel(f.Name) + "JSON" }

// isNested reports whether the field has an enum or a message of its own.
func (f field) isNested() bool { return f.Type == typeEnum || f.kind() == typeMessage }

// typeName is the name of the field's enum or message: line for the list lines.
func (f field) typeName() string {
	if f.IsList() {
		return naming.Singular(f.Name)
	}
	return f.Name
}

// Proto is typeName in messages.
func (f field) Proto() string { return protoCamel(f.typeName()) }

// DomainType is typeName in the domain.
func (f field) DomainType() string { return camel(f.entity + "_" + f.typeName()) }

// MapName begins the names of the maps and functions that convert an enum or a message.
func (f field) MapName() string { return unexported(f.entity + "_" + f.Name) }

// Column is the name of the column.
func (f field) Column() string {
	if f.Type == typeDuration {
		return f.Name + "_ms"
	}
	return f.Name
}

// EventName is the name in the event.
func (f field) EventName() string {
	if f.Type == typeTime || f.Type == typeDuration {
		return f.Name + "_ms"
	}
	return f.Name
}

// EventGo is EventName in Go.
func (f field) EventGo() string { return protoCamel(f.EventName()) }

// Comments.

// pastTime matches the name of a time or a date: placed at, ended on.
var pastTime = regexp.MustCompile(`^(.*ed) (at|on)$`)

// subject describes the value of the field, as the start of a sentence.
func (f field) subject() string {
	name := words(f.Name)
	if past := pastTime.FindStringSubmatch(name); past != nil && (f.Type == typeTime || f.Type == typeString) {
		return "When it was " + past[1]
	}
	if f.Type == typeBool {
		if has, ok := strings.CutPrefix(name, "has "); ok {
			return "Whether it has " + has
		}
		if is := strings.TrimPrefix(name, "is "); is != name || !strings.Contains(name, " ") {
			return "Whether it is " + is
		}
		return "Whether " + name + " is set"
	}
	return "The " + name
}

// Doc is the comment in the API.
func (f field) Doc() string {
	switch {
	case f.Comment != "":
		return f.Comment
	case f.Required:
		return f.subject() + "; required."
	case f.Type == typeString:
		return f.subject() + ", at most 200 characters."
	}
	return f.subject() + "."
}

// EventDoc is the comment in the event.
func (f field) EventDoc() string {
	switch f.Type {
	case typeTime:
		return f.subject() + ", in milliseconds since 1970-01-01 UTC; 0: not set."
	case typeDuration:
		return f.subject() + ", in milliseconds."
	case typeUser, typeTenant:
		return f.Comment
	default:
		return f.subject() + "."
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
