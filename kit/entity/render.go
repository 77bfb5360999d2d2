package entity

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"go/format"
	"io"
	"os"
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
	path     string
	template string
	replica  string // its template in a replica; empty: a replica does not have the file
	after    bool   // made after buf and sqlc: it needs their output
	of       *reaction
}

// files are the files of an entity, except the migrations of columns that were added. A replica
// has copies of its owner's contract and samples besides.
func (e entity) files() []file {
	messages := "api/proto/" + e.ProtoDir() + "/" + e.Name
	all := []file{
		{path: messages + ".proto", template: "resource.proto", replica: "resource.proto"},
		{path: messages + "_event.proto", template: "event.proto"},
		{path: messages + "_service.proto", template: "service.proto"},
		{path: messages + "_view_service.proto", template: "view.proto", replica: "view.proto"},
		{path: "db/queries/" + e.Plural + ".sql", template: "queries.sql", replica: "queries.sql"},
		{path: topicFile(e.Name), template: "topic.go", replica: "topic.go"},
		{path: "internal/domain/" + e.Name + ".go", template: "domain.go", replica: "domain.go"},
		{path: "internal/domain/" + e.Name + "_test.go", template: "domain_test.go"},
		{path: "internal/event/" + e.Name + ".go", template: "event.go", replica: "event.go", after: true},
		{path: "internal/event/" + e.Name + "_test.go", template: "event_test.go", replica: "replica_event_test.go", after: true},
		{path: "internal/store/" + e.Plural + ".go", template: "store.go", replica: "store.go", after: true},
		{path: "internal/store/" + e.Plural + "_test.go", template: "store_test.go", replica: "replica_store_test.go", after: true},
		{path: "internal/server/" + e.Plural + ".go", template: "server.go", replica: "server.go", after: true},
		{path: "cmd/server/" + e.Plural + ".go", template: "registration.go", replica: "registration.go", after: true},
		{path: "cmd/server/" + e.Plural + "_test.go", template: "server_test.go", replica: "replica_server_test.go", after: true},
	}
	for i := range all {
		all[i].path = e.freePath(all[i].path)
	}
	for i := range e.Reactions {
		all = append(all, e.Reactions[i].files()...)
	}
	if e.names.HasReplay {
		all = append(all, file{path: replay + "/queries/" + e.Plural + ".sql", template: "replay.sql"}, file{path: replay + "/" + e.Plural + ".go", template: "replay.go", after: true})
	}
	if !e.Replica() {
		return all
	}
	var files []file
	for _, f := range all {
		if f.template = f.replica; f.template != "" {
			files = append(files, f)
		}
	}
	return files
}

// freePath returns the path of a Go file, or one beside it if the service has another file there:
// events are in event_entity.go, because event.go belongs to all aggregates.
func (e entity) freePath(path string) string {
	name, ok := strings.CutSuffix(path, ".go")
	if !ok || path == topicFile(e.Name) {
		return path
	}
	name, isTest := strings.CutSuffix(name, "_test")
	beside := name + "_entity.go"
	if isTest {
		beside = name + "_entity_test.go"
	}
	_, mine := e.Rendered[path]
	if _, made := e.Rendered[beside]; made || !mine && isThere(path) {
		return beside
	}
	return path
}

// render makes the files of entities, and what is generated from them. If it fails, all files
// are as they were.
func render(ctx context.Context, all []entity, stdout io.Writer) (err error) {
	written := new(undo)
	if err := written.remember(generated(all)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, written.restore())
		}
	}()
	var kept []string
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
	var samplesErr error
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"messages, migration, queries", write(false)},
		{"generate Go from them", func() error { return generate(ctx) }},
		{"decisions, events, store, handlers", write(true)},
		{"topics, registrations", func() error { return errors.Join(register(all, written), generateNames(ctx)) }},
		{"golden samples", func() error {
			if samplesErr = samples(ctx, all); len(kept) > 0 && ctx.Err() == nil {
				return nil // the files that were kept may have to change before they compile
			}
			return samplesErr
		}},
		{"description", func() error {
			for _, e := range all {
				if err := e.save(written); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		start := time.Now()
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(stdout, "%-36s%.1f s\n", s.name, time.Since(start).Seconds())
	}
	return report(stdout, all, kept, samplesErr)
}

// report says what the owner does next.
func report(stdout io.Writer, all []entity, kept []string, samplesErr error) error {
	var text strings.Builder
	if len(kept) > 0 {
		fmt.Fprintf(&text, "\nYou have edited these files, so they are as they were. What they would be is in %s:\n\n  %s\n", newFiles, strings.Join(kept, "\n  "))
	}
	if len(all) > 0 && len(all[0].only) > 0 {
		text.WriteString("\nA reaction begins with the next event: what was published before the subscription existed does not reach it.\n")
	} else if slices.ContainsFunc(all, entity.Replica) {
		text.WriteString("\nA replica begins with the next event: what was published before the subscription existed is not in it.\n")
	}
	text.WriteString("\nNext:\n\n")
	if samplesErr != nil {
		text.WriteString("  take what is new into these files, until the code compiles\n  go run ./cmd/entity render    makes the golden samples\n")
	}
	text.WriteString("  git status\n  go test ./...\n")
	_, err := io.WriteString(stdout, text.String())
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
	} else if err := errors.Join(e.writeMigrations(written), e.writeCopies(written)); err != nil {
		return nil, err
	}
	if e.Rendered == nil {
		e.Rendered = make(map[string]string)
	}
	for _, f := range e.files() {
		if f.after != after || len(e.only) > 0 && !slices.Contains(e.only, f.path) {
			continue
		}
		content, err := e.content(f)
		if err != nil {
			return nil, err
		}
		aside := filepath.Join(newFiles, f.path)
		if e.isEdited(f.path, content) {
			kept = append(kept, f.path)
			if err := written.write(aside, content); err != nil {
				return nil, err
			}
			continue
		}
		if err := errors.Join(written.remove(aside), written.write(f.path, content)); err != nil {
			return nil, err
		}
		e.Rendered[f.path] = hash(content)
	}
	return kept, nil
}

// isEdited reports whether a file is no longer as it was made, or was removed. One that has
// the new content already is not edited.
func (e *entity) isEdited(path string, content []byte) bool {
	if e.overwrite {
		return false
	}
	made, known := e.Rendered[path]
	there, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	if err != nil {
		return known && !e.whole
	}
	return !bytes.Equal(there, content) && (!known || made != hash(there))
}

func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// writeMigrations writes the migrations of this run. Earlier ones never change: databases have
// run them.
func (e *entity) writeMigrations(written *undo) error {
	for _, number := range e.allMigrations() {
		if found, _ := filepath.Glob(fmt.Sprintf("db/migrations/%05d_*.sql", number)); len(found) > 0 {
			continue
		}
		if !slices.Contains(e.made, number) {
			return fmt.Errorf("db/migrations has no file with the number %05d of %s: if it has another number now, correct `migration: %d` in %s", number, e.Name, number, pathOf(e.Name))
		}
		columns := columns{entity: *e, Number: number, NewFields: e.where(func(f field) bool { return f.Migration == number })}
		name, of := e.Plural, "migration.sql"
		switch {
		case number == e.Migration:
		case number != e.made[0]:
			name, of = name+"_"+e.widened[0].Column+"_valid", "valid.sql"
		case len(columns.NewFields) > 0:
			name, of = name+"_"+columns.NewFields[0].Name, "columns.sql"
		default:
			name, of = name+"_"+e.widened[0].Column+"_values", "columns.sql"
		}
		content, err := e.names.execute(of, columns)
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

	Number    int
	NewFields []field
}

// Widened are the columns that take more values.
func (c columns) Widened() []widening { return c.widened }

// List are values as SQL.
func (w widening) List(values []string) string { return texts(values) }

// Constraint returns the name that PostgreSQL gave to the constraint of a column: it shortens the
// longer part to 63 bytes in all.
func (c columns) Constraint(column string) string {
	const most = 63 - len("__check")
	table := c.Plural
	for len(table)+len(column) > most {
		if len(table) > len(column) {
			table = table[:len(table)-1]
		} else {
			column = column[:len(column)-1]
		}
	}
	return table + "_" + column + "_check"
}

// Before are the columns before this migration.
func (c columns) Before() columns {
	c.Fields = c.where(func(f field) bool { return f.Migration < c.Number })
	c.Number--
	return c
}

// Readable is the list of columns that people may read: all except columns of bytes, whose
// content may be anything. It is empty if people may read all columns.
func (c columns) Readable(keys ...string) string {
	until := c.entity
	until.Fields = c.where(func(f field) bool { return f.Migration <= c.Number })
	all := until.Columns("", keys...)
	readable := slices.DeleteFunc(slices.Clone(all), func(column string) bool {
		return slices.ContainsFunc(until.Fields, func(f field) bool { return f.Type == typeBytes && f.Name == column })
	})
	if len(readable) == len(all) {
		return ""
	}
	return " (\n\t" + wrap("\t", ", ", readable) + "\n)"
}

// content returns the content of one of the files.
func (e entity) content(f file) ([]byte, error) {
	if f.of != nil {
		return e.names.execute(f.template, f.of)
	}
	return e.execute(f.template)
}

// execute returns what a template makes of the entity.
func (e entity) execute(name string) ([]byte, error) { return e.names.execute(name, e) }

func (n names) execute(name string, data any) ([]byte, error) {
	t, err := template.New(name+".tmpl").Funcs(template.FuncMap{
		"upper": strings.ToUpper, "lower": lowerFirst, "words": words, "sentence": capital, "camel": camel, "proto": protoCamel, "sql": sqlCamel,
		"module": func() string { return n.Module }, "schema": func() string { return n.Schema },
		"domain": func() string { return n.ErrorDomain }, "java": n.javaPackage,
		"inc": func(i int) int { return i + 1 }, "wrap": wrap, "literal": literal, "comment": comment,
		"join": func(separator string, items []string) string { return strings.Join(items, separator) },
	}).ParseFS(templates, "templates/"+name+".tmpl")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(name, ".go") {
		return imports.ReplaceAllFunc(out.Bytes(), sortLines), nil
	}
	content, err := format.Source(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w:\n%s", name, err, out.Bytes())
	}
	return content, nil
}

// imports matches the imports of a proto file, which buf wants sorted. The name of an entity may come before google.
var imports = regexp.MustCompile(`(?m)(^import .*\n)+`)

func sortLines(block []byte) []byte {
	lines := slices.Sorted(strings.Lines(string(block)))
	return []byte(strings.Join(lines, ""))
}

// rowQuery is a query that returns a whole row; modelOf reads its type.
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
