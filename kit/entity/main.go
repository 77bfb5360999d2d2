// Package entity is a command of a service that makes the files of an aggregate type: messages, migration, queries,
// decisions, events, store, handlers, projection, registration and tests.
//
//	go run ./cmd/entity add order --fields 'customer_id:uuid! total_cents:int64' --transitions 'draft→placed:place'
//
// In hand-written files it only adds lines to lists: the registrations and, with the options replay and repair, the aggregates
// and the projections. The description stays in internal/entities. Run the command again to add to it: it adds a
// migration, writes the files again, and merges into the files that you have edited.
package entity

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.com/servicekit/naming"
	"example.com/servicekit/tool"
)

const usage = `go run ./cmd/entity add NAME [FILE.proto] makes the files of an aggregate type, such as order or purchase_order.

  FILE.proto          takes the fields and their comments from the message with the name of the entity. Its numbers begin at 10, after
                      the fields of every entity, and a nested type has the name of its field. Or:
  --fields LIST       fields as NAME:TYPE. A list has spaces, in quotes, or commas. TYPE is
                        string bool int32 int64 double bytes time duration uuid   one value
                        strings bools int32s int64s doubles uuids                 a list
                        enum(red,green)                                           one of some values
                        {street:string,city:string}                               a message of scalars
                        [{title:string,quantity:int32}]                           a list of such messages
                      ? behind string, bool, int32, int64 or double: optional
                      ! behind string, bytes, time, uuid, enum and lists: required
  --transitions LIST  commands that change the state, as FROM→TO:COMMAND, such as 'draft→placed:place placed→canceled:cancel'.
                      -> is the same as →. A new entity has the first state. The event has the name of the new state; a further
                      command to a state has its own, such as resumed for paused→active:resume
  --refs LIST         uuid fields of a new entity by which lists can be filtered, such as customer_id
  --timers LIST       limits of the time in a state, as STATE:DURATION:COMMAND, such as placed:15m:cancel; none removes them
  --plural NAME       default: the regular plural
  --audited           create_user and update_user, also in events: the caller of the command, or the name of a reaction or a timer
  --batch             BatchCreate and BatchGet: up to 1,000 entities in a call and a transaction, all or none
  --tenant            rows of tenants, of which a call sees one: needs the option tenancy

For an entity that exists it adds the fields, values, states and transitions that are new, also to files that you edited. A list that
is not given stays, and so does a flag. Its other commands:

go run ./cmd/entity replicate NAME OWNER   keeps a copy of an entity of another service, made of its events

  OWNER               folder of that service, or its Go module with a version, such as github.com/acme/orders@v1.2.0
  --project PROJECT   Google Cloud project of that service, if it is another one

go run ./cmd/entity react NAME OTHER   has an entity react to the events of another one, or of a replica; run again, it adds more

  --on LIST           reactions as EVENT:FIELD:COMMAND, such as captured:order_id:confirm: when OTHERCaptured comes, the command confirm
                      is run on the entity whose id is in the uuid field order_id of OTHER. A field that is not set concerns none.
                      FIELD is id if both have the same id. COMMAND is create, as in placed:id:create, if the event makes the
                      entity: it gets the fields of OTHER with the same name and type, no enums or messages.

go run ./cmd/entity render   writes the files of all entities again, except those that you edited, and what is generated from them
`

// Main runs the command in the root of a service.
func Main() { tool.Main("entity", usage, run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if _, err := os.Stat("sqlc.yaml"); err != nil {
		return errors.New("this folder is no service: run the command in the root of the repository")
	}
	if err := checkNumbers(); err != nil {
		return err
	}
	all, err := o.entities(ctx)
	if err != nil {
		return err
	}
	return render(ctx, all, stdout)
}

// entities returns the entities whose files are written.
func (o options) entities(ctx context.Context) ([]entity, error) {
	switch {
	case o.render:
		all, err := loadAll()
		for i := range all {
			all[i].whole, all[i].overwrite = true, o.overwrite
		}
		return all, err
	case o.to != "":
		return react(o.name, o.to, o.on)
	case o.owner != "":
		dir, err := ownerDir(ctx, o.owner)
		if err != nil {
			return nil, err
		}
		return withReactors(replica(o.name, dir, o.project))
	default:
		return withReactors(o.entity(ctx))
	}
}

// options are the command line.
type options struct {
	render, overwrite, audited, batch, tenant bool
	name, file, fields, moves, timers, plural string
	refs                                      string // fields with a filter
	owner, project                            string // of a replica: its service, and the project of its topic
	to, on                                    string // of a reaction: the other entity, and the rules
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("entity", flag.ContinueOnError)
	flags.StringVar(&o.fields, "fields", "", "")
	flags.StringVar(&o.refs, "refs", "", "")
	flags.StringVar(&o.moves, "transitions", "", "")
	flags.StringVar(&o.timers, "timers", "", "")
	flags.StringVar(&o.plural, "plural", "", "")
	flags.StringVar(&o.project, "project", "", "")
	flags.StringVar(&o.on, "on", "", "")
	flags.BoolVar(&o.audited, "audited", false, "")
	flags.BoolVar(&o.batch, "batch", false, "")
	flags.BoolVar(&o.tenant, "tenant", false, "")
	flags.BoolVar(&o.overwrite, "overwrite", false, "") // for cmd/upgrade: write edited files, too, and no samples
	words, err := tool.Parse(flags, args)
	if err != nil {
		return o, err
	}
	isReplica := len(words) > 0 && words[0] == "replicate"
	isReaction := len(words) > 0 && words[0] == "react"
	switch {
	case !isReplica && o.project != "":
		return o, errors.New("--project is for replicate: this service has its own topics in its own project")
	case !isReaction && o.on != "":
		return o, errors.New("--on is for react")
	case isReaction && (len(words) != 3 || o.on == "" || flags.NFlag() != 1):
		return o, errors.New("want react NAME OTHER --on LIST: try go run ./cmd/entity --help")
	case isReaction:
		o.name, o.to = words[1], words[2]
		return o, nil
	case len(words) == 1 && words[0] == "render" && (flags.NFlag() == 0 || o.overwrite && flags.NFlag() == 1):
		o.render = true
	case len(words) == 2 && words[0] == "add":
		o.name = words[1]
	case len(words) == 3 && words[0] == "add":
		o.name, o.file = words[1], words[2]
	case len(words) == 3 && isReplica && (flags.NFlag() == 0 || o.project != "" && flags.NFlag() == 1):
		o.name, o.owner = words[1], words[2]
		return o, nil
	default:
		return o, errors.New("want add NAME [FILE.proto], replicate NAME OWNER, react NAME OTHER, or render: try go run ./cmd/entity --help")
	}
	if o.file != "" && o.fields != "" {
		return o, fmt.Errorf("want the fields from the file %s, or from --fields, and not both: a list with spaces needs quotes", o.file)
	}
	return o, nil
}

// entity returns the entity that the options describe. If it exists, they may only add to it.
func (o options) entity(ctx context.Context) (entity, error) {
	before, err := load(pathOf(o.name))
	exists := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return entity{}, err
	}
	if before.names, err = readNames(); err != nil {
		return entity{}, err
	}
	if before.Replica() {
		return entity{}, fmt.Errorf("%s is a replica: its owner adds fields, and then replicate takes them", o.name)
	}
	grown, err := o.grow(ctx, before)
	if err != nil {
		return entity{}, err
	}
	if !exists {
		err = grown.checkFree()
	}
	return grown, errors.Join(err, grown.checkTenant(), grown.checkLint(before), grown.checkNames())
}

// grow returns an entity with the additions of the options.
func (o options) grow(ctx context.Context, before entity) (entity, error) {
	exists := before.Name != ""
	next := entity{Name: o.name, Plural: o.plural, Batch: o.batch}
	if o.audited {
		next.Audited = nextMigration()
	}
	if o.tenant {
		next.Tenant = nextMigration()
	}
	if next.Plural == "" && exists {
		next.Plural = before.Plural
	} else if next.Plural == "" && entityName.MatchString(o.name) {
		next.Plural = naming.Plural(o.name)
	}
	var fieldErr, moveErr, timerErr error
	if o.file != "" {
		next.Fields, fieldErr = readProto(ctx, o.file, o.name)
	} else if next.Fields, fieldErr = parseFields(o.fields); o.fields == "" && exists {
		next.Fields = slices.Clone(before.Fields)
	}
	fieldErr = errors.Join(fieldErr, setRefs(next.Fields, splitOutside(o.refs)))
	if next.Transitions, moveErr = parseTransitions(o.moves); o.moves == "" && exists {
		next.Transitions = before.Transitions
	}
	if next.Timers = before.Timers; o.timers == "none" {
		next.Timers = nil
	} else if o.timers != "" {
		next.Timers, timerErr = parseTimers(o.timers)
	}
	if err := errors.Join(fieldErr, moveErr, timerErr); err != nil {
		return entity{}, err
	}
	if exists && next.Plural != before.Plural {
		return entity{}, fmt.Errorf("the plural of %s is %s, and cannot change", before.Name, before.Plural)
	}
	return before.grow(next, nextMigration())
}

// setRefs gives a filter to the fields with these names.
func setRefs(fields []field, names []string) error {
	for _, name := range names {
		i := slices.IndexFunc(fields, func(f field) bool { return f.Name == name && f.Type == typeUUID })
		if i < 0 {
			return fmt.Errorf("--refs %s: no field of the type uuid has this name", name)
		}
		fields[i].Ref = true
	}
	return nil
}

// firstOwn is the number of the first migration of a service.
const firstOwn = 1000

// nextMigration returns the number of the next migration of this service.
func nextMigration() int {
	files, _ := filepath.Glob("db/migrations/*.sql") // the pattern is right
	number := firstOwn
	for _, file := range files {
		var n int
		if _, err := fmt.Sscanf(filepath.Base(file), "%d_", &n); err == nil && n >= number {
			number = n + 1
		}
	}
	return number
}

// checkNumbers returns an error if two migrations have one number: two branches may have made them.
func checkNumbers() error {
	files, _ := filepath.Glob("db/migrations/*.sql") // in the order of the names; the pattern is right
	var errs []error
	for i := 1; i < len(files); i++ {
		first, second, next := filepath.Base(files[i-1]), filepath.Base(files[i]), nextMigration()
		if number, name, _ := strings.Cut(second, "_"); strings.HasPrefix(first, number+"_") {
			errs = append(errs, fmt.Errorf("db/migrations has %s and %s: rename one that no shared database has run, as in\n"+
				"  git mv db/migrations/%s db/migrations/%05d_%s\nand write %d for %s in its description in %s",
				first, second, second, next, name, next, strings.TrimLeft(number, "0"), folder))
		}
	}
	return errors.Join(errs...)
}

// checkFree returns an error if a file or the proto package of the entity exists already.
func (e entity) checkFree() error {
	var errs []error
	paths := []string{"api/proto/" + e.Name} // two entities must not share a package
	for _, f := range e.files() {
		if !slices.Contains(shared, f) {
			paths = append(paths, f.path)
		}
	}
	for _, path := range paths {
		if isThere(path) {
			errs = append(errs, fmt.Errorf("%s exists: choose another name than %s", path, e.Name))
		}
	}
	return errors.Join(errs...)
}
