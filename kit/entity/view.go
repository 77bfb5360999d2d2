package entity

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The templates call the methods below.

// Go is the name in Go: PurchaseOrder.
func (e entity) Go() string { return camel(e.Name) }

// GoPlural is the plural in Go.
func (e entity) GoPlural() string { return camel(e.Plural) }

// Var begins the names that are not exported.
func (e entity) Var() string { return unexported(e.Name) }

// VarPlural is the name of the registration.
func (e entity) VarPlural() string { return unexported(e.Plural) }

// ProtoGo is the name of a field of this name in the code of protoc-gen-go.
func (e entity) ProtoGo() string { return protoCamel(e.Name) }

// ProtoGoPlural is ProtoGo for the plural.
func (e entity) ProtoGoPlural() string { return protoCamel(e.Plural) }

// ID is the name of its id in events and views, which have the id of the event besides.
func (e entity) ID() string {
	if e.Name == "event" {
		return "aggregate_id"
	}
	return e.Name + "_id"
}

// GoPackage is the name of the Go package of the messages.
func (e entity) GoPackage() string { return strings.ReplaceAll(e.Name, "_", "") + "v1" }

// ProtoPackage is the package of the messages.
func (e entity) ProtoPackage() string { return e.Name + ".v1" }

// ProtoDir is the folder of the messages, in api/proto.
func (e entity) ProtoDir() string { return e.Name + "/v1" }

// JSON is the name in JSON and in resource types.
func (e entity) JSON() string { return lowerCamel(e.Name) }

// Collection is the first part of resource names.
func (e entity) Collection() string { return lowerCamel(e.Plural) }

// ViewCollection is the first part of the resource names of views.
func (e entity) ViewCollection() string { return lowerCamel(e.Name) + "Views" }

// Replica reports whether another service owns the entity.
func (e entity) Replica() bool { return e.ReplicaOf != "" }

// Topic is the name of the topic.
func (e entity) Topic() string { return cmp.Or(e.ReplicaOf, e.EventTopic) }

// Consumer is the name of the consumer of the projection.
func (e entity) Consumer() string {
	if e.Replica() {
		return e.Reader
	}
	return strings.ReplaceAll(e.Name, "_", "-") + "-views"
}

// Consumers are the consumers of the topic.
func (e entity) Consumers() []string { return append([]string{e.Consumer()}, e.readers...) }

// Words is the name in prose.
func (e entity) Words() string { return words(e.Name) }

// PluralWords is the plural in prose.
func (e entity) PluralWords() string { return words(e.Plural) }

// A is the name in prose with its article, at the start of a sentence.
func (e entity) A() string { return capital(article(words(e.Name))) }

// AnEvent is the name of the event's message with its article.
func (e entity) AnEvent() string {
	a, _, _ := strings.Cut(article(words(e.Name)), " ")
	return a + " " + e.Go() + "Event"
}

// Has reports whether there is a field of a type.
func (e entity) Has(typ string) bool {
	return slices.ContainsFunc(e.Fields, func(f field) bool { return f.kind() == typ })
}

func (e entity) where(is func(field) bool) []field {
	return slices.DeleteFunc(slices.Clone(e.Fields), func(f field) bool { return !is(f) })
}

// Enums are the fields that are enums.
func (e entity) Enums() []field { return e.where(func(f field) bool { return f.Type == typeEnum }) }

// Messages are the fields that are messages, or lists of them.
func (e entity) Messages() []field {
	return e.where(func(f field) bool { return f.kind() == typeMessage })
}

// FirstMessage is the first field that is a single message, or none: an update can change its parts.
func (e entity) FirstMessage() []field {
	all := e.where(func(f field) bool { return f.Type == typeMessage && !f.OutputOnly })
	return all[:min(1, len(all))]
}

// Samples are the fields with their n-th samples, as Go.
func (e entity) Samples(n int) (items []string) {
	for _, f := range e.Fields {
		items = append(items, f.Go()+": "+f.Sample(n))
	}
	return items
}

// Users are the fields of who wrote the row, if that is recorded. Their numbers are smaller than the number of an owner's field.
func (e entity) Users() (users []field) {
	for i, name := range []string{"create_user", "update_user"} {
		if e.Audited != 0 {
			of := []string{"created it", "changed it last"}[i]
			users = append(users, field{Name: name, Type: typeUser, OutputOnly: true, Number: 8 + i, Migration: e.Audited,
				Comment: "Who " + of + ": the caller of the command, or the name of a reaction or a timer; empty: unknown."})
		}
	}
	return users
}

// Stored are the fields, and Users.
func (e entity) Stored() []field { return slices.Concat(e.Fields, e.Users()) }

// FirstStored are the fields of the first migration, and Users, if it adds them.
func (e entity) FirstStored() []field { return ofMigration(e.Stored(), e.Migration) }

func ofMigration(fields []field, number int) []field {
	return slices.DeleteFunc(fields, func(f field) bool { return f.Migration != number })
}

// Required are the fields that must be set.
func (e entity) Required() []field { return e.where(func(f field) bool { return f.Required }) }

// Clones are the fields whose copies share memory.
func (e entity) Clones() []field { return e.where(field.isShared) }

// Truncates are the fields whose precision is limited.
func (e entity) Truncates() []field { return e.where(field.isTruncated) }

// FirstFields are the fields of the first migration.
func (e entity) FirstFields() []field {
	return e.where(func(f field) bool { return f.Migration == e.Migration })
}

// LaterFields are the fields of later migrations.
func (e entity) LaterFields() []field {
	return e.where(func(f field) bool { return f.Migration != e.Migration })
}

// FirstNames are the quoted names of the fields of the first migration.
func (e entity) FirstNames() (names []string) {
	for _, f := range e.FirstFields() {
		names = append(names, strconv.Quote(f.Name))
	}
	return names
}

// Migrations are the numbers of the migrations that add fields or Users.
func (e entity) Migrations() (numbers []int) {
	for _, f := range e.Kept() {
		if !slices.Contains(numbers, f.Migration) {
			numbers = append(numbers, f.Migration)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// allMigrations are the numbers of all migrations.
func (e entity) allMigrations() []int {
	numbers := e.Migrations()
	for _, c := range slices.Concat(e.Constraints, e.TenantIndexes) {
		numbers = append(numbers, c.Migration)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// Columns are all columns, each with a prefix: keys, the fields, and the columns that every entity has.
func (e entity) Columns(prefix string, keys ...string) []string {
	columns := slices.Clone(keys)
	for _, f := range e.Kept() {
		columns = append(columns, f.Column())
	}
	if len(e.States()) > 0 {
		columns = append(columns, "state")
	}
	columns = append(columns, "version", "create_time", "update_time", "delete_time")
	for i := range columns {
		columns[i] = prefix + columns[i]
	}
	return columns
}

// Sets are assignments to all columns except the keys and one other.
func (e entity) Sets(prefix, except string) (sets []string) {
	for _, column := range e.Columns("") {
		if column != except {
			sets = append(sets, column+" = "+prefix+column)
		}
	}
	return sets
}

// State is a state of an entity.
type State struct{ Name string }

// Go is the end of its name in Go.
func (s State) Go() string { return camel(s.Name) }

// Comment says what it means.
func (s State) Comment() string { return capital(words(s.Name)) + "." }

// States are the states in the order of their first mention. A new entity has the first.
func (e entity) States() (states []State) {
	for _, t := range e.Transitions {
		for _, name := range []string{t.From, t.To} {
			if !slices.Contains(states, State{name}) {
				states = append(states, State{name})
			}
		}
	}
	return states
}

// stateNames are the names of the states.
func (e entity) stateNames() (list []string) {
	for _, s := range e.States() {
		list = append(list, s.Name)
	}
	return list
}

// Refs are the fields by which lists can be filtered.
func (e entity) Refs() []field { return e.where(func(f field) bool { return f.Ref }) }

// Filter is an example of each restriction of a list, or nothing.
func (e entity) Filter() string {
	var all []string
	if states := e.States(); len(states) > 0 {
		all = append(all, "state = STATE_"+strings.ToUpper(states[0].Name))
	}
	for _, f := range e.Refs() {
		all = append(all, f.Name+` = "UUID"`)
	}
	return strings.Join(all, ", ")
}

// StateList are the states as SQL.
func (e entity) StateList() string { return texts(e.stateNames()) }

// texts are texts as SQL.
func texts(list []string) string { return "'" + strings.Join(list, "', '") + "'" }

// Reserved are the numbers of fields that somebody has removed. No other field may get them.
func (e entity) Reserved() (numbers []string) {
	for number := firstNumber; number <= e.LastNumber; number++ {
		if !slices.ContainsFunc(e.Fields, func(f field) bool { return f.Number == number }) {
			numbers = append(numbers, strconv.Itoa(number))
		}
	}
	return numbers
}

// Command is a command that changes the state.
type Command struct {
	Name, To string
	From     []string
	Event    string
}

// Go is its name in Go.
func (c Command) Go() string { return camel(c.Name) }

// Var is the name of a variable with its result.
func (c Command) Var() string { return "after" + camel(c.Name) }

// JSON is its name in URLs.
func (c Command) JSON() string { return lowerCamel(c.Name) }

// HasWords reports whether its name has several words: the API linter takes only the first for the name.
func (c Command) HasWords() bool { return strings.Contains(c.Name, "_") }

// FromWords are the states from which it leads, in prose.
func (c Command) FromWords() string {
	var list []string
	for _, from := range c.From {
		list = append(list, words(from))
	}
	return strings.Join(list, " or ")
}

// Commands are the commands that change the state.
func (e entity) Commands() (commands []Command) {
	for _, t := range e.Transitions {
		i := slices.IndexFunc(commands, func(c Command) bool { return c.Name == t.Command })
		if i < 0 {
			commands = append(commands, Command{Name: t.Command, To: t.To, Event: e.eventOf(t)})
			i = len(commands) - 1
		}
		commands[i].From = append(commands[i].From, t.From)
	}
	return commands
}

// eventOf returns the name of a transition's event.
func (e entity) eventOf(t transition) string { return e.Go() + camel(e.eventField(t)) }

// eventField returns the name of the event's field in proto: the state that the transition leads
// to. The name is the command if the transition leads back to the first state or, with EventPerCommand, if an
// earlier transition with another command leads to the same state.
func (e entity) eventField(t transition) string {
	first := slices.IndexFunc(e.Transitions, func(other transition) bool { return other.To == t.To })
	if t.To == e.States()[0].Name || e.EventPerCommand && e.Transitions[first].Command != t.Command {
		return participle(t.Command)
	}
	return t.To
}

// participle returns the regular past participle of a command.
func participle(command string) string {
	if strings.HasSuffix(command, "e") {
		return command + "d"
	}
	return command + "ed"
}

// Event is a type of event.
type Event struct {
	Go      string // OrderPlaced
	Field   string // placed
	Number  int
	Comment string
	Updated bool
}

// Message is the name of its message.
func (v Event) Message() string { return v.Go }

// FieldGo is the name of its field in Go.
func (v Event) FieldGo() string { return protoCamel(v.Field) }

// Events are the types of events, in the order of their numbers.
func (e entity) Events() []Event {
	a := e.A()
	events := []Event{
		{Go: e.Go() + "Created", Field: "created", Number: 10, Comment: a + " was created."},
		{Go: e.Go() + "Updated", Field: "updated", Number: 11, Comment: "Some fields of " + lowerFirst(a) + " changed.", Updated: true},
		{Go: e.Go() + "Deleted", Field: "deleted", Number: 12, Comment: a + " was deleted; it can be undeleted."},
		{Go: e.Go() + "Undeleted", Field: "undeleted", Number: 13, Comment: a + " was restored."},
	}
	for _, t := range e.Transitions {
		name := e.eventOf(t)
		if slices.ContainsFunc(events, func(v Event) bool { return v.Go == name }) {
			continue
		}
		events = append(events, Event{Go: name, Field: e.eventField(t), Number: len(events) + 16, Comment: fmt.Sprintf("%s became %s.", a, words(t.To))})
	}
	return events
}

// Imports are the packages that a file needs: of the standard library, of others, and ours.
func (e entity) Imports(layer string) []string {
	const known = "google.golang.org/protobuf/types/known/"
	ours := e.names.Module + "/"
	messages := e.GoPackage() + ` "` + ours + `api/proto/` + e.ProtoDir() + `"`
	quoted := func(paths ...string) (out []string) {
		for _, p := range paths {
			if p != "" && !strings.Contains(p, `"`) {
				p = `"` + p + `"`
			}
			out = append(out, p)
		}
		return out
	}
	list := func(needed bool, paths ...string) []string {
		if needed {
			return paths
		}
		return nil
	}
	switch layer {
	case "domain":
		hasSlices := !e.Replica() && (len(e.States()) > 0 || slices.ContainsFunc(e.Fields, field.IsList))
		return quoted(slices.Concat(list(e.Has(typeBytes) && !e.Replica(), "bytes"), list(hasSlices, "slices"), []string{"time", "", "github.com/google/uuid", ""}, list(!e.Replica(), ours+"internal/problem"))...)
	case "sample":
		hasIDs, hasTimes := e.Has(typeUUID), e.Has(typeTime) || e.Has(typeDuration)
		hasLists := slices.ContainsFunc(e.Fields, func(f field) bool { return f.Type == typeMessages })
		return quoted(slices.Concat(list(len(e.Enums()) > 0, "strings"), list(hasTimes, "time"), []string{""}, list(hasIDs, "github.com/google/uuid"), list(e.Has(typeDuration), known+"durationpb"),
			[]string{"", messages}, list(hasIDs || hasTimes || hasLists, ours+"internal/aip"), []string{ours + "internal/domain"})...)
	case "event":
		return quoted(slices.Concat(list(!e.Replica(), "fmt"), list(e.Has(typeDuration), "time"), []string{""}, list(slices.ContainsFunc(e.Fields, func(f field) bool { return f.Type == typeUUID }) && !e.Replica(), "github.com/google/uuid"), []string{"google.golang.org/protobuf/proto", "", messages, ours + "internal/domain", ours + "internal/envelope"})...)
	case "store":
		return quoted(slices.Concat([]string{"cmp", "context"}, list(len(e.Messages()) > 0, "encoding/json", "fmt"), list(e.Has(typeDuration), "time"), []string{
			"", "github.com/google/uuid", "github.com/jackc/pgx/v5/pgxpool",
			"", ours + "internal/consumer", ours + "internal/domain", ours + "internal/envelope",
		}, list(!e.Replica(), ours+"internal/event"), []string{ours + "internal/pg", ours + "internal/store/internal/sqlcgen"}, list(e.Tenant != 0, ours+"internal/tenant"), list(len(e.Timers) > 0, ours+"options/reactions/timers"))...)
	default: // server
		return quoted(slices.Concat([]string{"context"}, list(e.Filter() != "" && !e.Replica(), "text/scanner"), []string{
			"", "github.com/google/uuid",
		}, list(e.Has(typeDuration), known+"durationpb"), list(e.Has(typeTime) && !e.Replica(), known+"timestamppb"), []string{
			"", messages, ours + "internal/aip", ours + "internal/domain",
		}, list(e.Tenant != 0 && !e.Replica(), ours+"internal/tenant"), []string{ours + "internal/transport"})...)
	}
}

// Go is the end of the state's name in Go.
func (t stateTimer) Go() string { return camel(t.State) }

// GoAfter is the duration in Go.
func (t stateTimer) GoAfter() string {
	after, _ := time.ParseDuration(t.After) // checked
	for _, unit := range []struct {
		name string
		is   time.Duration
	}{{"Hour", time.Hour}, {"Minute", time.Minute}, {"Second", time.Second}} {
		if after%unit.is == 0 {
			return fmt.Sprintf("%d * time.%s", after/unit.is, unit.name)
		}
	}
	return fmt.Sprintf("%d * time.Millisecond", after.Milliseconds())
}

// to is the state to which its command leads.
func (t stateTimer) to() string {
	i := slices.IndexFunc(t.entity.Transitions, func(m transition) bool { return m.Command == t.Command })
	return t.entity.Transitions[i].To
}

// To is the end of the name of the next state in Go.
func (t stateTimer) To() string { return camel(t.to()) }

// ToProto is the end of the name of the next state in proto.
func (t stateTimer) ToProto() string { return strings.ToUpper(t.to()) }

// Path are the commands that lead from the first state to the timer's state.
func (t stateTimer) Path() []Command { return t.entity.path(t.State) }

// Version is the version of an entity after Path and the timer.
func (t stateTimer) Version() int { return len(t.Path()) + 2 }

// path returns commands that lead from the first state to another one.
func (e entity) path(state string) []Command {
	paths := map[string][]Command{e.States()[0].Name: nil}
	for range e.Transitions { // each round reaches one more state, or none
		for _, c := range e.Commands() {
			for _, from := range c.From {
				path, reached := paths[from]
				if _, known := paths[c.To]; reached && !known {
					paths[c.To] = append(slices.Clone(path), c)
				}
			}
		}
	}
	return paths[state]
}

// FirstTimer is the first of the timers, or none.
func (e entity) FirstTimer() []stateTimer { return e.Timers[:min(1, len(e.Timers))] }

// Walk are commands that can follow each other, from the first state on.
func (e entity) Walk() (walk []Command) {
	if len(e.States()) == 0 {
		return nil
	}
	state := e.States()[0].Name
	for _, c := range e.Commands() {
		if slices.Contains(c.From, state) {
			walk, state = append(walk, c), c.To
		}
	}
	return walk
}
