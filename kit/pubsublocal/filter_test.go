package pubsublocal

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A valid filter accepts the messages that its sentence says.
func TestFilterMatches(t *testing.T) {
	attributes := map[string]string{
		"lang": "en", "name": "com", "empty": "", "a-b_c": "1", "9": "nine", "iana.org/x": "y", "NOT": "n",
		"quote": `say "hi"\`, "lines": "a\tb\n", "é": "é", "byte": "A", "space key": "s", "star": "c*m",
	}
	tests := []struct {
		sentence string
		filter   string
		want     bool
	}{
		{"E1", ``, true},
		{"E3", `attributes:data`, false},
		{"E5", `attributes:name`, true},
		{"E5", `attributes:empty`, true},
		{"E5", `attributes:Name`, false},
		{"E5", `attributes:"name"`, true},
		{"E5", ` attributes : name `, true},
		{"E5", `attributes:9`, true},
		{"E5", `attributes:NOT`, true}, // the position makes it a key
		{"E6", `attributes.name = "com"`, true},
		{"E6", `attributes.name="com"`, true},
		{"E6", "\tattributes.name\r\n=\n\"com\"", true},
		{"E6", `attributes.name = "Com"`, false},
		{"E6", `attributes.name = "co"`, false},
		{"E6", `attributes.name = "c*"`, false},
		{"E6", `attributes.star = "c*m"`, true},
		{"E6", `attributes.missing = ""`, false},
		{"E6", `attributes.empty = ""`, true},
		{"E7", `attributes.name != "com"`, false},
		{"E7", `attributes.name != "net"`, true},
		{"E7", `attributes.name!="net"`, true},
		{"E7", `attributes.missing != "com"`, true},
		{"E7", `attributes.missing != ""`, true},
		{"E8", `hasPrefix(attributes.name, "co")`, true},
		{"E8", `hasPrefix ( attributes.name ,"com" )`, true},
		{"E8", `hasPrefix(attributes.name, "comx")`, false},
		{"E8", `hasPrefix(attributes.name, "Co")`, false},
		{"E8", `hasPrefix(attributes.name, "")`, true},
		{"E8", `hasPrefix(attributes.missing, "")`, false},
		{"E8", `NOT hasPrefix(attributes.missing, "x")`, true},
		{"E11", `NOT attributes:name`, false},
		{"E11", `-attributes:name`, false},
		{"E11", `- attributes:missing`, true},
		{"E11", `NOT attributes:name AND attributes:missing`, false},
		{"E11", `NOT attributes:missing AND attributes:name`, true},
		{"E11", `-attributes:name OR attributes:lang`, true},
		{"E11", `NOT (attributes:name OR attributes:missing)`, false},
		{"E11", `NOT(attributes:missing)`, true},
		{"E11", `attributes:name AND -attributes:missing`, true},
		{"E12", `attributes:name AND attributes:lang AND attributes:empty`, true},
		{"E12", `attributes:name AND attributes:lang AND attributes:missing`, false},
		{"E12", `attributes:m OR attributes:n OR attributes:name`, true},
		{"E12", `attributes:m OR attributes:n OR attributes:o`, false},
		{"E12", `attributes:name AND (attributes:missing OR attributes:lang)`, true},
		{"E12", `(attributes:missing AND attributes:name) OR attributes:lang`, true},
		{"E12", `((attributes:name))`, true},
		{"E13", `attributes.a-b_c = "1"`, true},
		{"E13", `attributes."iana.org/x" = "y"`, true},
		{"E13", `attributes:"iana.org/x"`, true},
		{"E13", `attributes:"é"`, true},
		{"E13", `attributes."space key" = "s"`, true},
		{"E14", `attributes.quote = "say \"hi\"\\"`, true},
		{"E14", `attributes.lines = "a\tb\n"`, true},
		{"E14", `attributes:"\u00e9"`, true},
		{"E14", `attributes."é" = "\xc3\xa9"`, true},
		{"E14", `attributes.byte = "\x41"`, true},
		{"E14", `attributes.byte = "\101"`, true},
	}
	for _, test := range tests {
		t.Run(test.sentence+" "+test.filter, func(t *testing.T) {
			f, err := parseFilter(test.filter)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.match(attributes); got != test.want {
				t.Errorf("match() = %v, want %v", got, test.want)
			}
		})
	}
}

// checkStatus compares an error with a code and a part of its text.
func checkStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("error = %v, want code %v and %q in it", err, code, text)
	}
}

// An invalid filter is INVALID_ARGUMENT (E2).
func TestFilterRefuses(t *testing.T) {
	tests := []struct {
		sentence string
		filter   string
	}{
		{"E1", `attributes:` + strings.Repeat("k", 246)},
		{"E2", ` `},
		{"E2", `attributes`},
		{"E2", `attributes:`},
		{"E2", `attributes.`},
		{"E2", `attributes.a`},
		{"E2", `attributes.a =`},
		{"E2", `attributes.a = $`},
		{"E2", `attributes.a == "x"`},
		{"E2", `attributes.a : "x"`},
		{"E2", `attributes.a < "x"`},
		{"E2", `attributes.a = "x`},
		{"E2", `attributes.a = 'x'`},
		{"E2", `attributes.a = x`},
		{"E2", `attributes.a = 1`},
		{"E2", `attributes .a = "x"`},
		{"E2", `attributes. a = "x"`},
		{"E2", `attributes:a = "x"`},
		{"E2", `attributes:a attributes:b`},
		{"E2", `attributes:a AND`},
		{"E2", `AND attributes:a`},
		{"E2", `attributes:a OR OR attributes:b`},
		{"E2", `NOT`},
		{"E2", `()`},
		{"E2", `(attributes:a`},
		{"E2", `attributes:a)`},
		{"E2", `Attributes:a`},
		{"E3", `data = "x"`},
		{"E3", `message_id = "1"`},
		{"E9", `hasprefix(attributes.a, "x")`},
		{"E9", `hasSuffix(attributes.a, "x")`},
		{"E9", `hasPrefix(attributes.a)`},
		{"E9", `hasPrefix()`},
		{"E9", `hasPrefix`},
		{"E9", `hasPrefix(attributes.a, "x", "y")`},
		{"E9", `hasPrefix(attributes:a, "x")`},
		{"E9", `hasPrefix("x", attributes.a)`},
		{"E9", `hasPrefix(attributes.a, attributes.b)`},
		{"E9", `hasPrefix(attributes.a "x")`},
		{"E10", `attributes:a and attributes:b`},
		{"E10", `attributes:a or attributes:b`},
		{"E10", `not attributes:a`},
		{"E10", `NOTattributes:a`},
		{"E10", `attributes:a ANDattributes:b`},
		{"E12", `attributes:a AND attributes:b OR attributes:c`},
		{"E12", `attributes:a OR attributes:b AND attributes:c`},
		{"E12", `(attributes:a AND attributes:b OR attributes:c)`},
		{"E12", `attributes:d AND (attributes:a OR attributes:b AND attributes:c)`},
		{"E13", `attributes.iana.org/x = "y"`},
		{"E13", `attributes:iana.org`},
		{"E13", `attributes:é`},
		{"E14", `attributes.a = "\q"`},
		{"E14", `attributes.a = "\u12"`},
		{"E14", `attributes.a = "\ud800"`},
		{"E14", `attributes.a = "\x4"`},
		{"E14", `attributes.a = "\`},
		{"E14", `attributes.\u0061 = "x"`},
		{"E15", `"com" = attributes.a`},
		{"E15", `attributes.a = attributes.b`},
		{"E15", `attributes.a = ("x" OR "y")`},
		{"E15", `attributes.a = "x" AND "y"`},
		{"E15", `attributes.a AND ("x" OR "y")`},
	}
	for _, test := range tests {
		t.Run(test.sentence+" "+test.filter, func(t *testing.T) {
			_, err := parseFilter(test.filter)
			checkStatus(t, err, codes.InvalidArgument, "filter")
		})
	}
}

// A filter of exactly 256 bytes is accepted, even with the deepest nesting (E1).
func TestFilterLimits(t *testing.T) {
	for _, text := range []string{
		`attributes:` + strings.Repeat("k", 245),
		strings.Repeat("-", 244) + `attributes:k`,
		strings.Repeat("(", 122) + `attributes:k` + strings.Repeat(")", 122),
	} {
		if len(text) != maxFilter {
			t.Errorf("the test has a filter of %d bytes, want %d", len(text), maxFilter)
		}
		if _, err := parseFilter(text); err != nil {
			t.Errorf("parseFilter() = %v, want no error", err)
		}
	}
}

// The parser never panics. Every valid filter can be evaluated, and its negation gives the opposite
// (E11).
func FuzzFilter(f *testing.F) {
	for _, text := range []string{
		"", `attributes:a`, `attributes."a" = "\u00e9\x41\101"`, `NOT (attributes.a != "b" OR -hasPrefix(attributes.c, "d"))`,
		`attributes:a AND attributes:b AND attributes:"c"`, `attributes.a = "\`, "((((", "\xff",
	} {
		f.Add(text, "a", "b")
	}
	f.Fuzz(func(t *testing.T, text, key, value string) {
		parsed, err := parseFilter(text)
		if err != nil {
			checkStatus(t, err, codes.InvalidArgument, "filter")
			return
		}
		parsed.match(nil)
		got := parsed.match(map[string]string{key: value})
		negation := "NOT (" + text + ")"
		if text == "" || len(negation) > maxFilter {
			return
		}
		opposite, err := parseFilter(negation)
		if err != nil {
			t.Fatalf("parseFilter(%q) = %v, want no error, as %q has none", negation, err, text)
		}
		if opposite.match(map[string]string{key: value}) == got {
			t.Errorf("%q and %q both are %v", text, negation, got)
		}
	})
}
