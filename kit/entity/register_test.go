package entity

import (
	"strings"
	"testing"
)

// A call is added at the end of the list, once, and what the owner wrote stays.
func TestWithCall(t *testing.T) {
	t.Parallel()
	const head, tail = "package main\n\nfunc registrations() []app.Registration {\n", "\t}\n}\n"
	for before, want := range map[string]string{
		"\treturn []app.Registration{}\n}\n":                          "\treturn []app.Registration{\n\t\torders(),\n" + tail,
		"\treturn []app.Registration{\n\t\tcarts(), // mine\n" + tail: "\treturn []app.Registration{\n\t\tcarts(), // mine\n\t\torders(),\n" + tail,
		"\treturn []app.Registration{\n\t\torders(),\n" + tail:        "\treturn []app.Registration{\n\t\torders(),\n" + tail,
		"\treturn []app.Registration{carts()}\n}\n":                   "\treturn []app.Registration{carts(),\n\t\torders(),\n" + tail,
	} {
		got, err := withCall([]byte(head+before), "orders()")
		if err != nil || string(got) != head+want {
			t.Errorf("withCall(%q) = %q, %v, want %q", before, strings.TrimPrefix(string(got), head), err, want)
		}
	}
	if _, err := withCall([]byte("package main\n"), "orders()"); err == nil {
		t.Error("withCall() of a file without a list = nil, want an error")
	}
}
