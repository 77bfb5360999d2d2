package entity

import (
	"strings"
	"unicode"

	"example.com/servicekit/naming"
)

// camel returns a lower_snake_case name as Go writes it: OrderID, HomeURL.
func camel(name string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		switch part {
		case "id", "url", "uri", "api", "ip", "html", "http", "json", "sql", "uid", "uuid", "xml":
			out.WriteString(strings.ToUpper(part))
		case "ids", "urls", "uuids":
			out.WriteString(strings.ToUpper(part[:len(part)-1]) + "s")
		default:
			out.WriteString(capital(part))
		}
	}
	return out.String()
}

// unexported is camel for a name that is not exported: orderID, urlItem.
func unexported(name string) string {
	first, rest, _ := strings.Cut(name, "_")
	return first + camel(rest)
}

// protoCamel returns a name as protoc-gen-go writes it: OrderId.
func protoCamel(name string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		out.WriteString(capital(part))
	}
	return out.String()
}

// sqlCamel returns a name as sqlc writes it, for which only id is an abbreviation.
func sqlCamel(name string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		if part == "id" {
			out.WriteString("ID")
			continue
		}
		out.WriteString(capital(part))
	}
	return out.String()
}

// lowerCamel returns a name as JSON writes it: orderId.
func lowerCamel(name string) string {
	whole := protoCamel(name)
	return strings.ToLower(whole[:1]) + whole[1:]
}

func capital(part string) string {
	if part == "" {
		return ""
	}
	return strings.ToUpper(part[:1]) + part[1:]
}

// words returns a name as prose.
func words(name string) string { return strings.ReplaceAll(name, "_", " ") }

// sentence begins a text with a capital letter.
func sentence(text string) string { return capital(text) }

// article returns a text with a or an before it.
func article(text string) string {
	if naming.StartsWithVowel(text) {
		return "an " + text
	}
	return "a " + text
}

// lowerFirst begins a text with a small letter.
func lowerFirst(text string) string {
	for i, r := range text {
		if i == 0 {
			return string(unicode.ToLower(r)) + text[len(string(r)):]
		}
	}
	return text
}

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
