package console

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// hexDump writes the first bytes of a payload, and whether there are more.
func hexDump(payload []byte) (text string, cut bool) {
	return hex.Dump(payload[:min(len(payload), hexBytes)]), len(payload) > hexBytes
}

// rawFields writes a payload as the fields of a protobuf message without its schema, one per
// line, or says where it stops to be one.
func rawFields(payload []byte) string {
	var out strings.Builder
	writeFields(&out, payload, "")
	return out.String()
}

// maxRawFields is about how many bytes of fields are written.
const maxRawFields = 16 << 10

func writeFields(out *strings.Builder, payload []byte, indent string) {
	for rest := payload; len(rest) > 0; {
		if out.Len() > maxRawFields {
			fmt.Fprintf(out, "%s… %d more bytes\n", indent, len(rest))
			return
		}
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			fmt.Fprintf(out, "%sno protobuf from byte %d on\n", indent, len(payload)-len(rest))
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			fmt.Fprintf(out, "%s%d: broken at byte %d\n", indent, number, len(payload)-len(rest))
			return
		}
		writeField(out, number, kind, rest[n:n+size], indent)
		rest = rest[n+size:]
	}
}

func writeField(out *strings.Builder, number protowire.Number, kind protowire.Type, value []byte, indent string) {
	switch kind {
	case protowire.VarintType:
		v, _ := protowire.ConsumeVarint(value)
		fmt.Fprintf(out, "%s%d: %d\n", indent, number, v)
	case protowire.Fixed32Type:
		v, _ := protowire.ConsumeFixed32(value)
		fmt.Fprintf(out, "%s%d: 0x%08x\n", indent, number, v)
	case protowire.Fixed64Type:
		v, _ := protowire.ConsumeFixed64(value)
		fmt.Fprintf(out, "%s%d: 0x%016x\n", indent, number, v)
	case protowire.BytesType:
		v, _ := protowire.ConsumeBytes(value)
		const deepest = 20 // two blanks per level
		switch {
		case isText(v):
			fmt.Fprintf(out, "%s%d: %q\n", indent, number, v)
		case len(indent) < deepest && isMessage(v):
			fmt.Fprintf(out, "%s%d {\n", indent, number)
			writeFields(out, v, indent+"  ")
			fmt.Fprintf(out, "%s}\n", indent)
		default:
			fmt.Fprintf(out, "%s%d: %d bytes %s\n", indent, number, len(v), hex.EncodeToString(v[:min(len(v), 32)]))
		}
	default: // groups, which nobody writes any more
		fmt.Fprintf(out, "%s%d: a group of %d bytes\n", indent, number, len(value))
	}
}

func isText(v []byte) bool {
	return utf8.Valid(v) && !strings.ContainsFunc(string(v), func(r rune) bool { return !unicode.IsPrint(r) && !unicode.IsSpace(r) })
}

// isMessage reports whether all bytes are fields of protobuf.
func isMessage(v []byte) bool {
	for len(v) > 0 {
		_, _, n := protowire.ConsumeField(v)
		if n < 0 {
			return false
		}
		v = v[n:]
	}
	return true
}
