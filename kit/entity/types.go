package entity

import (
	"fmt"
	"slices"
	"strings"
)

// types has the form of each type in each layer. The conversions are expressions of Go, with %s
// for the value.
var types = map[string]struct {
	proto, rules       string // in the API
	event              string // in the event
	sql, empty         string // in the database; the default of a column that is added later
	domain             string
	toRow, fromRow     string
	toEvent, fromEvent string // fromEvent: %[1]s is the value, %[2]q the name of the field
	toProto, fromProto string
	sample             [3]string // valid values as Go; any two neighbors differ
}{
	typeString: {
		proto: "string", rules: "string.max_len = 200", event: "string", sql: "text", empty: "''", domain: "string",
		sample: [3]string{`"alpha"`, `"beta"`, `"gamma"`},
	},
	typeBool: {proto: "bool", event: "bool", sql: "bool", empty: "false", domain: "bool", sample: [3]string{"true", "false", "true"}},
	typeInt32: {
		proto: "int32", event: "int32", sql: "int", empty: "0", domain: "int32", sample: [3]string{"7", "8", "9"},
	},
	typeInt64: {
		proto: "int64", event: "int64", sql: "bigint", empty: "0", domain: "int64", sample: [3]string{"7_000_000_000", "8", "9"},
	},
	typeDouble: {
		proto: "double", rules: "double.finite = true", event: "double", sql: "double precision", empty: "0", domain: "float64",
		sample: [3]string{"1.5", "2.25", "3"},
	},
	typeBytes: {
		proto: "bytes", rules: "bytes.max_len = 65536", event: "bytes", sql: "bytea", empty: `''`, domain: "[]byte", toRow: "pg.NotNil(%s)",
		sample: [3]string{`[]byte("alpha")`, `[]byte{0, 255}`, `[]byte("gamma")`},
	},
	typeTime: {
		proto: "google.protobuf.Timestamp", rules: "timestamp = {\n  gt: {seconds: -62135596800}\n  lte: {seconds: 253402300799}\n}",
		event: "int64", sql: "timestamptz", domain: "time.Time", toRow: "pg.Optional(%s)", fromRow: "pg.TimeOf(%s)",
		toEvent: "unixMilli(%s)", fromEvent: "r.Time(%[2]q, %[1]s)", toProto: "aip.Timestamp(%s)", fromProto: "aip.IfSet(%s, (*timestamppb.Timestamp).AsTime)",
		sample: [3]string{"time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)", "time.Date(2027, 2, 3, 0, 0, 0, 0, time.UTC)", "time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)"},
	},
	typeDuration: {
		proto: "google.protobuf.Duration", rules: "duration = {\n  gte: {}\n  lte: {seconds: 3600000}\n}", event: "int64", sql: "bigint", empty: "0",
		domain: "time.Duration", toRow: "%s.Milliseconds()", fromRow: "time.Duration(%s) * time.Millisecond",
		toEvent: "%s.Milliseconds()", fromEvent: "time.Duration(r.Within(%[2]q, %[1]s, -envelope.MaxMillis, envelope.MaxMillis)) * time.Millisecond", toProto: "aip.IfSet(%s, durationpb.New)", fromProto: "%s.AsDuration()",
		sample: [3]string{"90*time.Minute", "1500*time.Millisecond", "time.Second"},
	},
	typeUUID: {
		proto: "string", rules: "string.uuid = true", event: "string", sql: "uuid", domain: "uuid.UUID",
		toRow: "pg.Optional(%s)", fromRow: "pg.ValueOf(%s)", toProto: "aip.IfSet(%s, uuid.UUID.String)", fromProto: "aip.ID(%s)",
		sample: [3]string{
			`uuid.MustParse("01890a5d-ac96-7a01-8b02-0c0d0e0f2001")`, `uuid.MustParse("01890a5d-ac96-7a01-8b02-0c0d0e0f2002")`, `uuid.MustParse("01890a5d-ac96-7a01-8b02-0c0d0e0f2003")`,
		},
	},
	typeUser:     {proto: "string", event: "string", sql: "text", empty: "''", domain: "string", toRow: "pg.Escape(%s)", fromRow: "pg.Unescape(%s)"},
	typeTenant:   {event: "string", sql: "text", domain: "string", toRow: "pg.Optional(%s)", fromRow: "pg.ValueOf(%s)"},
	typeEnum:     {rules: "enum.defined_only = true", sql: "text", empty: "''"},
	typeMessage:  {sql: "jsonb", empty: "'{}'"},
	typeMessages: {sql: "jsonb", empty: "'[]'"},
}

// API.

// ProtoType is the type in the API.
func (f field) ProtoType() string { return f.messageType(types[f.kind()].proto) }

// EventType is the type in the event.
func (f field) EventType() string { return f.messageType(types[f.kind()].event) }

// messageType is the type in a message, of which [of] is the type of a single value or item.
func (f field) messageType(of string) string {
	switch {
	case f.Type == typeMessages:
		return "repeated " + f.Proto()
	case f.isNested():
		return f.Proto()
	case f.IsList():
		return "repeated " + of
	case f.Optional:
		return "optional " + of
	}
	return of
}

// ProtoOptions are the options of the field in the API, as buf formats them.
func (f field) ProtoOptions() string {
	rules, options := types[f.kind()].rules, []string{f.behavior()}
	if f.Required {
		options = append(options, "(buf.validate.field).required = true")
	} else if f.Type == typeUUID {
		options = append(options, "(buf.validate.field).ignore = IGNORE_IF_ZERO_VALUE")
	}
	switch {
	case f.IsList() && rules != "":
		of, rule, _ := strings.Cut(rules, ".")
		name, value, _ := strings.Cut(rule, " = ")
		list := fmt.Sprintf("  max_items: 100\n  items: {\n    %s: {%s: %s}\n  }", of, name, value)
		options = append(options, "(buf.validate.field).repeated = {\n"+list+"\n}")
	case f.IsList():
		options = append(options, "(buf.validate.field).repeated = {max_items: 100}")
	case rules != "":
		options = append(options, "(buf.validate.field)."+rules)
	}
	if f.Type == typeTime {
		options = append(options, fmt.Sprintf(notEpoch, f.Name))
	}
	return bracketed("  ", options)
}

// behavior says who sets the field.
func (f field) behavior() string {
	behavior := "OPTIONAL"
	if f.OutputOnly {
		behavior = "OUTPUT_ONLY"
	} else if f.Required {
		behavior = "REQUIRED"
	}
	return "(google.api.field_behavior) = " + behavior
}

// notEpoch is the rule for a time: in events its millisecond 0 stands for a time that is not
// set.
const notEpoch = `(buf.validate.field).cel = {
  id: "%s.not_epoch"
  message: "must not be 1970-01-01T00:00:00Z, which stands for a time that is not set"
  expression: "this < timestamp('1970-01-01T00:00:00Z') || this >= timestamp('1970-01-01T00:00:00.001Z')"
}`

// PartOptions are the options of a part of a message.
func (f field) PartOptions() string {
	options := []string{f.behavior()}
	if rules := types[f.Type].rules; rules != "" {
		options = append(options, "(buf.validate.field)."+rules)
	}
	return bracketed("    ", options)
}

// bracketed writes one option behind its field, and more in lines of their own.
func bracketed(indent string, options []string) string {
	if len(options) == 1 {
		return " [" + options[0] + "]"
	}
	lines := "\n" + strings.Join(options, ",\n")
	return " [" + strings.ReplaceAll(lines, "\n", "\n"+indent+"  ") + "\n" + indent + "]"
}

// ToProto converts a value of the domain to one of the API.
func (f field) ToProto(x string) string {
	switch {
	case f.Type == typeEnum:
		return f.MapName() + "[" + x + "]"
	case f.kind() == typeMessage:
		return f.MapName() + "ToProto(" + x + ")"
	case f.Type == "uuids":
		return "aip.Each(" + x + ", uuid.UUID.String)"
	}
	return convert(types[f.Type].toProto, x)
}

// FromProto reads a value of the domain from a message of the API.
func (f field) FromProto(message string) string {
	get := message + ".Get" + f.ProtoGo() + "()"
	switch {
	case f.Optional:
		return message + "." + f.ProtoGo()
	case f.isNested():
		return f.MapName() + "Of(" + get + ")"
	case f.Type == "uuids":
		return "aip.Each(" + get + ", aip.ID)"
	}
	return convert(types[f.Type].fromProto, get)
}

// ToEvent converts a value of the domain to one of the event. UUIDs have statements of their own.
func (f field) ToEvent(x string) string {
	switch {
	case f.Type == typeEnum:
		return f.MapName() + "[" + x + "]"
	case f.kind() == typeMessage:
		return f.MapName() + "ToEvent(" + x + ")"
	}
	return convert(types[f.Type].toEvent, x)
}

// FromEvent reads a value of the domain from the snapshot of an event, unless it is a UUID.
func (f field) FromEvent(snapshot string) string {
	get := snapshot + ".Get" + f.EventGo() + "()"
	switch {
	case f.Optional:
		return snapshot + "." + f.EventGo()
	case f.Type == typeEnum:
		return fmt.Sprintf("envelope.ValueOf(&r, %q, %s, %s)", f.Name, get, f.MapName())
	case f.kind() == typeMessage:
		return f.MapName() + "OfEvent(" + get + ")"
	}
	if from := types[f.Type].fromEvent; from != "" {
		return fmt.Sprintf(from, get, f.EventName())
	}
	return get
}

// Database.

// SQL is the type of the column.
func (f field) SQL() string {
	if sql := types[f.Type].sql; sql != "" {
		return sql
	}
	return types[f.kind()].sql + "[]"
}

// isNullable reports whether NULL stands for a value that is not set.
func (f field) isNullable() bool {
	return f.Optional || !f.Required && (f.Type == typeTime || f.Type == typeUUID || f.Type == typeTenant)
}

// Null is the rule about NULL.
func (f field) Null() string {
	if f.isNullable() {
		return ""
	}
	return " NOT NULL"
}

// ColumnRule returns the constraints of the column in the owner's table.
func (f field) ColumnRule() string {
	if f.Type == typeTenant {
		return f.Null() + " CHECK (tenant_id <> '')"
	}
	if f.Type != typeEnum {
		return f.Null()
	}
	return f.Null() + fmt.Sprintf(" CHECK (%s IN (%s))", f.Name, texts(f.allowed(f.Values)))
}

// allowed returns the values of an enum in the database. The empty text stands for an optional value that is not set.
func (f field) allowed(values []string) []string {
	if f.Required {
		return values
	}
	return append([]string{""}, values...)
}

// NullWithDefault is Null for a column that is added to rows that exist.
func (f field) NullWithDefault() string {
	if f.isNullable() {
		return ""
	}
	empty := types[f.Type].empty
	if empty == "" && f.IsList() {
		empty = "'{}'"
	}
	return f.Null() + " DEFAULT " + empty
}

// ToRow converts a value of the domain to one of a row.
func (f field) ToRow(x string) string {
	switch {
	case f.kind() == typeMessage:
		return f.Var()
	case f.IsList():
		return "pg.NotNil(" + x + ")"
	case f.Type == typeEnum:
		return "string(" + x + ")"
	case f.Required && !f.isShared(): // no NULL
		return x
	}
	return convert(types[f.Type].toRow, x)
}

// FromRow converts a value of a row to one of the domain.
func (f field) FromRow(x string) string {
	switch f.kind() {
	case typeEnum:
		return "domain." + f.DomainType() + "(" + x + ")"
	case typeMessage:
		return f.Var()
	}
	switch {
	case f.Required && f.Type == typeTime:
		return x + ".UTC()"
	case f.Required:
		return x
	}
	return convert(types[f.Type].fromRow, x)
}

// Domain.

// GoType is the type in the domain.
func (f field) GoType() string {
	t := types[f.kind()].domain
	switch {
	case f.Type == typeMessages:
		return "[]" + f.DomainType()
	case f.isNested():
		return f.DomainType()
	case f.IsList():
		return "[]" + t
	case f.Optional:
		return "*" + t
	}
	return t
}

// Differs is an expression: whether two values differ.
func (f field) Differs(a, b string) string {
	switch {
	case f.IsList():
		return fmt.Sprintf("!slices.Equal(%s, %s)", a, b)
	case f.Type == typeBytes:
		return fmt.Sprintf("!bytes.Equal(%s, %s)", a, b)
	case f.Type == typeTime:
		return fmt.Sprintf("!%s.Equal(%s)", a, b)
	case f.Optional:
		return fmt.Sprintf("(%[1]s == nil) != (%[2]s == nil) || %[1]s != nil && *%[1]s != *%[2]s", a, b)
	}
	return a + " != " + b
}

// IsEmpty is an expression: whether a required value is missing.
func (f field) IsEmpty(x string) string {
	switch {
	case f.Type == typeString:
		return "blank(" + x + ")"
	case f.Type == typeTime:
		return x + ".IsZero()"
	case f.Type == typeUUID:
		return x + " == uuid.Nil"
	case f.Type == typeEnum:
		return x + ` == ""`
	}
	return "len(" + x + ") == 0"
}

// EmptyRule is the message of the error for a missing value.
func (f field) EmptyRule() string {
	if f.Type == typeString {
		return "must not be empty: at least one character must be visible"
	}
	return "must be set"
}

// isShared reports whether a copy of the value shares memory with it.
func (f field) isShared() bool { return f.IsList() || f.Type == typeBytes }

// Clone is an expression: a copy that shares nothing.
func (f field) Clone(x string) string {
	if f.Type == typeBytes {
		return "bytes.Clone(" + x + ")"
	}
	return "slices.Clone(" + x + ")"
}

// isTruncated reports whether values are truncated to the precision of events.
func (f field) isTruncated() bool { return f.Type == typeTime || f.Type == typeDuration }

// Sample is the n-th of three valid values, of which neighbors differ, as Go outside of package domain.
func (f field) Sample(n int) string {
	t := types[f.kind()]
	switch {
	case f.Type == typeEnum:
		return "domain." + f.DomainType() + camel(f.Values[n%len(f.Values)])
	case f.Type == typeMessage:
		return literal("\t\t\t", "domain."+f.DomainType(), f.partSamples(n))
	case f.Type == typeMessages:
		return literal("\t\t\t", "[]domain."+f.DomainType(), []string{
			literal("\t\t\t\t", "", f.partSamples(n)), literal("\t\t\t\t", "", f.partSamples((n+1)%3)),
		})
	case f.IsList():
		return literal("\t\t\t", "[]"+t.domain, slices.Concat(t.sample[n:], t.sample[:n]))
	case f.Optional && slices.Contains([]string{typeString, typeBool}, f.Type):
		return "new(" + t.sample[n] + ")"
	case f.Optional: // a constant without a type is an int
		return "new(" + t.domain + "(" + t.sample[n] + "))"
	}
	return t.sample[n]
}

// partSamples are the n-th samples of the field's parts, with their names.
func (f field) partSamples(n int) (parts []string) {
	for _, p := range f.Parts {
		parts = append(parts, p.Go()+": "+p.Sample(n))
	}
	return parts
}

// EventSample is Sample as a value of the event.
func (f field) EventSample(n int) string {
	switch f.kind() {
	case typeTime:
		return f.Sample(n) + ".UnixMilli()"
	case typeUUID:
		return strings.NewReplacer("[]uuid.UUID", "[]string", "uuid.MustParse(", "", ")", "").Replace(f.Sample(n))
	}
	return f.ToEvent(f.Sample(n))
}

func convert(format, x string) string {
	if format == "" {
		return x
	}
	return fmt.Sprintf(format, x)
}

// ToMessage converts a value of the domain to one of the API without the code under test.
func (f field) ToMessage(x string) string {
	message := camel(f.entity) + "_" + f.Proto()
	of := func(x string) string {
		var parts []string
		for _, p := range f.Parts {
			parts = append(parts, p.ProtoGo()+": "+x+"."+p.Go())
		}
		return literal("\t\t", "&"+f.messages()+"."+message, parts)
	}
	switch f.Type {
	case typeEnum:
		value := fmt.Sprintf(`"%s_"+strings.ToUpper(string(%s))`, strings.ToUpper(f.Name), x)
		return fmt.Sprintf("%[1]s.%[2]s(%[1]s.%[2]s_value[%[3]s])", f.messages(), message, value)
	case typeMessage:
		return of(x)
	case typeMessages:
		return fmt.Sprintf("aip.Each(%s, func(item domain.%s) *%s.%s { return %s })", x, f.DomainType(), f.messages(), message, of("item"))
	}
	return f.ToProto(x)
}

// messages is the Go package of the messages.
func (f field) messages() string { return strings.ReplaceAll(f.entity, "_", "") + "v1" }
