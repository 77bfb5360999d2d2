// Command licenses prints licenses.md, the list of the modules in the server with their licenses. It fails if a
// license is unknown, or requires the source with the binary.
//
//	licenses [--source FOLDER]   prints the list
//
// It reads the texts in the module cache, whose hashes are in go.sum. The library of pkg.go.dev recognizes them. It is
// in the module of the lab, because the service needs none of its dependencies.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"

	"example.com/servicekit/tool"
)

// allowed are the licenses that require only their text with the binary.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// minCovered is the minimum percentage of a file that must be the text of a license. The rest is names and years.
const minCovered = 75

func main() {
	tool.Main("licenses", "", func(ctx context.Context, args []string, stdout io.Writer) error {
		return run(ctx, args, stdout, os.Stderr)
	})
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("licenses", flag.ContinueOnError)
	source := flags.String("source", ".", "the folder of the service's module")
	if err := flags.Parse(args); err != nil {
		return err
	}
	modules, err := linked(ctx, *source, stderr)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString("# Licenses\n\nThe modules that are linked into the server, with their licenses as recognized in the module cache. " +
		"Their texts must be shipped\nwith a binary that is given away. Made by `make licenses`; do not edit.\n\n| module | version | license |\n| --- | --- | --- |\n")
	var errs []error
	for _, m := range modules {
		licenses, err := recognize(m.Dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", m.Path, m.Version, err))
			continue
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", m.Path, m.Version, strings.Join(licenses, ", "))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = stdout.Write(out.Bytes())
	return err
}

// module is a module in the output of go list.
type module struct{ Path, Version, Dir string }

// linked returns the modules with a package in the server, sorted by path.
func linked(ctx context.Context, source string, stderr io.Writer) ([]module, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", "./cmd/server")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOWORK=off")
	cmd.Stderr = stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var modules []module
	for packages := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Module *struct {
				module

				Main    bool
				Replace *module
			}
		}
		err := packages.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read list of packages: %w", err)
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		m := p.Module.module
		if p.Module.Replace != nil {
			m = *p.Module.Replace
		}
		if !slices.Contains(modules, m) {
			modules = append(modules, m)
		}
	}
	slices.SortFunc(modules, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return modules, nil
}

// licenseFile matches the name of a file with a license.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([.-].*)?$`)

// recognize returns the licenses of the files in the root of a module, sorted.
func recognize(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read module: %w; go mod download brings it", err)
	}
	var found []string
	for _, entry := range entries {
		if entry.IsDir() || !licenseFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name())) //nolint:gosec // a file in the module cache
		if err != nil {
			return nil, fmt.Errorf("read license: %w", err)
		}
		coverage := licensecheck.Scan(text)
		if coverage.Percent < minCovered {
			return nil, fmt.Errorf("%s is recognized to %.0f%%, want %d%%: read it", entry.Name(), coverage.Percent, minCovered)
		}
		for _, match := range coverage.Match {
			if !slices.Contains(allowed, match.ID) {
				return nil, fmt.Errorf("%s is %s, allowed are %s", entry.Name(), match.ID, strings.Join(allowed, ", "))
			}
			if !slices.Contains(found, match.ID) {
				found = append(found, match.ID)
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no license file: read its repository")
	}
	slices.Sort(found)
	return found, nil
}
