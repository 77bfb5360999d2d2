package oidc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/videocatalog/internal/auth"
)

var methods = []string{
	"desk.v1.LoanService/GetLoan", "desk.v1.LoanService/ListLoans",
	"grpc.health.v1.Health/Check", "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"library.v1.BookService/CreateBook", "library.v1.BookService/GetBook",
}

func mustParse(t *testing.T, text string) *policy {
	t.Helper()
	p, err := parsePolicy([]byte(text), methods)
	must(t, err)
	return p
}

// A rule is only for the callers that it names. A call that no rule allows is denied.
func TestPolicyAllowsWhatItsRulesSay(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `
# who may do what
rules:
  - email: [Web@shop.example.com, ops@shop.example.com]
    sub: ["7"]
    methods: [library.v1.BookService/*]
  - sub: ["1"]
    methods: ["*"]
  - email: [ops@shop.example.com]
    methods: [grpc.reflection.v1.ServerReflection/ServerReflectionInfo]
  - any_authenticated: true
    methods: [desk.v1.LoanService/GetLoan]
`)
	all := "GetLoan ListLoans ServerReflectionInfo CreateBook GetBook"
	for name, tt := range map[string]struct {
		caller auth.Caller
		want   string
	}{
		"by email":           {auth.Caller{Subject: "99", Email: "web@shop.example.com"}, "GetLoan CreateBook GetBook"},
		"by two rules":       {auth.Caller{Subject: "98", Email: "OPS@shop.example.com"}, "GetLoan ServerReflectionInfo CreateBook GetBook"},
		"by subject":         {auth.Caller{Subject: "7"}, "GetLoan CreateBook GetBook"},
		"everything":         {auth.Caller{Subject: "1"}, all},
		"anyone":             {auth.Caller{Subject: "2"}, "GetLoan"},
		"email as a subject": {auth.Caller{Subject: "web@shop.example.com"}, "GetLoan"},
		"subject as email":   {auth.Caller{Subject: "97", Email: "7"}, "GetLoan"},
	} {
		var got []string
		for _, method := range methods {
			if p.Allows(tt.caller, method) {
				_, short, _ := strings.Cut(method, "/")
				got = append(got, short)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: allowed methods (-want +got):\n%s", name, diff)
		}
	}
	if p.Allows(auth.Caller{Subject: "1"}, "library.v1.BookService/PurgeBook") {
		t.Error("everything has a method that is not there, want it denied: a new method needs a new start")
	}
}

// A policy with mistakes is refused as a whole, and the error has all mistakes.
func TestParsePolicyTellsAllMistakes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"empty":    {"", []string{"it is empty"}},
		"comments": {"# nothing\n", []string{"it is empty"}},
		"no rules": {"rules: []", []string{"rules must have at least one"}},
		"no YAML":  {"rules: [", []string{"line 1"}},
		"two":      {"rules:\n- {sub: [a], methods: ['*']}\n---\nrules: []\n", []string{"one YAML document"}},
		"unknown fields": {
			"rule: []\nrules:\n- {subs: [a], method: b}\n",
			[]string{"line 1: field rule not found", "line 3: field subs not found in a rule", "line 3: field method not found"},
		},
		"wrong types": {"rules:\n- {sub: a, any_authenticated: maybe, methods: {}}\n", []string{"line 2: cannot unmarshal", "into bool", "!!map"}},
		"all at once": {
			`
rules:
  - methods: [library.v1.BookService/GetBook]
  - sub: [""]
    email: [shop.example.com, "*@shop.example.com"]
    methods: []
  - any_authenticated: true
    methods: [library.v1.BookService/PurgeBook, library.v2.BookService/*, "library.*", /library.v1.BookService/GetBook, grpc.health.v1.Health/Check, ""]
`,
			[]string{
				"rules[0] names nobody", "rules[1].sub[0]", "rules[1].email[0]", "rules[1].email[1]", "rules[1].methods must list at least one: there are desk.v1.LoanService/*, grpc.reflection",
				`rules[2].methods[0]: "library.v1.BookService/PurgeBook" is not served: there are desk.v1.LoanService/*, grpc.reflection`,
				"rules[2].methods[1]", `rules[2].methods[2]: "library.*": * stands for`, "rules[2].methods[3]",
				"rules[2].methods[4]: \"grpc.health.v1.Health/Check\" is open to everyone", "rules[2].methods[5]",
			},
		},
	} {
		p, err := parsePolicy([]byte(tt.text), methods)
		if p != nil || err == nil {
			t.Errorf("%s: parsePolicy() = %v, %v, want nothing and an error", name, p, err)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error\n%v\nwant it to contain %q", name, err, want)
			}
		}
		if got := strings.Count(err.Error(), "\n") + 1; name == "all at once" && got != len(tt.want) {
			t.Errorf("%s: %d lines, want %d:\n%v", name, got, len(tt.want), err)
		}
	}
}

// Emails are compared without the case of the letters A to Z only. Subjects are
// compared exactly. JSON is YAML too.
func TestPolicyComparesEmailsWithoutCase(t *testing.T) {
	t.Parallel()
	const method = "library.v1.BookService/GetBook"
	policy := mustParse(t, `{"rules": [{"email": ["Kim@Shop.example.com"], "sub": ["Abc"], "methods": ["`+method+`"]}]}`)
	for caller, want := range map[auth.Caller]bool{
		{Email: "kim@shop.example.com"}:      true,
		{Email: "KIM@SHOP.EXAMPLE.COM"}:      true,
		{Email: "\u212aim@shop.example.com"}: false, // the sign of the kelvin, which is a k in lower case
		{Email: "kim@shop.example.com."}:     false,
		{Subject: "Abc"}:                     true,
		{Subject: "abc"}:                     false,
	} {
		if got := policy.Allows(caller, method); got != want {
			t.Errorf("Allows(%+q) = %t, want %t", caller, got, want)
		}
	}
}
