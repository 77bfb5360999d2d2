package entity

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"

	"example.com/servicekit/naming"
)

// checkWord returns an error if a word cannot be the name or the plural of an entity in any service. It proposes the word with an end.
// checkNames finds the names that one service has.
func checkWord(word, end string) error {
	named := func(taken string) bool { return taken == word || naming.Plural(taken) == word }
	parts := slices.DeleteFunc(strings.Split(word, "_"), naming.IsInitialism)
	var why string
	switch {
	case naming.HasFileSuffix(word):
		why = "ends in " + word[strings.LastIndexByte(word, '_'):] + ", which in the name of a Go file says where it is built"
	case slices.Contains(folders, word):
		why = "is a folder that the go command or buf treats differently"
	case naming.IsClientKeyword(word):
		why = "is a word of Java, JavaScript or Python, whose clients could not name the package"
	case slices.Contains(methods, word):
		why = "would be a field of messages, which have a method of this name"
	case len(parts) <= strings.Count(word, "_"):
		why = "has a word, such as id, that Go and the API linter write in different ways"
	case slices.ContainsFunc(machinery, named):
		why = "is a name of the machinery"
	default:
		return nil
	}
	return fmt.Errorf("%q %s: choose another, such as %s", word, why, strings.TrimPrefix(strings.Join(parts, "_")+end, "_"))
}

// folders have a meaning to the go command (https://pkg.go.dev/cmd/go), or contain packages that
// every contract imports.
var folders = []string{"vendor", "internal", "testdata", "google", "buf"}

// methods are names that protoc-gen-go changes, because messages have methods of these names.
var methods = []string{"descriptor", "extension_map", "extension_range_array", "marshal", "proto_message", "proto_reflect", "reset", "string", "unmarshal"}

// machinery are names of tables, of fields of each event, and of Go identifiers in the packages of an entity.
var machinery = strings.Fields(`audit caller code inbox outbox quarantine request timer type version cause event_type limit name part registration snapshot
	stamp time value`)

// checkNames returns an error if the files of the entity have a name that the service already has,
// or that a tool refuses. Every run checks this before it writes a file.
func (e entity) checkNames() error {
	e.Model, e.ViewModel = "Model", "ViewModel" // do not matter here
	before, _ := load(pathOf(e.Name))           // of an entity that exists: its owner may have moved its names into other files
	before.Model, before.ViewModel = e.Model, e.ViewModel
	return errors.Join(e.checkGo(before), e.checkSQL(before), e.checkProto())
}

// checkGo returns an error if a package declares or imports a name that the code of the entity
// declares too, and before did not.
func (e entity) checkGo(before entity) error {
	var paths, own []string
	had := make(map[string]bool) // by folder and name
	contents := make(map[string][]byte)
	for _, f := range e.files() {
		if filepath.Ext(f.path) != ".go" {
			continue
		}
		content, err := e.content(f)
		if err != nil {
			return err
		}
		own, contents[f.path] = append(own, f.path), content
		if old, err := before.contentOf(f.path); err == nil && old != nil {
			declared, _, _ := declarations(f.path, old) // an error comes with the new content
			for _, name := range declared {
				had[filepath.Join(filepath.Dir(f.path), name)] = true
			}
		}
		all, err := filepath.Glob(filepath.Join(filepath.Dir(f.path), "*.go"))
		if err != nil {
			return err
		}
		paths = append(paths, append(all, f.path)...)
	}
	slices.Sort(paths)
	places := make(map[string]string) // of the identifiers, by folder and name
	for _, path := range slices.Compact(paths) {
		content, mine := contents[path]
		declared, names, err := declarations(path, content)
		if err != nil {
			return err
		}
		if !mine {
			names = append(names, declared...)
		}
		for _, name := range names { // no file of the package may declare them
			places[filepath.Join(filepath.Dir(path), name)] = path
		}
	}
	var errs []error
	for _, path := range own {
		declared, _, err := declarations(path, contents[path])
		if err != nil {
			return err
		}
		for _, name := range declared {
			key := filepath.Join(filepath.Dir(path), name)
			if place, ok := places[key]; ok && !had[key] {
				errs = append(errs, fmt.Errorf("%s has %s, which %s would declare: %s", place, name, path, choose))
			}
			places[key] = path
		}
	}
	return errors.Join(errs...)
}

// choose is the advice of the errors about names.
const choose = "choose another name for the entity, or for its field, state or command"

var (
	queryName  = regexp.MustCompile(`(?m)^-- name: (\w+)`)
	relation   = regexp.MustCompile(`(?m)^CREATE (?:UNIQUE )?(?:TABLE|VIEW|INDEX)(?: CONCURRENTLY)? (?:(\w+)\.)?(\w+)(?: ON (\w+)\.)?`)
	collection = regexp.MustCompile(`: "(/v1/\w+)"`)
)

// checkSQL returns an error if a query, a table or an index has the name of one of the entity.
func (e entity) checkSQL(before entity) error {
	queries, err := e.execute("queries.sql")
	had, _ := before.contentOf("db/queries/" + e.Plural + ".sql")
	own := "db/queries/" + e.Plural + ".sql"
	for _, pattern := range []string{"db/queries/*.sql", "internal/pg/queries/*.sql"} {
		err = errors.Join(err, e.checkIn(pattern, own, string(had), string(queries), queryName, func(found []string) string { return found[1] }))
	}
	if !slices.Contains(e.made, e.Migration) {
		return err // it has its tables
	}
	made, migrationErr := e.names.execute("migration.sql", columns{entity: e, Number: e.Migration})
	tables := string(made)
	if !e.Replica() { // sqlc names the type of a row after the singular, also of another table
		tables += "\nCREATE TABLE " + e.names.Schema + "." + naming.Plural(e.Plural)
		if e.Plural == naming.Plural(e.Name) {
			tables += "\nCREATE TABLE " + e.names.Schema + "." + e.Name
		}
	}
	for _, pattern := range []string{"db/migrations/*.sql", "options/*/migrations/*.sql"} {
		err = errors.Join(err, e.checkIn(pattern, "", "", tables, relation, func(found []string) string { return found[1] + found[3] + "." + found[2] }))
	}
	return errors.Join(err, migrationErr)
}

// checkIn returns an error for each name in made that another file already has, and that is not in had.
func (e entity) checkIn(pattern, own, had, made string, named *regexp.Regexp, name func(found []string) string) error {
	paths, err := filepath.Glob(pattern)
	errs := []error{err}
	places := make(map[string]string)
	for _, path := range paths {
		content, err := os.ReadFile(path) //nolint:gosec // a file of this repository
		errs = append(errs, err)
		for _, found := range named.FindAllStringSubmatch(string(content), -1) {
			if path != own {
				places[name(found)] = path
			}
		}
	}
	for _, found := range named.FindAllStringSubmatch(had, -1) {
		delete(places, name(found))
	}
	for _, found := range named.FindAllStringSubmatch(made, -1) {
		if place, ok := places[name(found)]; ok {
			errs = append(errs, fmt.Errorf("%s has %s, which is a name of %s, too: %s", place, name(found), e.Name, choose))
		}
	}
	return errors.Join(errs...)
}

// checkLint returns an error for each new command whose method the API linter would take for a standard
// one. A command that was there before stays: its owner may have switched off the rule.
func (e entity) checkLint(before entity) error {
	var errs []error
	for _, t := range e.Transitions {
		verb, _, _ := strings.Cut(t.Command, "_")
		if slices.Contains(strings.Fields("get list create update set delete undelete purge search"), verb) && !slices.Contains(before.Transitions, t) {
			errs = append(errs, fmt.Errorf("command %q: the API linter refuses the verb of a standard method for a command: choose another", t.Command))
		}
	}
	return errors.Join(errs...)
}

// version matches the version at the end of the path of a Go package, which is not part of its name.
var version = regexp.MustCompile(`[/.]v[0-9]+$`)

// checkProto compiles the message of the events, where the entity, its states and its fields meet. It
// also returns an error if the service has the REST path of the entity already.
func (e entity) checkProto() error {
	if e.Replica() {
		return nil // its owner compiles it
	}
	content, err := e.execute("event.proto")
	if err != nil {
		return err
	}
	path := e.ProtoDir() + "/" + e.Name + "_event.proto"
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{path: string(content)})}}
	if _, err := compiler.Compile(context.Background(), path); err != nil {
		return fmt.Errorf("%w: %s", err, choose)
	}
	service, err := e.execute("service.proto")
	own := "api/proto/" + e.ProtoDir() + "/" + e.Name + "_service.proto"
	return errors.Join(err, e.checkIn("api/proto/*/*/*_service.proto", own, "", string(service), collection, func(found []string) string { return found[1] }))
}

// declarations returns the identifiers that a Go file declares for its package, and the names of its
// imports. The package name is in front of each, because an external test is another package. If
// content is nil, the file is read.
func declarations(name string, content []byte) (declared, imported []string, err error) {
	var source any
	if content != nil {
		source = content
	}
	tree, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	add := func(to *[]string, name string) {
		if name != "_" && name != "init" {
			*to = append(*to, tree.Name.Name+"."+name)
		}
	}
	for _, spec := range tree.Imports {
		if spec.Name != nil {
			add(&imported, spec.Name.Name)
		} else {
			add(&imported, path.Base(version.ReplaceAllString(strings.Trim(spec.Path.Value, `"`), "")))
		}
	}
	for _, decl := range tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				add(&declared, decl.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(&declared, spec.Name.Name)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						add(&declared, name.Name)
					}
				}
			}
		}
	}
	return declared, imported, nil
}
