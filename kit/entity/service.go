package entity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// names are what the service in the working directory is called, and what it has.
type names struct {
	Module      string `yaml:"-"`
	Schema      string `yaml:"-"`
	Service     string `yaml:"service"`
	ErrorDomain string `yaml:"error_domain"`
	HasConsole  bool   `yaml:"-"`
	HasReplay   bool   `yaml:"-"`
}

// replay is the folder of the option that publishes the states of entities.
const replay = "options/replay"

var (
	moduleLine    = regexp.MustCompile(`(?m)^module (\S+)`)
	createsSchema = regexp.MustCompile(`CREATE SCHEMA "?(\w+)`)
)

// readNames reads go.mod, internal/names/names.yaml and db/migrations. The first schema that they make is
// that of the commands.
func readNames() (n names, err error) {
	module, moduleErr := find(moduleLine, "go.mod")
	schema, schemaErr := find(createsSchema, "db/migrations/*.sql")
	text, err := os.ReadFile("internal/names/names.yaml")
	if err := errors.Join(moduleErr, schemaErr, err, yaml.Unmarshal(text, &n)); err != nil {
		return n, fmt.Errorf("read the names of the service: %w", err)
	}
	n.Module, n.Schema, n.HasConsole, n.HasReplay = module, schema, isThere("internal/console"), isThere(replay)
	return n, nil
}

// find returns what a pattern matches first in the files of a glob.
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

// javaPackage is the error domain from its end, as packages of Java are called.
func (n names) javaPackage() string {
	parts := strings.Split(strings.ReplaceAll(n.ErrorDomain, "-", "_"), ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".")
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
