package oidc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"example.com/videocatalog/internal/auth"
)

// policy lists which callers may call which methods. Anything else is denied.
//
// Its file is YAML or JSON:
//
//	rules:
//	  - email: [web@shop.iam.gserviceaccount.com]
//	    methods: [library.v1.BookService/*, desk.v1.LoanService/*]
//	  - sub: ["112233445566778899000"]
//	    methods: [library.v1.BookService/ListBooks]
//	  - any_authenticated: true
//	    methods: [desk.v1.LoanService/GetLoan]
//
// A rule applies to a caller that matches at least one of email, sub and
// any_authenticated. Emails are compared without the case of A to Z, subjects
// exactly. A method is a full name, all methods of a service (*), or all methods
// ("*"). Reflection is an ordinary service. The health service is open to
// everyone and cannot be listed.
type policy struct {
	subjects map[[2]string]bool // a subject and a method
	emails   map[[2]string]bool // an email and a method
	anyone   map[string]bool    // methods of every authenticated caller
}

type policyFile struct {
	Rules []policyRule `yaml:"rules"`
}

type policyRule struct {
	Email            []string `yaml:"email"`
	Sub              []string `yaml:"sub"`
	AnyAuthenticated bool     `yaml:"any_authenticated"`
	Methods          []string `yaml:"methods"`
}

// parsePolicy parses a policy. methods are the names of all methods, as
// package.Service/Method; a rule that names another method is an error. It returns
// all errors at once, joined.
func parsePolicy(text []byte, methods []string) (*policy, error) {
	var file policyFile
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return nil, errors.Join(yamlErrors(err)...)
	}
	if err := decoder.Decode(new(policyFile)); !errors.Is(err, io.EOF) {
		return nil, errors.New("it must be one YAML document")
	}
	p := &policy{subjects: make(map[[2]string]bool), emails: make(map[[2]string]bool), anyone: make(map[string]bool)}
	var errs []error
	if len(file.Rules) == 0 {
		errs = append(errs, errors.New("rules must have at least one: without one nobody may do anything"))
	}
	for i, rule := range file.Rules {
		for _, err := range p.add(rule, methods) {
			errs = append(errs, fmt.Errorf("rules[%d]%w", i, err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// yamlErrors splits the error of the YAML library into one error per mistake,
// in words of the policy file.
func yamlErrors(err error) []error {
	if errors.Is(err, io.EOF) {
		return []error{errors.New("it is empty: it must have rules")}
	}
	typed, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return []error{err}
	}
	var errs []error
	for _, text := range typed.Errors {
		text = strings.ReplaceAll(text, " in type oidc.policyFile", "")
		errs = append(errs, errors.New(strings.ReplaceAll(text, " in type oidc.policyRule", " in a rule: it may have email, sub, any_authenticated, methods")))
	}
	return errs
}

func (p *policy) add(rule policyRule, methods []string) []error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(rule.Email) == 0 && len(rule.Sub) == 0 && !rule.AnyAuthenticated {
		wrong(" names nobody: it must have email, sub or any_authenticated: true")
	}
	for i, email := range rule.Email {
		if name, domain, ok := strings.Cut(email, "@"); !ok || name == "" || domain == "" || strings.ContainsAny(email, "* \t\n") {
			wrong(".email[%d]: %q must be an address such as web@shop.iam.gserviceaccount.com", i, email)
		}
	}
	for i, sub := range rule.Sub {
		if sub == "" || strings.ContainsAny(sub, "* \t\n") {
			wrong(".sub[%d]: %q must be a subject as the issuer's tokens have it", i, sub)
		}
	}
	if len(rule.Methods) == 0 {
		wrong(".methods must list at least one: there are %s", strings.Join(services(methods), ", "))
	}
	var allowed []string
	for i, pattern := range rule.Methods {
		found, err := expand(pattern, methods)
		if err != nil {
			wrong(".methods[%d]: %w", i, err)
		}
		allowed = append(allowed, found...)
	}
	for _, method := range allowed {
		for _, email := range rule.Email {
			p.emails[[2]string{lower(email), method}] = true
		}
		for _, sub := range rule.Sub {
			p.subjects[[2]string{sub, method}] = true
		}
		if rule.AnyAuthenticated {
			p.anyone[method] = true
		}
	}
	return errs
}

// lower converts A to Z to lower case. strings.ToLower would also make
// different characters equal: it maps the Kelvin sign to k.
func lower(email string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, email)
}

// expand returns the methods that match a pattern.
func expand(pattern string, methods []string) ([]string, error) {
	if auth.IsOpen(pattern) {
		return nil, fmt.Errorf("%q is open to everyone: take it out", pattern)
	}
	prefix, all := strings.CutSuffix(pattern, "*")
	var found []string
	for _, method := range methods {
		if !auth.IsOpen(method) && (method == pattern || all && strings.HasPrefix(method, prefix)) {
			found = append(found, method)
		}
	}
	if all && prefix != "" && !strings.HasSuffix(prefix, "/") {
		return nil, fmt.Errorf("%q: * stands for all methods of a service, after its slash, or alone for everything", pattern)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%q is not served: there are %s", pattern, strings.Join(services(methods), ", "))
	}
	return found, nil
}

// services returns the services that a rule can name, each with "/*".
func services(methods []string) []string {
	var names []string
	for _, method := range methods {
		service, _, _ := strings.Cut(method, "/")
		if name := service + "/*"; !auth.IsOpen(method) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Allows reports whether a caller may call a method, package.Service/Method.
func (p *policy) Allows(caller auth.Caller, method string) bool {
	return p.anyone[method] || p.subjects[[2]string{caller.Subject, method}] || caller.Email != "" && p.emails[[2]string{lower(caller.Email), method}]
}
