package entity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// projectRule is Google Cloud's rule for the ids of projects.
var projectRule = regexp.MustCompile(`^[a-z][a-z0-9-]{4,28}[a-z0-9]$`)

// replica returns an entity of another service, whose root is dir, as a replica in this
// service. It copies the contract and the samples of its events. project has the other
// service's topic. If project is empty, a replica keeps its project, and a new one uses ours.
func replica(name, dir, project string) (entity, error) {
	if project != "" && !projectRule.MatchString(project) {
		return entity{}, fmt.Errorf("--project %q must be the id of a Google Cloud project: 6 to 30 lower-case letters, digits and hyphens", project)
	}
	e, err := load(filepath.Join(dir, pathOf(name)))
	if err != nil {
		return entity{}, fmt.Errorf("%s has no entity %q that this command can read: %w", dir, name, err)
	}
	if e.Replica() {
		return entity{}, fmt.Errorf("%s owns no %q, it has a replica itself: take it from its owner", dir, name)
	}
	before, err := load(pathOf(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return entity{}, err
	}
	exists := err == nil
	if exists && !before.Replica() {
		return entity{}, fmt.Errorf("this service has an entity %q of its own", name)
	}
	next := entity{names: e.names, Name: e.Name, Plural: e.Plural, Transitions: e.Transitions, EventPerCommand: e.EventPerCommand, LastNumber: e.LastNumber, OwnerProject: cmp.Or(project, before.OwnerProject)}
	if next.ReplicaOf, err = find(topicLine, filepath.Join(dir, topicFile(name))); err != nil {
		return entity{}, err
	}
	number := nextMigration()
	next.Reader, next.Rendered, next.Migration, next.made = cmp.Or(before.Reader, e.names.reader(name)), before.Rendered, number, []int{number}
	next.readers = before.readers
	if exists {
		next.Migration = before.Migration
	}
	if next.Audited = before.Audited; e.Audited != 0 && next.Audited == 0 {
		next.Audited = number
	}
	if next.Tenant, next.TenantIndexes = before.Tenant, before.TenantIndexes; e.Tenant != 0 && next.Tenant == 0 && e.names.HasTenancy {
		next.addTenant(number)
	}
	if next.CallsSince = before.CallsSince; next.CallsSince == 0 && e.names.HasTenancy && (!exists || next.Tenant == number) {
		next.CallsSince = number
	}
	for _, f := range e.Fields { // with the numbers of the owner, and our migrations
		f.Migration, f.Ref = number, false
		for _, old := range before.Fields {
			if old.Name != f.Name {
				continue
			}
			if f.Migration = old.Migration; !old.sameType(f) || old.Number != f.Number {
				return entity{}, fmt.Errorf("field %q had another type or number: the owner has changed it by hand, and so must you", f.Name)
			}
		}
		next.Fields = append(next.Fields, f)
	}
	for _, old := range before.Fields {
		if !slices.ContainsFunc(next.Fields, func(f field) bool { return f.Name == old.Name }) {
			return entity{}, fmt.Errorf("field %q is gone: the owner has removed it by hand, and so must you", old.Name)
		}
	}
	next.setEntity()
	if !exists {
		if err := next.checkFree(); err != nil {
			return entity{}, err
		}
	}
	next.copies, err = contract(next, dir)
	return next, errors.Join(err, next.checkNames())
}

// ownerDir returns the folder of a service. owner is a folder, or a version of a Go module,
// which the go command downloads.
func ownerDir(ctx context.Context, owner string) (string, error) {
	if _, err := os.Stat(owner); err == nil || !strings.Contains(owner, "@") {
		return owner, nil // an error comes with the first file that is read
	}
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", owner).Output() //nolint:gosec // of the command line
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); err == nil {
		err = jsonErr
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("go mod download %s: %s%s", owner, module.Error, exit.Stderr)
	}
	return module.Dir, err
}

// reader returns the name of the consumer of a replica.
func (n names) reader(name string) string {
	return consumerName(n.Service + "-" + name)
}

// perService matches the options of a proto file that differ from service to service.
var perService = regexp.MustCompile(`(?m)^option (go_package|java_package) = .*\n`)

// contract returns the owner's files that a replica has copies of: the proto file of the
// events, with the packages of this service, and the samples.
func contract(e entity, dir string) (map[string][]byte, error) {
	path := "api/proto/" + e.ProtoDir() + "/" + e.Name + "_event.proto"
	theirs, err := os.ReadFile(filepath.Join(dir, path)) //nolint:gosec // of a service next to this one
	if err != nil {
		return nil, err
	}
	ours, err := e.execute("event.proto")
	if err != nil {
		return nil, err
	}
	packages := make(map[string]string)
	for _, found := range perService.FindAllSubmatch(ours, -1) {
		packages[string(found[1])] = string(found[0])
	}
	copies := map[string][]byte{path: perService.ReplaceAllFunc(theirs, func(found []byte) []byte {
		return []byte(packages[string(perService.FindSubmatch(found)[1])])
	})}
	samples, err := filepath.Glob(filepath.Join(dir, "internal", "event", "testdata", e.Name, "*", "*.binpb"))
	if err != nil {
		return nil, err
	}
	for _, sample := range samples {
		content, err := os.ReadFile(sample) //nolint:gosec // of a service next to this one
		if err != nil {
			return nil, err
		}
		copies[filepath.Join("internal", "event", "testdata", e.Name, filepath.Base(filepath.Dir(sample)), filepath.Base(sample))] = content
	}
	return copies, nil
}

// writeCopies writes the owner's files.
func (e *entity) writeCopies(written *undo) error {
	var errs []error
	for path, content := range e.copies {
		errs = append(errs, written.write(path, content))
	}
	return errors.Join(errs...)
}
