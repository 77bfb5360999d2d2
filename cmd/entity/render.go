package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed templates
var templates embed.FS

// file is a file of an entity.
type file struct {
	path, template string
	after          bool // it needs what buf and sqlc make of the others
}

// files are the files of an entity, except the migrations of columns that were added.
func (e entity) files() []file {
	if e.Replica() {
		return e.replicaFiles()
	}
	return []file{
		{path: "api/proto/" + e.ProtoDir() + "/" + e.Name + ".proto", template: "resource.proto"},
		{path: "api/proto/" + e.ProtoDir() + "/" + e.Name + "_event.proto", template: "event.proto"},
		{path: "api/proto/" + e.ProtoDir() + "/" + e.Name + "_service.proto", template: "service.proto"},
		{path: "api/proto/" + e.ProtoDir() + "/" + e.Name + "_view_service.proto", template: "view.proto"},
		{path: "db/queries/" + e.Plural + ".sql", template: "queries.sql"},
		{path: "internal/names/topics/" + e.Name + ".yaml", template: "topic.yaml"},
		{path: "internal/domain/" + e.Name + ".go", template: "domain.go"},
		{path: "internal/domain/" + e.Name + "_test.go", template: "domain_test.go"},
		{path: "internal/event/" + e.Name + ".go", template: "event.go", after: true},
		{path: "internal/event/" + e.Name + "_test.go", template: "event_test.go", after: true},
		{path: "internal/store/" + e.Plural + ".go", template: "store.go", after: true},
		{path: "internal/store/" + e.Plural + "_test.go", template: "store_test.go", after: true},
		{path: "internal/server/" + e.Plural + ".go", template: "server.go", after: true},
		{path: "cmd/server/" + e.Plural + ".go", template: "registration.go", after: true},
		{path: "cmd/server/" + e.Plural + "_test.go", template: "server_test.go", after: true},
	}
}

// replicaFiles are the files of a replica. The contract and the samples of its events are
// copies of the owner's.
func (e entity) replicaFiles() []file {
	return []file{
		{path: "api/proto/" + e.ProtoDir() + "/" + e.Name + ".proto", template: "resource.proto"},
		{path: "api/proto/" + e.ProtoDir() + "/" + e.Name + "_view_service.proto", template: "view.proto"},
		{path: "db/queries/" + e.Plural + ".sql", template: "queries.sql"},
		{path: "internal/names/topics/" + e.Name + ".yaml", template: "topic.yaml"},
		{path: "internal/domain/" + e.Name + ".go", template: "domain.go"},
		{path: "internal/event/" + e.Name + ".go", template: "event.go", after: true},
		{path: "internal/event/" + e.Name + "_test.go", template: "replica_event_test.go", after: true},
		{path: "internal/store/" + e.Plural + ".go", template: "store.go", after: true},
		{path: "internal/store/" + e.Plural + "_test.go", template: "replica_store_test.go", after: true},
		{path: "internal/server/" + e.Plural + ".go", template: "server.go", after: true},
		{path: "cmd/server/" + e.Plural + ".go", template: "registration.go", after: true},
		{path: "cmd/server/" + e.Plural + "_test.go", template: "replica_server_test.go", after: true},
	}
}

// render makes the files of entities, and what is generated from them.
func render(ctx context.Context, all []entity, stdout io.Writer) (err error) {
	if err := os.RemoveAll(newFiles); err != nil { // of an earlier run
		return err
	}
	var kept []string
	written := new(undo)
	defer func() {
		if err != nil {
			err = errors.Join(err, written.all())
		}
	}()
	step := func(name string, do func() error) error {
		start := time.Now()
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		_, err := fmt.Fprintf(stdout, "%-36s%.1f s\n", name, time.Since(start).Seconds())
		return err
	}
	write := func(after bool) func() error {
		return func() error {
			for i := range all {
				left, err := all[i].write(after, written)
				if err != nil {
					return err
				}
				kept = append(kept, left...)
			}
			return nil
		}
	}
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"messages, migration, queries", write(false)},
		{"generate Go from them", func() error {
			return generate(ctx, [][]string{{"buf", "format", "--write", "api/proto"}, {"buf", "generate"}, {"sqlc", "generate"}})
		}},
		{"decisions, events, store, handlers", write(true)},
		{"topics, registrations", func() error { return generateNames(ctx) }},
		{"golden samples", func() error { return samples(ctx, all) }},
	} {
		if err := step(s.name, s.do); err != nil {
			return err
		}
	}
	for _, e := range all {
		if err := e.remember(); err != nil {
			return err
		}
	}
	if len(kept) > 0 {
		_, err = fmt.Fprintf(stdout, "\nYou have edited these files, so they are as they were. What they would be is in %s:\n\n  %s\n", newFiles, strings.Join(kept, "\n  "))
	}
	return errors.Join(err, next(stdout))
}

func next(stdout io.Writer) error {
	_, err := io.WriteString(stdout, "\nNext:\n\n  git status\n  go test ./...\n")
	return err
}

// newFiles has what files with changes of their owner would be. Git ignores it.
const newFiles = ".local/entity"

// write writes the files that nobody has edited, and returns the others.
func (e *entity) write(after bool, written *undo) (kept []string, err error) {
	if after {
		if e.Model, err = modelOf(e.Plural, e.rowQuery()); err != nil {
			return nil, err
		}
	} else if err := e.writeMigrations(written); err != nil {
		return nil, err
	}
	for _, f := range e.files() {
		if f.after != after {
			continue
		}
		content, err := e.execute(f.template)
		if err != nil {
			return nil, err
		}
		if e.isEdited(f.path) {
			kept = append(kept, f.path)
			if err := writeFile(filepath.Join(newFiles, f.path), content); err != nil {
				return nil, err
			}
			continue
		}
		if err := written.write(f.path, content); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// isEdited reports whether a file is no longer as it was made, or was removed.
func (e *entity) isEdited(path string) bool {
	made, known := e.Rendered[path]
	content, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	if err != nil {
		return known
	}
	return !known || made != hash(content)
}

// remember saves the description with the hashes of the files as they were made. It runs
// last: buf formats files after they are written.
func (e *entity) remember() error {
	edited := make(map[string]string)
	for _, f := range e.files() {
		if _, err := os.Stat(filepath.Join(newFiles, f.path)); err == nil {
			edited[f.path] = e.Rendered[f.path]
			continue
		}
		content, err := os.ReadFile(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			edited[f.path] = e.Rendered[f.path]
			continue
		}
		if err != nil {
			return err
		}
		edited[f.path] = hash(content)
	}
	e.Rendered = edited
	return e.save()
}

func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// writeMigrations writes the migrations that do not exist. One that exists never changes:
// databases have run it.
func (e *entity) writeMigrations(written *undo) error {
	var numbers []int
	for _, f := range e.Fields {
		if !slices.Contains(numbers, f.Migration) {
			numbers = append(numbers, f.Migration)
		}
	}
	for _, number := range numbers {
		if found, err := filepath.Glob(fmt.Sprintf("db/migrations/%05d_*.sql", number)); err != nil || len(found) > 0 {
			if err != nil {
				return err
			}
			continue
		}
		name, of := e.Plural, "migration.sql"
		columns := columns{entity: *e, NewFields: e.where(func(f field) bool { return f.Migration == number })}
		if number != e.Migration {
			name, of = e.Plural+"_"+columns.NewFields[0].Name, "columns.sql"
		}
		content, err := execute(of, columns)
		if err != nil {
			return err
		}
		if err := written.write(fmt.Sprintf("db/migrations/%05d_%s.sql", number, name), content); err != nil {
			return err
		}
	}
	return nil
}

// columns is an entity with the fields of one migration.
type columns struct {
	entity

	NewFields []field
}

// execute returns the content of a file.
func (e entity) execute(name string) ([]byte, error) { return execute(name, e) }

func execute(name string, data any) ([]byte, error) {
	t, err := template.New(name+".tmpl").Funcs(template.FuncMap{
		"upper": strings.ToUpper, "lower": lowerFirst, "words": words, "sentence": sentence, "camel": camel,
		"inc": func(i int) int { return i + 1 },
	}).ParseFS(templates, "templates/"+name+".tmpl")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(strings.TrimSuffix(name, "_test"), ".go") && !strings.HasSuffix(name, ".go") {
		return out.Bytes(), nil
	}
	content, err := format.Source(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w:\n%s", name, err, out.Bytes())
	}
	return content, nil
}

// rowQuery is the query whose rows have the type from which the others are converted.
func (e entity) rowQuery() string {
	if e.Replica() {
		return "Get" + e.Go() + "View"
	}
	return "Lock" + e.Go()
}

// modelOf returns the type of a row of a table: sqlc makes its name of the table's.
func modelOf(plural, query string) (string, error) {
	path := "internal/store/internal/sqlcgen/" + plural + ".sql.go"
	content, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`\) ` + query + `\(.*\) \((\w+), error\)`).FindSubmatch(content)
	if found == nil {
		return "", fmt.Errorf("%s has no query %s", path, query)
	}
	return string(found[1]), nil
}

// checkNames returns an error if a package has an identifier that the new code declares.
func (e entity) checkNames() error {
	e.Model = "Model" // does not matter here
	var errs []error
	for _, f := range e.files() {
		if filepath.Ext(f.path) != ".go" {
			continue
		}
		content, err := e.execute(f.template)
		if err != nil {
			return err
		}
		made, err := declarations(f.path, content)
		if err != nil {
			return err
		}
		others, err := filepath.Glob(filepath.Join(filepath.Dir(f.path), "*.go"))
		if err != nil {
			return err
		}
		for _, other := range others {
			there, err := declarations(other, nil)
			if err != nil {
				return err
			}
			for _, name := range made {
				if slices.Contains(there, name) {
					errs = append(errs, fmt.Errorf("%s declares %s, as %s would: choose another name than %s", other, name, f.path, e.Name))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// declarations returns the identifiers that a Go file declares for its package. Files of
// tests outside of the package get other names, so that they cannot be mistaken.
func declarations(path string, content []byte) (declared []string, err error) {
	var source any
	if content != nil {
		source = content
	}
	tree, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(name string) {
		if name != "_" && name != "init" {
			declared = append(declared, tree.Name.Name+"."+name)
		}
	}
	for _, decl := range tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				add(decl.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name.Name)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						add(name.Name)
					}
				}
			}
		}
	}
	return declared, nil
}

// generate runs tools of tools/go.mod.
func generate(ctx context.Context, tools [][]string) error {
	for _, tool := range tools {
		if err := command(ctx, append([]string{"tool", "-modfile=tools/go.mod"}, tool...)...); err != nil {
			return err
		}
	}
	return nil
}

// generateNames generates what follows from the topics and the registrations.
func generateNames(ctx context.Context) error {
	for _, args := range [][]string{
		{"run", "./cmd/server/generate"}, {"run", "./internal/names/generate"}, {"test", "./deploy/observe", "-run", "TestFilesAreUpToDate", "-update"},
	} {
		if err := command(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// samples writes the golden samples of events, which are then never written again.
func samples(ctx context.Context, all []entity) error {
	for _, e := range all {
		if e.Replica() {
			continue // they are the owner's
		}
		if err := command(ctx, "test", "./internal/event", "-run", "^Test"+e.Go()+"Samples$", "-update"); err != nil {
			return err
		}
	}
	return nil
}

// command runs the Go command. Its error has what the command printed.
func command(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput() //nolint:gosec // of this file
	if err != nil {
		return fmt.Errorf("go %s: %w:\n%s", strings.Join(args, " "), err, indent(string(out)))
	}
	return nil
}

// undo remembers the files that were written, to bring back those of before.
type undo struct{ steps []func() error }

func (u *undo) write(path string, content []byte) error {
	before, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	switch {
	case errors.Is(err, fs.ErrNotExist):
		u.steps = append(u.steps, func() error { return os.Remove(path) })
	case err != nil:
		return err
	default:
		u.steps = append(u.steps, func() error { return writeFile(path, before) })
	}
	return writeFile(path, content)
}

// all undoes everything. What was generated from the files comes back with make generate.
func (u *undo) all() error {
	var errs []error
	for _, step := range slices.Backward(u.steps) {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}
