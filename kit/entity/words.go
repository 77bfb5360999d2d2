package entity

import (
	"regexp"
	"strings"

	"example.com/servicekit/naming"
)

// inCamel writes the parts of a lower_snake_case name together.
func inCamel(name string, write func(part string) string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		out.WriteString(write(part))
	}
	return out.String()
}

// camel returns a name as Go writes it: OrderID, HomeURL.
func camel(name string) string {
	return inCamel(name, func(part string) string {
		switch {
		case naming.IsInitialism(part):
			return strings.ToUpper(part)
		case part == "ids", part == "urls", part == "uuids":
			return strings.ToUpper(part[:len(part)-1]) + "s"
		}
		return capital(part)
	})
}

// unexported is camel for a name that is not exported: orderID, urlItem.
func unexported(name string) string {
	first, rest, _ := strings.Cut(name, "_")
	return first + camel(rest)
}

// protoCamel returns a name as protoc-gen-go writes it: OrderId, Line_1, B2BCode.
func protoCamel(name string) string {
	return protoWord.ReplaceAllStringFunc(name, func(word string) string { return capital(strings.TrimPrefix(word, "_")) })
}

var protoWord = regexp.MustCompile(`_?[a-z]+`)

// sqlCamel returns a name as sqlc writes it, for which only id is an abbreviation.
func sqlCamel(name string) string {
	return inCamel(name, func(part string) string {
		if part == "id" {
			return "ID"
		}
		return capital(part)
	})
}

// lowerCamel returns a name as JSON writes it: orderId.
func lowerCamel(name string) string { return lowerFirst(inCamel(name, capital)) }

func capital(part string) string {
	if part == "" {
		return ""
	}
	return strings.ToUpper(part[:1]) + part[1:]
}

// words returns a name as prose.
func words(name string) string { return strings.ReplaceAll(name, "_", " ") }

// article returns a text with a or an before it.
func article(text string) string {
	if naming.StartsWithVowel(text) {
		return "an " + text
	}
	return "a " + text
}

// lowerFirst returns a text with its first letter in lower case.
func lowerFirst(text string) string { return strings.ToLower(text[:1]) + text[1:] }

// lineWidth is the length of lines at which lists are broken.
const lineWidth = 120

// width is the length of a line, in which a tab counts as four characters.
func width(line string) int { return len(line) + 3*strings.Count(line, "\t") }

// wrap writes a list in lines that are not too long. All but the first begin with an indent.
func wrap(indent, separator string, items []string) string {
	var lines []string
	line := ""
	for _, item := range items {
		switch {
		case line == "":
			line = item
		case width(indent+line+separator+item) > lineWidth:
			lines, line = append(lines, line+strings.TrimRight(separator, " ")), item
		default:
			line += separator + item
		}
	}
	return strings.Join(append(lines, line), "\n"+indent)
}

// comment writes a text as a comment, in lines that are not too long.
func comment(indent, text string) string {
	return "// " + wrap(indent+"// ", " ", strings.Fields(text))
}

// literal writes a composite literal of Go: in one line, or with an item per line.
func literal(indent, typ string, items []string) string {
	line := typ + "{" + strings.Join(items, ", ") + "}"
	if width(indent+line) <= lineWidth {
		return line
	}
	return typ + "{\n" + indent + "\t" + strings.Join(items, ",\n"+indent+"\t") + ",\n" + indent + "}"
}
