package main

import (
	"regexp"
	"strings"
)

// exampleBody is the body of a create in commands that one can try.
const exampleBody = `{"title": "Ran"}`

// fieldOf matches a field in the form of cmd/entity.
var fieldOf = regexp.MustCompile(`(\w+):(?:enum\((\w+)[^)]*\)|(\[?)\{([^}]*)\}|(\w+))`)

// bodyOf returns the body of a create, as JSON, for the fields of an entity.
func bodyOf(fields string) string {
	var members []string
	for _, f := range fieldOf.FindAllStringSubmatch(fields, -1) {
		name, enum, list, parts, typ := f[1], f[2], f[3], f[4], f[5]
		value, ok := examples[typ]
		switch {
		case enum != "":
			value = `"` + strings.ToUpper(name+"_"+enum) + `"`
		case list != "":
			value = "[" + bodyOf(parts) + "]"
		case parts != "":
			value = bodyOf(parts)
		case !ok:
			value = "[" + examples[strings.TrimSuffix(typ, "s")] + "]"
		}
		members = append(members, `"`+camel(name)+`": `+value)
	}
	return "{" + strings.Join(members, ", ") + "}"
}

// examples are values as JSON, by the type.
var examples = map[string]string{
	"string": `"text"`, "bool": "true", "int32": "12", "int64": "1200", "double": "1.5", "bytes": `"YQ=="`,
	"time": `"2026-01-02T03:04:05Z"`, "duration": `"90s"`, "uuid": `"01890a5d-ac96-7f00-8b02-0c0d0e0f1003"`,
}
