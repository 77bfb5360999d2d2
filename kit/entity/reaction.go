package entity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.com/servicekit/naming"
)

// reaction describes how an entity reacts to events of another entity, or of its own type.
type reaction struct {
	To       string `yaml:"to"`       // whose events
	Consumer string `yaml:"consumer"` // its name ends the name of the subscription
	Rules    []rule `yaml:"rules"`

	Entity *entity `yaml:"-"` // that reacts
	Of     *entity `yaml:"-"` // that To names
}

// rule is what an event does: its field has the id of the entity on which the command is run.
type rule struct {
	Event   string `yaml:"event"`   // captured, of PaymentCaptured
	Field   string `yaml:"field"`   // or sameID
	Command string `yaml:"command"` // or create

	of *reaction
}

const (
	sameID = "id"     // the field of a rule: the entity has the id of the other one
	create = "create" // the command of a rule: makes the entity
)

// String is the rule as on the command line.
func (r rule) String() string { return r.Event + ":" + r.Field + ":" + r.Command }

// parseRules reads rules from the command line, such as captured:order_id:confirm.
func parseRules(text string) (rules []rule, err error) {
	var errs []error
	for _, word := range splitOutside(text) {
		parts := strings.Split(word, ":")
		if len(parts) != 3 {
			errs = append(errs, fmt.Errorf("reaction %q: want EVENT:FIELD:COMMAND, such as captured:order_id:confirm", word))
			continue
		}
		rules = append(rules, rule{Event: parts[0], Field: parts[1], Command: parts[2]})
	}
	if len(rules) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("--on is empty: want EVENT:FIELD:COMMAND, such as captured:order_id:confirm"))
	}
	return rules, errors.Join(errs...)
}

// react returns the entities whose files a reaction changes: the one that reacts, with the new
// rules, and the one whose topic gets a consumer.
func react(name, to, on string) ([]entity, error) {
	rules, err := parseRules(on)
	if err != nil {
		return nil, err
	}
	e, of, err := pair(name, to)
	if err != nil {
		return nil, err
	}
	r := e.reactionTo(of)
	isNew := len(r.Rules) == 0
	r.add(rules)
	e.setEntity()
	if err := errors.Join(r.check()...); err != nil {
		return nil, err
	}
	if isNew {
		err = r.checkFree()
	}
	if err := errors.Join(err, r.checkLoop(), e.checkNames()); err != nil {
		return nil, err
	}
	all := []entity{e, of}
	if name == to {
		all = all[:1]
	}
	last := &all[len(all)-1] // its topic gets the consumer
	if isNew {
		last.readers = append(last.readers, r.Consumer)
		slices.Sort(last.readers)
	}
	for i := range all {
		all[i].only = append(r.paths(), topicFile(to))
	}
	return all, nil
}

// withReactors returns an entity and those that react to it. Of these only the reactions are written: they depend on the tenants of both.
func withReactors(e entity, err error) ([]entity, error) {
	all, errs := []entity{e}, []error{err}
	paths, _ := filepath.Glob(filepath.Join(folder, "*.yaml")) // the pattern is right
	for _, path := range paths {
		other, err := decode(path)
		errs = append(errs, err, other.resolve(folder)) // it is not checked: this run may mend its mistakes
		for i := range other.Reactions {
			if r := &other.Reactions[i]; r.To == e.Name && other.Name != e.Name {
				r.Of = &e
				other.only = r.paths()
				all = append(all, other)
			}
		}
	}
	return all, errors.Join(errs...)
}

// pair reads the descriptions of an entity that can react and of the one to which it reacts.
func pair(name, to string) (e, of entity, err error) {
	if e, err = existing(name); err != nil {
		return e, of, err
	}
	if of, err = existing(to); err != nil {
		return e, of, err
	}
	if e.Replica() {
		return e, of, fmt.Errorf("%s is a replica: only its owner runs commands on it", name)
	}
	if naming.HasFileSuffix("_"+of.Name) || naming.HasFileSuffix("_"+of.Plural) {
		return e, of, fmt.Errorf("the name of a file would end in _%s or _%s, which says where it is built: write this reaction by hand", of.Name, of.Plural)
	}
	return e, of, nil
}

// reactionTo returns the reaction of e to another entity. A new one has no rules.
func (e *entity) reactionTo(of entity) *reaction {
	i := slices.IndexFunc(e.Reactions, func(r reaction) bool { return r.To == of.Name })
	if i < 0 {
		i = len(e.Reactions)
		e.Reactions = append(e.Reactions, reaction{To: of.Name, Consumer: reactionConsumer(*e, of), Of: &of})
	}
	return &e.Reactions[i]
}

// add adds the rules that the reaction does not have.
func (r *reaction) add(rules []rule) {
	before := slices.Clone(r.Rules)
	for _, more := range rules {
		if !slices.ContainsFunc(before, func(old rule) bool { return old.String() == more.String() }) {
			r.Rules = append(r.Rules, more)
		}
	}
}

// existing reads the description of an entity, which must exist.
func existing(name string) (entity, error) {
	e, err := load(pathOf(name))
	if errors.Is(err, os.ErrNotExist) {
		return e, fmt.Errorf("%s has no entity %q: make it with add or replicate", folder, name)
	}
	return e, err
}

// reactionConsumer returns the name of the consumer of a reaction. No other service that reads
// the topic has a consumer of this name.
func reactionConsumer(e, of entity) string {
	if of.Replica() {
		return consumerName(e.names.Service + "-" + e.Name + "-" + of.Name)
	}
	return consumerName(e.Name + "-" + of.Name)
}

// consumerName returns a name as internal/names wants it.
func consumerName(text string) string {
	name := strings.ReplaceAll(text, "_", "-")
	if len(name) > 30 {
		name = name[:21] + "-" + hash([]byte(name))[:8]
	}
	return name
}

func topicFile(name string) string { return "internal/names/" + name + ".go" }

// files are the files of a reaction.
func (r *reaction) files() []file {
	domain, server := "internal/domain/"+r.Entity.Name+"_"+r.To, "cmd/server/"+r.Entity.Plural+"_"+r.Of.Plural
	return []file{
		{path: domain + ".go", template: "reaction.go", of: r},
		{path: domain + "_test.go", template: "reaction_test.go", of: r},
		{path: server + ".go", template: "reaction_registration.go", after: true, of: r},
		{path: server + "_test.go", template: "reaction_server_test.go", after: true, of: r},
	}
}

func (r *reaction) paths() (paths []string) {
	for _, f := range r.files() {
		paths = append(paths, f.path)
	}
	return paths
}

// checkFree returns an error if a file or the consumer of the reaction exists already.
func (r *reaction) checkFree() error {
	var errs []error
	for _, path := range r.paths() {
		if isThere(path) {
			errs = append(errs, fmt.Errorf("%s exists: write the reaction of %s to %s by hand", path, r.Entity.Name, r.To))
		}
	}
	all, err := loadAll()
	errs = append(errs, err)
	for _, e := range all {
		if slices.Contains(append(e.readers, e.Consumer()), r.Consumer) {
			errs = append(errs, fmt.Errorf("the topic of %s has the consumer %s: write the reaction of %s to %s by hand", e.Name, r.Consumer, r.Entity.Name, r.To))
		}
	}
	return errors.Join(errs...)
}

// check returns all mistakes in the rules.
func (r *reaction) check() (errs []error) {
	if !r.Entity.names.HasReactions {
		errs = append(errs, errNoReactions)
	}
	if len(r.Rules) == 0 {
		errs = append(errs, fmt.Errorf("%s reacts to %s without rules: remove it from %s", r.Entity.Name, r.To, pathOf(r.Entity.Name)))
	}
	for i, rule := range r.Rules {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("reaction %s: "+format, append([]any{rule}, args...)...))
		}
		if _, ok := rule.event(); !ok {
			var all []string
			for _, v := range r.Of.Events() {
				all = append(all, v.Field)
			}
			wrong("%s has no event %q, want one of %s", r.To, rule.Event, strings.Join(all, ", "))
		}
		if f, ok := rule.field(); !ok {
			wrong("%s has no field %q", r.To, rule.Field)
		} else if f.Type != typeUUID {
			wrong("the field %q of %s is %s, and must be uuid: it has the id of %s", rule.Field, r.To, f.Type, lowerFirst(r.Entity.A()))
		}
		if _, ok := rule.command(); !ok {
			wrong("%s has no command %q in its transitions", r.Entity.Name, rule.Command)
		}
		if r.Entity.Tenant != 0 && r.Of.Tenant == 0 && (rule.Creates() || !r.Of.Replica()) { // the event of another service names a row, and may have no tenant
			wrong("%s is of a tenant, and the events of %s name none", lowerFirst(r.Entity.A()), r.To)
		}
		for _, f := range rule.missing() {
			wrong("%s needs the field %q, and %s has none of this name and type that is required; enums and messages are not copied", r.Entity.Name, f.Name, r.To)
		}
		for _, other := range r.Rules[:i] {
			switch {
			case other.Event == rule.Event && (rule.Creates() || other.Creates()) && other != rule:
				wrong("the event %s has the reaction %s already: an event that creates does nothing else", rule.Event, other)
			case other.Event == rule.Event && other.Command == rule.Command:
				wrong("the event %s has the command %q already", rule.Event, rule.Command)
			case other.Event == rule.Event && other.Field == rule.Field:
				wrong("the event %s has the command %q for %s already: an event runs one command on %s", rule.Event, other.Command, rule.Field, lowerFirst(r.Entity.A()))
			}
		}
	}
	return errs
}

// checkLoop returns an error if a command of the reaction makes an event that leads to the same
// command again, by the reactions of this service: that would never end.
func (r *reaction) checkLoop() error {
	all, err := loadAll()
	if err != nil {
		return err
	}
	leads := make(map[string][]string) // from the name of an event to the names of the events that it causes
	add := func(r *reaction) {
		for _, rule := range r.Rules {
			leads[rule.On().Go] = append(leads[rule.On().Go], rule.Run().Event)
		}
	}
	for _, e := range all {
		for i := range e.Reactions {
			if e.Name != r.Entity.Name || e.Reactions[i].To != r.To {
				add(&e.Reactions[i])
			}
		}
	}
	add(r)
	var errs []error
	for _, rule := range r.Rules {
		reached := []string{rule.Run().Event}
		for i := 0; i < len(reached); i++ {
			for _, next := range leads[reached[i]] {
				if !slices.Contains(reached, next) {
					reached = append(reached, next)
				}
			}
		}
		if cause := rule.On().Go; slices.Contains(reached, cause) {
			errs = append(errs, fmt.Errorf("reaction %s: the command %q leads to %s again, so it would never end", rule, rule.Command, cause))
		}
	}
	return errors.Join(errs...)
}

// loadAll reads all descriptions.
func loadAll() ([]entity, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var all []entity
	for _, path := range paths {
		e, err := load(path)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// resolve finds the entities to which e reacts, and the consumers of reactions to e, among the
// descriptions of a folder.
func (e *entity) resolve(dir string) error {
	for i := range e.Reactions {
		r := &e.Reactions[i]
		r.Of = e
		if r.To == e.Name {
			continue
		}
		of, err := decode(filepath.Join(dir, r.To+".yaml"))
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s reacts to %q, and %s has no entity of this name", e.Name, r.To, dir)
		}
		if err != nil {
			return err
		}
		r.Of = &of
	}
	e.setEntity()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		other, err := decode(path)
		if err != nil {
			return err
		}
		for _, r := range other.Reactions {
			if r.To == e.Name {
				e.readers = append(e.readers, r.Consumer)
			}
		}
	}
	slices.Sort(e.readers)
	return nil
}

// The templates call the methods below.

// Go begins the names in Go: OrderPayment.
func (r *reaction) Go() string { return r.Entity.Go() + r.Of.Go() }

// Func is the name of the registration.
func (r *reaction) Func() string { return r.Entity.VarPlural() + "On" + r.Of.GoPlural() }

// Own reports whether the entity reacts to events of its own.
func (r *reaction) Own() bool { return r.Entity.Name == r.To }

// First is the first of the rules.
func (r *reaction) First() rule { return r.Rules[0] }

// concern is a list of events, and of their fields with the ids.
type concern struct{ Events, Fields []string }

// Concerns returns the events with their fields, in the order of the rules.
func (r *reaction) Concerns() (all []concern) {
	for _, rule := range r.Rules {
		event, id := rule.On().Go, "e."+r.Of.Go()+"."+rule.FieldGo()
		i := slices.IndexFunc(all, func(c concern) bool { return c.Events[0] == event })
		if i < 0 {
			all, i = append(all, concern{Events: []string{event}}), len(all)
		}
		all[i].Fields = append(all[i].Fields, id)
	}
	var merged []concern
	for _, c := range all { // events with the same fields share a case
		i := slices.IndexFunc(merged, func(m concern) bool { return slices.Equal(m.Fields, c.Fields) })
		if i < 0 {
			merged = append(merged, c)
			continue
		}
		merged[i].Events = append(merged[i].Events, c.Events...)
	}
	return merged
}

func (r rule) event() (Event, bool) {
	events := r.of.Of.Events()
	i := slices.IndexFunc(events, func(v Event) bool { return v.Field == r.Event })
	if i < 0 {
		return Event{}, false
	}
	return events[i], true
}

func (r rule) command() (Command, bool) {
	if r.Creates() {
		c := Command{Name: create, Event: r.of.Entity.Go() + "Created"}
		if states := r.of.Entity.stateNames(); len(states) > 0 {
			c.To = states[0]
		}
		return c, true
	}
	commands := r.of.Entity.Commands()
	i := slices.IndexFunc(commands, func(c Command) bool { return c.Name == r.Command })
	if i < 0 {
		return Command{}, false
	}
	return commands[i], true
}

func (r rule) field() (field, bool) {
	if r.Field == sameID {
		return field{Name: sameID, Type: typeUUID}, true
	}
	i := slices.IndexFunc(r.of.Of.Fields, func(f field) bool { return f.Name == r.Field })
	if i < 0 {
		return field{}, false
	}
	return r.of.Of.Fields[i], true
}

// missing are the required fields that a new entity might not get from the event. If one is
// not set, no entity is made, and nobody sees an error.
func (r rule) missing() (all []field) {
	if !r.Creates() {
		return nil
	}
	for _, f := range r.of.Entity.Fields {
		of, ok := r.copyOf(f)
		if f.Required && !(ok && of.Required) && f.Name != r.Field {
			all = append(all, f)
		}
	}
	return all
}

// copyOf returns the field of the event that a field of a new entity is copied from. The fields
// of an enum or a message have a type of their own in each entity.
func (r rule) copyOf(f field) (of field, ok bool) {
	i := slices.IndexFunc(r.of.Of.Fields, func(of field) bool {
		return of.Name == f.Name && of.Type == f.Type && of.Optional == f.Optional
	})
	if i < 0 || f.isNested() {
		return of, false
	}
	return r.of.Of.Fields[i], true
}

// Copied are the fields that a new entity gets from the event: those with the same name and type.
func (r rule) Copied() (all []field) {
	if !r.Creates() {
		return nil
	}
	for _, f := range r.of.Entity.Fields {
		if _, ok := r.copyOf(f); ok {
			all = append(all, f)
		}
	}
	return all
}

// Others are the copied fields without the field of the rule.
func (r rule) Others() []field {
	return slices.DeleteFunc(r.Copied(), func(f field) bool { return f.Name == r.Field })
}

// Creates reports whether the rule makes the entity.
func (r rule) Creates() bool { return r.Command == create }

// SameID reports whether the entity has the id of the other one.
func (r rule) SameID() bool { return r.Field == sameID }

// CopiesOwn reports whether a new entity copies the field of the rule as well.
func (r rule) CopiesOwn() bool { return len(r.Others()) < len(r.Copied()) }

// On is the event.
func (r rule) On() Event { v, _ := r.event(); return v }

// Run is the command.
func (r rule) Run() Command { c, _ := r.command(); return c }

// FieldGo is the field in the domain.
func (r rule) FieldGo() string { f, _ := r.field(); return f.Go() }

// FieldEventGo is the field in the event.
func (r rule) FieldEventGo() string { f, _ := r.field(); return f.EventGo() }

// State is a state that the other entity can have after the event. Empty: it has no states.
func (r rule) State() string {
	of := r.of.Of
	for _, t := range of.Transitions {
		if of.eventOf(t) == r.On().Go {
			return t.To
		}
	}
	if len(of.Transitions) > 0 {
		return of.States()[0].Name
	}
	return ""
}

// From is a state from which the command leads.
func (r rule) From() string { return r.Run().From[0] }

// Path are the commands that lead to the state From.
func (r rule) Path() []Command { return r.of.Entity.path(r.From()) }

// Version is the version of an entity after Path and the command.
func (r rule) Version() int {
	if r.Creates() {
		return 1
	}
	return len(r.Path()) + 2
}

// CreatesAny reports whether a rule makes an entity.
func (r *reaction) CreatesAny() bool { return slices.ContainsFunc(r.Rules, rule.Creates) }

// TestsOther reports whether the test of the decision needs a second id.
func (r *reaction) TestsOther() bool {
	return slices.ContainsFunc(r.Rules, func(rule rule) bool { return !rule.Creates() || !rule.SameID() })
}

// RunsAny reports whether a rule runs a command on an entity that exists.
func (r *reaction) RunsAny() bool {
	return slices.ContainsFunc(r.Rules, func(rule rule) bool { return !rule.Creates() })
}

// Copies reports whether a new entity gets a field of a type.
func (r *reaction) Copies(kind string) bool {
	return slices.ContainsFunc(r.Rules, func(rule rule) bool {
		return slices.ContainsFunc(rule.Others(), func(f field) bool { return f.kind() == kind })
	})
}
