package entity

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/token"
	gotypes "go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"example.com/servicekit/naming"
)

// entity is the description from which the files of an aggregate type are made. It is kept
// in internal/entities.
type entity struct {
	Name        string       `yaml:"name"`
	Plural      string       `yaml:"plural"`
	Fields      []field      `yaml:"fields"`
	Transitions []transition `yaml:"transitions,omitempty"`
	Timers      []stateTimer `yaml:"timers,omitempty"`
	Reactions   []reaction   `yaml:"reactions,omitempty"`
	// Audited is the number of the migration that adds the columns of who wrote a row. 0: they are not recorded.
	Audited int `yaml:"audited,omitempty"`
	// Batch reports whether many entities can be created, and read, by one call.
	Batch bool `yaml:"batch,omitempty"`
	// Tenant is the number of the migration that adds the tenant of a row. 0: rows have none.
	Tenant int `yaml:"tenant,omitempty"`
	// CallsSince is the number of the migration that opens the tables to the roles of API calls. 0: the option tenancy has.
	CallsSince int `yaml:"calls_since,omitempty"`
	// TenantIndexes are the migrations of the indexes of a tenant that was added later.
	TenantIndexes []constraint `yaml:"tenant_indexes,omitempty"`
	// EventPerCommand gives the second command that leads to a state an event of its own. Entities that were made before
	// this field existed keep their events.
	EventPerCommand bool `yaml:"event_per_command,omitempty"`
	// LastNumber is the highest number that a field has ever had. So the number of a removed
	// field is not used again: events have it.
	LastNumber int `yaml:"last_number,omitempty"`
	// EventTopic is the name of the topic. It begins with the service, because services share
	// the topics of a project.
	EventTopic string `yaml:"topic"`
	// ReplicaOf is the topic of another service that owns the entity. Empty: it is our own.
	ReplicaOf string `yaml:"replica_of,omitempty"`
	// OwnerProject is the Google Cloud project of that topic. Empty: it is in ours.
	OwnerProject string `yaml:"owner_project,omitempty"`
	// Reader is the name of the consumer of a replica. No other service that reads the topic
	// has a consumer of this name.
	Reader string `yaml:"reader,omitempty"`
	// Migration is the number of the migration that makes the tables.
	Migration int `yaml:"migration"`
	// Constraints are the migrations that gave a column more values.
	Constraints []constraint `yaml:"constraints,omitempty"`
	// Rendered are the hashes of the files as they were made. A file with another hash
	// has been edited, and belongs to its owner.
	Rendered map[string]string `yaml:"rendered,omitempty"`

	names names // of the service

	made      []int             // the migrations of this run
	widened   []widening        // the columns that get more values in this run
	whole     bool              // also write files that were removed
	overwrite bool              // write edited files, too, and leave the samples as they are
	only      []string          // the files that this run writes; empty: all
	copies    map[string][]byte // the owner's files of a replica
	readers   []string          // the consumers of reactions to the entity
	Model     string            `yaml:"-"` // the type of a row of the aggregate in the code of sqlc
	ViewModel string            `yaml:"-"` // the same of the projection
}

// transition is a command that changes the state.
type transition struct {
	From    string `yaml:"from"`
	To      string `yaml:"to"`
	Command string `yaml:"command"`
}

// stateTimer limits how long an entity may be in a state: then a command is run.
type stateTimer struct {
	State   string `yaml:"state"`
	After   string `yaml:"after"` // a duration of Go, such as 15m
	Command string `yaml:"command"`

	entity *entity
}

// constraint is the number of a migration that replaces the constraint of a column, or that
// validates the new one, or that builds the index of this name.
type constraint struct {
	Column    string `yaml:"column"`
	Migration int    `yaml:"migration"`
}

// widening is a column that takes more values than before.
type widening struct {
	Column        string
	Before, After []string
}

// folder has the descriptions.
const folder = "internal/entities"

func pathOf(name string) string { return filepath.Join(folder, name+".yaml") }

// load reads and checks a description. It also reads the descriptions of the entities to which this one reacts.
func load(path string) (entity, error) {
	e, err := decode(path)
	if err != nil {
		return e, err
	}
	if filepath.Dir(path) != folder { // of another service, of which a replica has neither
		e.Timers, e.Reactions = nil, nil
		return e, e.check()
	}
	if err := e.resolve(filepath.Dir(path)); err != nil {
		return e, err
	}
	errs := []error{e.check(), e.checkTenant()}
	for i := range e.Reactions {
		errs = append(errs, e.Reactions[i].check()...)
	}
	return e, errors.Join(errs...)
}

func decode(path string) (entity, error) {
	var e entity
	text, err := os.ReadFile(path) //nolint:gosec // a description of this repository
	if err != nil {
		return e, err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&e); err != nil {
		return e, fmt.Errorf("%s: %w", path, err)
	}
	e.setEntity()
	e.LastNumber = e.lastNumber()
	e.names, err = readNames()
	return e, err
}

// lastNumber returns the highest number that a field has, or has had.
func (e entity) lastNumber() int {
	last := max(e.LastNumber, firstNumber-1)
	for _, f := range e.Fields {
		last = max(last, f.Number)
	}
	return last
}

// save writes the description.
func (e entity) save(written *undo) error {
	text := bytes.NewBufferString("# What `go run ./cmd/entity` made this entity of. It maintains this file.\n")
	encoder := yaml.NewEncoder(text)
	encoder.SetIndent(2)
	if err := encoder.Encode(e); err != nil {
		return err
	}
	return written.write(pathOf(e.Name), text.Bytes())
}

// setEntity sets the entity of each of its parts.
func (e *entity) setEntity() {
	for i := range e.Fields {
		e.Fields[i].entity = e.Name
	}
	for i := range e.Timers {
		e.Timers[i].entity = e
	}
	for i := range e.Reactions {
		r := &e.Reactions[i]
		r.Entity = e
		if r.To == e.Name {
			r.Of = e
		}
		for j := range r.Rules {
			r.Rules[j].of = r
		}
	}
}

// firstNumber is the number in proto of an owner's first field. The fields that every entity
// has use the smaller numbers.
const firstNumber = 10

// check returns all mistakes in a description.
func (e entity) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !entityName.MatchString(e.Name) || len(e.Name) > 24 { // the name of its consumer has six more characters, and 30 at most
		wrong("entity %q: the name must be lower_snake_case without digits, with at most 24 characters, in the singular", e.Name)
	}
	errs = append(errs, cmp.Or(checkWord(e.Name, "_record"), checkWord(e.Plural, "_list")))
	switch {
	case e.Plural == "" && !entityName.MatchString(e.Name): // it follows from the name
	case !entityName.MatchString(e.Plural) || len(e.Plural) > 32:
		wrong("plural %q must be lower_snake_case without digits, with at most 32 characters", e.Plural)
	case e.Plural == e.Name:
		wrong("plural %q is equal to the singular: choose another, such as %s_list", e.Plural, e.Name)
	case naming.IsSQLKeyword(e.Plural) || token.IsKeyword(e.Plural) || gotypes.Universe.Lookup(e.Plural) != nil:
		wrong("plural %q is a word of SQL or Go: choose another, such as %s_list", e.Plural, e.Name)
	}
	if len(e.Fields) == 0 {
		wrong("an entity needs at least one field, from a file or --fields")
	}
	for i, f := range e.Fields {
		errs = append(errs, f.check()...)
		if slices.ContainsFunc(e.Users(), f.sharesName) {
			wrong("field %q: --audited needs this name, and a field cannot have it, too", f.Name)
		}
		if slices.ContainsFunc(e.Tenants(), f.sharesName) {
			wrong("field %q: --tenant needs this name, and a field cannot have it, too", f.Name)
		}
		if slices.Contains([]string{e.Name, e.ID(), e.Name + "_details"}, f.Name) {
			wrong("field %q: the entity itself has this name: choose another, such as %s_value", f.Name, f.Name)
		}
		for _, other := range e.Fields[:i] {
			if f.sharesName(other) {
				wrong("field %q: the field %q has this name, or needs it", f.Name, other.Name)
			}
		}
	}
	errs = append(errs, e.checkTransitions()...)
	errs = append(errs, e.checkTimers()...)
	return errors.Join(errs...)
}

func (e entity) checkTransitions() (errs []error) {
	wrong := func(t transition, format string, args ...any) {
		errs = append(errs, fmt.Errorf("transition %s→%s:%s: "+format, append([]any{t.From, t.To, t.Command}, args...)...))
	}
	for i, t := range e.Transitions {
		for _, word := range []string{t.From, t.To, t.Command} {
			if !snakeOfType.MatchString(word) || word == "unspecified" {
				wrong(t, "%q must be "+snakeRule+", other than unspecified", word)
			}
		}
		if slices.Contains([]string{"create", "get", "list", "update", "delete", "undelete", "move", "change"}, t.Command) {
			wrong(t, "the command %q is one that every entity has, or needs", t.Command)
		}
		if slices.Contains([]string{"deleted", "created", "updated", "undeleted"}, t.To) {
			wrong(t, "the state %q is no state: the event of that name exists", t.To)
		}
		switch field := e.eventField(t); {
		case slices.Contains(methods, field):
			wrong(t, "the field %q of its event has the name of a method of messages: choose another", field)
		case slices.Contains(e.nested(), protoCamel(field)):
			wrong(t, "the event has a message or an enum for %q already: choose another", field)
		}
		if t.From == t.To {
			wrong(t, "it changes nothing")
		}
		if !e.isReached(t.From) {
			wrong(t, "no transition leads from %s to %s", e.Transitions[0].From, t.From)
		}
		for _, other := range e.Transitions[:i] {
			switch {
			case other == t:
				wrong(t, "it is listed twice")
			case other.Command == t.Command && other.To != t.To:
				wrong(t, "the command %q leads to %s too: a command has one target", t.Command, other.To)
			case (other.To != t.To || e.EventPerCommand && other.Command != t.Command) && e.eventOf(other) == e.eventOf(t):
				wrong(t, "its event would be %s, as that of the command %q: choose another command", e.eventOf(t), other.Command)
			}
		}
	}
	return errs
}

func (e entity) checkTimers() (errs []error) {
	if len(e.Timers) > 0 && !e.names.HasReactions {
		errs = append(errs, errNoReactions)
	}
	for i, t := range e.Timers {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("timer %s:%s:%s: "+format, append([]any{t.State, t.After, t.Command}, args...)...))
		}
		if after, err := time.ParseDuration(t.After); err != nil || after < time.Millisecond {
			wrong("%q must be a duration of a millisecond or more, such as 15m", t.After)
		}
		if !slices.ContainsFunc(e.Transitions, func(m transition) bool { return m.From == t.State && m.Command == t.Command }) {
			wrong("no command %q leads from %s to another state", t.Command, t.State)
		}
		if slices.ContainsFunc(e.Timers[:i], func(other stateTimer) bool { return other.State == t.State }) {
			wrong("the state %s has a timer already", t.State)
		}
	}
	return errs
}

// errNoReactions is the error of a timer or a reaction that nothing would run.
var errNoReactions = errors.New("timers and reactions need the option reactions: go run ./cmd/upgrade --with reactions adds it; " +
	"its README says how to lose them")

// nested are the messages and enums in the message of the events. protoc-gen-go makes a Go type of each, and one
// of the field of each event: their names must differ.
func (e entity) nested() []string {
	nested := []string{"Snapshot", "State"}
	for _, f := range slices.Concat(e.Enums(), e.Messages()) {
		nested = append(nested, f.Proto())
	}
	for _, v := range e.Events() {
		nested = append(nested, v.Message())
	}
	return nested
}

// isReached reports whether transitions lead from the first state to another one.
func (e entity) isReached(state string) bool {
	reached := []string{e.Transitions[0].From}
	for range e.Transitions { // each round reaches one more state, or none
		for _, t := range e.Transitions {
			if slices.Contains(reached, t.From) {
				reached = append(reached, t.To)
			}
		}
	}
	return slices.Contains(reached, state)
}

// parseFields reads fields from the command line, such as
// customer_id:uuid! note:string? color:enum(red,green).
func parseFields(text string) ([]field, error) {
	var fields []field
	var errs []error
	for _, word := range splitOutside(text) {
		name, typ, ok := strings.Cut(word, ":")
		if !ok || typ == "" {
			errs = append(errs, fmt.Errorf("field %q: want NAME:TYPE, such as total_cents:int64", word))
			continue
		}
		f := field{Name: name}
		typ, f.Required = strings.CutSuffix(typ, "!")
		typ, f.Optional = strings.CutSuffix(typ, "?")
		f.Type = typ
		if values, ok := inBrackets(typ, "enum(", ")"); ok {
			f.Type = typeEnum
			if values != "" {
				f.Values = strings.Split(values, ",")
			}
		}
		item, isList := inBrackets(typ, "[", "]")
		if parts, ok := inBrackets(cmp.Or(item, typ), "{", "}"); ok {
			inner, err := parseFields(parts)
			errs = append(errs, err)
			f.Type, f.Parts = typeMessage, inner
			if isList {
				f.Type = typeMessages
			}
		}
		fields = append(fields, f)
	}
	return fields, errors.Join(errs...)
}

func inBrackets(text, left, right string) (inner string, ok bool) {
	inner, begins := strings.CutPrefix(text, left)
	inner, ends := strings.CutSuffix(inner, right)
	return inner, begins && ends
}

// splitOutside splits a list at spaces and commas outside of brackets.
func splitOutside(text string) []string {
	depth := 0
	return strings.FieldsFunc(text, func(r rune) bool {
		switch r {
		case '(', '{':
			depth++
		case ')', '}':
			depth--
		}
		return depth == 0 && (r == ',' || unicode.IsSpace(r))
	})
}

// parseTransitions reads transitions as they are on the command line, such as
// draft→placed:place placed->canceled:cancel. A new entity has the first state.
func parseTransitions(text string) ([]transition, error) {
	var all []transition
	var errs []error
	for _, word := range splitOutside(strings.ReplaceAll(text, "->", "→")) {
		states, command, ok := strings.Cut(word, ":")
		from, to, ok2 := strings.Cut(states, "→")
		if !ok || !ok2 {
			errs = append(errs, fmt.Errorf("transition %q: want FROM→TO:COMMAND, such as draft→placed:place", word))
			continue
		}
		all = append(all, transition{From: from, To: to, Command: command})
	}
	return all, errors.Join(errs...)
}

// parseTimers reads timers as they are on the command line, such as placed:15m:cancel.
func parseTimers(text string) ([]stateTimer, error) {
	var all []stateTimer
	var errs []error
	for _, word := range splitOutside(text) {
		parts := strings.Split(word, ":")
		if len(parts) != 3 {
			errs = append(errs, fmt.Errorf("timer %q: want STATE:DURATION:COMMAND, such as placed:15m:cancel", word))
			continue
		}
		all = append(all, stateTimer{State: parts[0], After: parts[1], Command: parts[2]})
	}
	return all, errors.Join(errs...)
}

// grow returns the entity with the fields, values, states and transitions that a new description
// adds. The existing ones must not change, because databases and events have them.
func (e entity) grow(next entity, migration int) (entity, error) {
	exists := e.Migration != 0
	if !exists {
		e.Migration, e.EventPerCommand = migration, true
		e.EventTopic = e.names.Service + "." + strings.ReplaceAll(next.Name, "_", "-") + ".events"
	}
	e.Name, e.Plural, e.made, e.Timers = next.Name, next.Plural, []int{migration}, next.Timers
	err := errors.Join(e.growFields(next.Fields, exists, migration), e.growStates(next.Transitions, exists))
	if len(e.widened) > 0 {
		e.made = append(e.made, migration+1)
	}
	for _, w := range e.widened {
		e.Constraints = append(e.Constraints, constraint{w.Column, migration}, constraint{w.Column, migration + 1})
	}
	if next.Audited != 0 && e.Audited == 0 {
		e.Audited = migration
	}
	e.Batch = e.Batch || next.Batch
	if next.Tenant != 0 && e.Tenant == 0 {
		e.addTenant(migration)
	}
	if e.CallsSince == 0 && e.names.HasTenancy && (!exists || e.Tenant == migration) {
		e.CallsSince = migration
	}
	e.setEntity()
	return e, errors.Join(err, e.check())
}

// growFields adds the new fields of a description, and the new values of enums.
func (e *entity) growFields(next []field, exists bool, migration int) error {
	var errs []error
	named := func(name string) func(field) bool { return func(f field) bool { return f.Name == name } }
	fields := slices.Clone(e.Fields)
	for i, f := range fields {
		at := slices.IndexFunc(next, named(f.Name))
		if at < 0 {
			errs = append(errs, fmt.Errorf("field %q is gone: databases and events have it, so it cannot be removed by this command", f.Name))
			continue
		}
		now := next[at]
		now.Values = slices.Clone(f.Values) // the numbers of values follow from their order
		for _, value := range next[at].Values {
			if !slices.Contains(f.Values, value) {
				now.Values = append(now.Values, value)
			}
		}
		for _, value := range f.Values {
			if now.Type == typeEnum && !slices.Contains(next[at].Values, value) {
				errs = append(errs, fmt.Errorf("field %q: the value %q is gone: databases and events have it, so it cannot be removed by this command", f.Name, value))
			}
		}
		if !f.sameType(now) {
			errs = append(errs, fmt.Errorf("field %q had another type, or other rules: add a field with another name", f.Name))
			continue
		}
		if now.Ref && !f.Ref {
			errs = append(errs, errLateRef(f.Name))
		}
		fields[i].Values, fields[i].OutputOnly = now.Values, f.OutputOnly || now.OutputOnly
		if f.Migration == e.Migration && len(now.Values) > len(f.Values) { // a column that came later has no constraint
			e.widened = append(e.widened, widening{f.Column(), f.allowed(f.Values), f.allowed(now.Values)})
		}
	}
	e.LastNumber = e.lastNumber()
	for _, f := range next {
		if slices.ContainsFunc(e.Fields, named(f.Name)) {
			continue
		}
		e.LastNumber++
		f.Number, f.Migration = e.LastNumber, migration
		if f.Ref && exists {
			errs = append(errs, errLateRef(f.Name))
		}
		if f.Required && exists {
			errs = append(errs, fmt.Errorf("field %q cannot be required: what exists does not have it, and could no longer be changed", f.Name))
		}
		fields = append(fields, f)
	}
	e.Fields = fields
	return errors.Join(errs...)
}

// errLateRef returns the error for a filter of an entity that already exists.
func errLateRef(name string) error {
	return fmt.Errorf("--refs %s: an entity that exists gets a filter by hand, because its index is made beside writes: docs/entity.md", name)
}

// growStates adds the new transitions of a description, with their states.
func (e *entity) growStates(next []transition, exists bool) error {
	var errs []error
	for _, t := range e.Transitions {
		if !slices.Contains(next, t) {
			errs = append(errs, fmt.Errorf("transition %s→%s:%s is gone, and cannot be removed by this command", t.From, t.To, t.Command))
		}
	}
	// New transitions come last: the numbers of states and events follow from the order.
	before, transitions := e.stateNames(), slices.Clone(e.Transitions)
	for _, t := range next {
		if !slices.Contains(e.Transitions, t) {
			transitions = append(transitions, t)
		}
	}
	e.Transitions = transitions
	switch after := e.stateNames(); {
	case !exists || len(after) == len(before):
	case len(before) == 0:
		errs = append(errs, fmt.Errorf("%s was made without states, and what exists has none: add the column by hand", e.Name))
	default:
		e.widened = append(e.widened, widening{"state", before, after})
	}
	return errors.Join(errs...)
}

// sameType reports whether two fields have the same name, type, rules and parts. The other field may
// have more values.
func (f field) sameType(other field) bool {
	return f.Name == other.Name && f.Type == other.Type && f.Optional == other.Optional && f.Required == other.Required &&
		len(f.Values) <= len(other.Values) && slices.Equal(f.Values, other.Values[:len(f.Values)]) && slices.EqualFunc(f.Parts, other.Parts, field.sameType)
}

// Check returns the mistakes in the description of a new entity. Only add reports conflicts with a service,
// such as a name that it already has.
func Check(name, plural, fields, refs, transitions, timers string, audited bool) error {
	o := options{name: name, plural: plural, fields: fields, refs: refs, moves: transitions, timers: timers, audited: audited}
	grown, err := o.grow(context.Background(), entity{names: names{HasReactions: true}})
	return errors.Join(err, grown.checkLint(entity{}))
}
