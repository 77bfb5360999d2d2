package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"example.com/servicekit/naming"
)

// question asks for one option.
type question struct {
	flag, text string
	of         func(*options) *string
	skip       func(*options) bool // nil: never
}

// questions are the questions for a lean service. Their order matters, because a default may
// depend on earlier values.
var questions = []question{
	{"module", "Go module path, such as github.com/acme/orders", func(a *options) *string { return &a.Module }, nil},
	{"service", "Name of the service in Google Cloud, 6 to 20 letters", func(a *options) *string { return &a.Service }, nil},
	{"entity", "What it stores, in the singular, such as order or purchase_order", func(a *options) *string { return &a.Entity }, isFull},
	{"plural", "The plural", func(a *options) *string { return &a.Plural }, isFull},
	{"fields", "Its fields, such as customer:string! total_cents:int64 color:enum(red,green)", func(a *options) *string { return &a.Fields }, isFull},
	{"refs", "Its uuid fields by which lists can be filtered, such as customer_id", func(a *options) *string { return &a.Refs }, hasNoUUIDs},
	{"transitions", "Its states and commands, such as draft->placed:place placed->canceled:cancel", func(a *options) *string { return &a.Transitions }, isFull},
	{"purpose", "What the service is for, in one sentence", func(a *options) *string { return &a.Purpose }, isFull},
	{"with", "Options", func(a *options) *string { return &a.with }, isFull},
	{"timers", "Limits of its time in a state, such as draft:15m:cancel", func(a *options) *string { return &a.Timers }, hasNoTimers},
	{"schema", "PostgreSQL schema", func(a *options) *string { return &a.Schema }, nil},
	{"domain", "Domain of the reasons of errors", func(a *options) *string { return &a.Domain }, nil},
}

func isFull(a *options) bool { return a.Full }

func hasNoUUIDs(a *options) bool { return a.Full || !strings.Contains(a.Fields, ":uuid") }

func hasNoTimers(a *options) bool {
	return a.Full || a.Transitions == "" || !slices.Contains(list(a.with), "reactions")
}

// ask asks for the options that are missing. An empty line takes the default. After a value that breaks a rule,
// it prints the rule and asks again. At the end it prints the command that needs no questions.
func ask(a *options, stdin io.Reader, stdout io.Writer) error {
	if err := a.checkFolder(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "A new service in %s. Enter takes what is in brackets; go run ./cmd/new --help explains the rest.\n\n", a.dir)
	lines := bufio.NewScanner(stdin)
	for _, q := range questions {
		if *q.of(a) != "" || q.skip != nil && q.skip(a) {
			continue
		}
		if err := q.ask(a, lines, stdout); err != nil {
			return err
		}
	}
	command := []string{"go run ./cmd/new", naming.ForShell(a.dir)}
	for _, q := range questions {
		if value := *q.of(a); value != "" {
			command = append(command, "--"+q.flag, naming.ForShell(value))
		}
	}
	for _, flag := range []struct {
		on   bool
		name string
	}{{a.Full, "--full"}, {a.Audited, "--audited"}, {a.Batch, "--batch"}} {
		if flag.on {
			command = append(command, flag.name)
		}
	}
	_, err := fmt.Fprintf(stdout, "\nThe same without questions:\n\n  %s\n\n", strings.Join(command, " "))
	return err
}

// ask asks until the value keeps the rules.
func (q question) ask(a *options, lines *bufio.Scanner, stdout io.Writer) error {
	for {
		byDefault := q.byDefault(*a)
		text := q.text
		if q.flag == "with" {
			text += ", separated by commas or spaces, of " + strings.Join(append(slices.Clone(choices), a.offered...), ", ")
		}
		fmt.Fprintf(stdout, "%s [%s]: ", text, cmp.Or(byDefault, "none"))
		if !lines.Scan() {
			return errors.Join(errors.New("the input ended before all questions"), lines.Err())
		}
		next := *a
		*q.of(&next) = cmp.Or(strings.TrimSpace(lines.Text()), byDefault)
		rule := next.rule(q.flag)
		if rule == "" {
			*q.of(a) = *q.of(&next)
			return nil
		}
		fmt.Fprintf(stdout, "  %s\n", rule)
	}
}

// byDefault returns the value of an empty line.
func (q question) byDefault(a options) string {
	switch q.flag {
	case "module":
		return "example.com/" + serviceOf(filepath.Base(a.dir))
	case "entity": // the service orders or order-service suggests order
		guess := strings.TrimSuffix(strings.ReplaceAll(strings.TrimSuffix(a.Service, "-service"), "-", "_"), "s")
		if a.Entity = guess; a.rule("entity") != "" {
			return "item"
		}
		return guess
	}
	a.setDefaults()
	return *q.of(&a)
}

// rule returns the rule that an option breaks, or "".
func (a options) rule(flag string) string {
	a.setDefaults()
	for _, m := range a.mistakes() {
		if m.flag == flag {
			return m.rule
		}
	}
	return ""
}
