package entity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// names are the names of the service in the working directory, and its options.
type names struct {
	Module, Schema, Service, ErrorDomain string
	// HasReactions, HasRepair, HasReplay and HasTenancy report whether the service has these options.
	HasReactions, HasRepair, HasReplay, HasTenancy bool
}

// replay is the folder of the option that publishes the states of entities.
const replay = "options/replay"

var (
	moduleLine    = regexp.MustCompile(`(?m)^module (\S+)`)
	createsSchema = regexp.MustCompile(`CREATE SCHEMA "?(\w+)`)
	serviceLine   = regexp.MustCompile(`\bService\s*= "([^"]+)"`)
	domainLine    = regexp.MustCompile(`\bErrorDomain\s*= "([^"]+)"`)
	topicLine     = regexp.MustCompile(`\bName:\s*"([^"]+)"`)
)

// readNames reads go.mod, internal/names/names.go and db/migrations. The first schema that the migrations
// create is the schema of the command side.
func readNames() (names, error) {
	var errs []error
	read := func(pattern *regexp.Regexp, glob string) string {
		found, err := find(pattern, glob)
		errs = append(errs, err)
		return found
	}
	const constants = "internal/names/names.go"
	n := names{
		Module: read(moduleLine, "go.mod"), Schema: read(createsSchema, "db/migrations/*.sql"),
		Service: read(serviceLine, constants), ErrorDomain: read(domainLine, constants),
	}
	if err := errors.Join(errs...); err != nil {
		return n, fmt.Errorf("read the names of the service: %w", err)
	}
	n.HasReactions, n.HasRepair, n.HasReplay = isThere("options/reactions"), isThere(projections), isThere(replay)
	n.HasTenancy = isThere("options/tenancy")
	return n, nil
}

// find returns the group of the first match of a pattern in the files of a glob.
func find(pattern *regexp.Regexp, glob string) (string, error) {
	files, err := filepath.Glob(glob)
	for _, file := range files {
		text, readErr := os.ReadFile(file) //nolint:gosec // of this repository
		if found := pattern.FindSubmatch(text); found != nil {
			return string(found[1]), nil
		}
		err = errors.Join(err, readErr)
	}
	return "", errors.Join(err, fmt.Errorf("no file %s matches %s", glob, pattern))
}

// javaPackage is the name of a Java package: the parts of the error domain in reverse order.
func (n names) javaPackage() string {
	parts := strings.Split(strings.ReplaceAll(n.ErrorDomain, "-", "_"), ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".")
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
