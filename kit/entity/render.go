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
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	after    bool   // made after protogen and sqlc: it needs their output
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
		{path: "internal/sample/" + e.Name + ".go", template: "sample.go", replica: "sample.go"},
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
	if e.Batch {
		all = append(all, shared...)
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

// shared are the files that all entities with batches share.
var shared = []file{
	{path: "db/queries/requests.sql", template: "batch.sql"},
	{path: "internal/store/batch.go", template: "batch_store.go", after: true},
	{path: "internal/server/batch.go", template: "batch_server.go", after: true},
}

// freePath returns the path of a Go file, or one beside it if the service has another file there:
// an entity named event is in event_entity.go, because event.go belongs to all aggregates.
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

// render makes the files of entities, and the files that are generated from them. If it fails, it restores
// all files. A conflict with an edit of the owner returns an error, but the files keep its marks.
func render(ctx context.Context, all []entity, stdout io.Writer) error {
	written := new(undo)
	if err := written.remember(generated(all)); err != nil {
		return err
	}
	found, err := steps(ctx, all, written, stdout)
	if err != nil {
		return errors.Join(err, written.restore())
	}
	return found.report(stdout, all)
}

// steps writes the files. It skips the steps that read all files while a file has a conflict.
func steps(ctx context.Context, all []entity, written *undo, stdout io.Writer) (found edits, err error) {
	write := func(after bool) func() error {
		return func() error {
			for i := range all {
				if err := all[i].write(ctx, after, written, &found); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, s := range []struct {
		name  string
		reads bool
		do    func() error
	}{
		{"messages, migration, queries", false, write(false)},
		{"generate Go from them; build the tools, once", true, func() error { return generate(ctx) }},
		{"decisions, events, store, handlers", false, write(true)},
		{"topics, registrations", true, func() error { return errors.Join(register(all, written), generateNames(ctx)) }},
		{"golden samples", true, func() error {
			if found.broken = samples(ctx, all); len(found.merged) > 0 && ctx.Err() == nil {
				return nil // the edits may have to change before they compile
			}
			return found.broken
		}},
		{"description", false, func() error {
			for _, e := range all {
				if err := e.save(written); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		if s.reads && len(found.conflicts) > 0 {
			continue
		}
		fmt.Fprintf(stdout, "%-46s", s.name)
		start := time.Now()
		if err := s.do(); err != nil {
			fmt.Fprintln(stdout)
			return found, fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(stdout, "%.1f s\n", time.Since(start).Seconds())
	}
	return found, nil
}

// edits are files that the owner has edited or removed, and that have a new version.
type edits struct {
	merged, removed, conflicts []string
	broken                     error // the merged files do not work
}

// report prints the next steps of the owner. Its error is a problem that only the owner can solve.
func (found edits) report(stdout io.Writer, all []entity) error {
	var text strings.Builder
	for _, list := range []struct {
		say   string
		paths []string
	}{
		{"You have edited these files. They have what is new, and your edits:", found.merged},
		{"You have removed these files, so they stay away:", found.removed},
		{"In these files you have edited lines that are new:", found.conflicts},
	} {
		if len(list.paths) > 0 {
			fmt.Fprintf(&text, "\n%s\n\n  %s\n", list.say, strings.Join(list.paths, "\n  "))
		}
	}
	if len(all) > 0 && len(all[0].only) > 0 {
		text.WriteString("\nA reaction begins with the next event: what was published before the subscription existed does not reach it.\n")
	} else if slices.ContainsFunc(all, entity.Replica) {
		text.WriteString("\nA replica begins with the next event: what was published before the subscription existed is not in it.\n")
	}
	for _, e := range all {
		if slices.Contains(e.made, e.Migration) && !e.Replica() {
			fmt.Fprintf(&text, "\nClients find %s at /v1/%s. Before they do, you can remove the files with git, and choose another --plural.\n", e.PluralWords(), e.Collection())
		}
	}
	if len(found.conflicts) == 0 && found.broken == nil {
		text.WriteString("\nNext:\n\n  git status\n  go test ./...\n")
	}
	if _, err := io.WriteString(stdout, text.String()); err != nil {
		return err
	}
	switch {
	case len(found.conflicts) > 0:
		return fmt.Errorf("%d files have conflicts: choose between the lines from <<<<<<< to >>>>>>>, then run go run ./cmd/entity render", len(found.conflicts))
	case found.broken != nil:
		return fmt.Errorf("what is new does not work with your edits: change them, then run go run ./cmd/entity render: %w", found.broken)
	}
	return nil
}

// write writes the files. Into files that somebody has edited it merges the changes since the
// description in the repository.
func (e *entity) write(ctx context.Context, after bool, written *undo, found *edits) (err error) {
	if after {
		if err := e.readModels(); err != nil {
			return err
		}
	} else if err := errors.Join(e.writeMigrations(written), e.writeCopies(written)); err != nil {
		return err
	}
	before, err := load(pathOf(e.Name))
	if err != nil && before.Name == "" && !errors.Is(err, fs.ErrNotExist) { // this run may mend the mistakes of an entity
		return err
	}
	before.Model, before.ViewModel = e.Model, e.ViewModel
	if e.Rendered == nil {
		e.Rendered = make(map[string]string)
	}
	others, _ := loadAll() // the description of this one is read above
	isShared := slices.ContainsFunc(others, func(other entity) bool { return other.Name != e.Name && other.Batch })
	for _, f := range e.files() {
		if f.after != after || len(e.only) > 0 && !slices.Contains(e.only, f.path) {
			continue
		}
		content, err := e.content(f)
		if err != nil {
			return err
		}
		if isShared && e.Rendered[f.path] == "" && slices.Contains(shared, f) && isThere(f.path) {
			continue // another entity has it, perhaps with edits
		}
		if err := e.writeOne(ctx, f.path, before, content, written, found); err != nil {
			return err
		}
		e.Rendered[f.path] = hash(content)
	}
	return nil
}

// writeOne writes the new version of a file.
func (e *entity) writeOne(ctx context.Context, path string, before entity, content []byte, written *undo, found *edits) error {
	made, known := e.Rendered[path]
	there, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	isGone := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !isGone:
		return err
	case e.overwrite, isGone && (!known || e.whole), known && made == hash(there):
		return written.write(path, content)
	}
	base, err := before.contentOf(path)
	switch {
	case err != nil:
		return err
	case bytes.Equal(base, content), bytes.Equal(there, content):
		return nil
	case isGone && base == nil: // it was removed with its description
		return written.write(path, content)
	case isGone:
		found.removed = append(found.removed, path)
		return nil
	}
	merged, conflict, err := merge(ctx, there, base, content)
	if conflict {
		found.conflicts = append(found.conflicts, path)
	} else {
		found.merged = append(found.merged, path)
	}
	return errors.Join(err, written.write(path, merged))
}

// contentOf returns the content of the file at a path, or nothing if the entity has no such file.
func (e entity) contentOf(path string) ([]byte, error) {
	if e.Name == "" {
		return nil, nil
	}
	for _, f := range e.files() {
		if f.path == path {
			return e.content(f)
		}
	}
	return nil, nil
}

// merge returns there with the changes from base to content. Lines that both have added at one place are kept, the owner's
// first. Without a base, all lines that differ are conflicts.
func merge(ctx context.Context, there, base, content []byte) (merged []byte, conflict bool, err error) {
	dir, err := os.MkdirTemp("", "entity-")
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	args := []string{"merge-file", "--quiet", "--stdout", "--diff3", "-L", "yours", "-L", "before", "-L", "new"}
	for name, version := range [][]byte{there, base, content} {
		path := filepath.Join(dir, strconv.Itoa(name))
		if err := os.WriteFile(path, version, 0o600); err != nil { //nolint:gosec // in a folder made here
			return nil, false, err
		}
		args = append(args, path)
	}
	merged, err = exec.CommandContext(ctx, "git", args...).Output()
	// Git exits with the number of conflicts, at most 127.
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() < 0 || exit.ExitCode() > 127 {
		return merged, false, err
	}
	merged = hunk.ReplaceAllFunc(merged, func(text []byte) []byte {
		parts := hunk.FindSubmatch(text)
		if len(parts[2]) == 0 && len(base) > 0 {
			return slices.Concat(parts[1], parts[3])
		}
		conflict = true
		return slices.Concat([]byte("<<<<<<< yours\n"), parts[1], []byte("=======\n"), parts[3], []byte(">>>>>>> new\n"))
	})
	return merged, conflict, nil
}

// hunk matches a conflict of git's, with the lines of yours, before and new.
var hunk = regexp.MustCompile(`(?ms)^<<<<<<< yours\n(.*?)^\|{7} before\n(.*?)^=======\n(.*?)^>>>>>>> new\n`)

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
		columns := columns{entity: *e, Number: number, NewFields: ofMigration(e.Kept(), number)}
		var data any = columns
		name, of := e.Plural, "migration.sql"
		at := slices.IndexFunc(e.TenantIndexes, func(c constraint) bool { return c.Migration == number })
		switch {
		case number == e.Migration:
		case at >= 0:
			name, of, data = e.TenantIndexes[at].Column, "tenant_index.sql", e.tenantIndexes()[at]
		case number != e.made[0]:
			name, of = name+"_"+e.widened[0].Column+"_valid", "valid.sql"
		case len(columns.NewFields) > 0:
			name, of = name+"_"+columns.NewFields[0].Name, "columns.sql"
		default:
			name, of = name+"_"+e.widened[0].Column+"_values", "columns.sql"
		}
		content, err := e.names.execute(of, data)
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
	c.Number--
	c.entity = c.until()
	return c
}

// until is the entity after this migration.
func (c columns) until() entity {
	e := c.entity
	e.Fields = c.where(func(f field) bool { return f.Migration <= c.Number })
	if e.Audited > c.Number {
		e.Audited = 0
	}
	if e.Tenant > c.Number {
		e.Tenant = 0
	}
	return e
}

// Readable is the list of columns that people may read: all except columns of bytes, whose
// content may be anything. It is empty if people may read all columns.
func (c columns) Readable(keys ...string) string {
	until := c.until()
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

// execute returns the output of a template for the entity.
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

// Locks reports whether an option of the service locks many entities in one transaction.
func (e entity) Locks() bool { return e.names.HasReactions || e.names.HasReplay }

// readModels reads the types of the rows of the tables. sqlc derives them from the names of the tables.
func (e *entity) readModels() error {
	path := "internal/store/internal/sqlcgen/" + e.Plural + ".sql.go"
	content, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	if err != nil {
		return err
	}
	for query, model := range map[string]*string{"Lock" + e.Go(): &e.Model, "Get" + e.Go() + "View": &e.ViewModel} {
		found := regexp.MustCompile(`\) ` + query + `\(.*\) \((\w+), error\)`).FindSubmatch(content)
		if found != nil {
			*model = string(found[1])
		} else if !e.Replica() || model == &e.ViewModel {
			return fmt.Errorf("%s has no query %s", path, query)
		}
	}
	return nil
}
