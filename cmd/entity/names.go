package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
)

// checkNames returns an error if a package has an identifier that the code of the entity
// declares too.
func (e entity) checkNames() error {
	e.Model = "Model" // does not matter here
	var errs []error
	places := make(map[string]string) // of the identifiers, by folder and name
	add := func(path string, content []byte, fail func(place, name string)) error {
		declared, err := declarations(path, content)
		if err != nil {
			return err
		}
		for _, name := range declared {
			key := filepath.Join(filepath.Dir(path), name)
			if place, ok := places[key]; ok {
				fail(place, name)
			}
			places[key] = path
		}
		return nil
	}
	var files, folders []string
	for _, f := range e.files() {
		if filepath.Ext(f.path) == ".go" {
			files = append(files, f.path)
			if dir := filepath.Dir(f.path); !slices.Contains(folders, dir) {
				folders = append(folders, dir)
			}
		}
	}
	for _, dir := range folders {
		others, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		for _, other := range others {
			if slices.Contains(files, other) {
				continue
			}
			// Two files may declare one name for two platforms.
			if err := add(other, nil, func(string, string) {}); err != nil {
				return err
			}
		}
	}
	for _, f := range e.files() {
		if !slices.Contains(files, f.path) {
			continue
		}
		content, err := e.content(f)
		if err != nil {
			return err
		}
		if err := add(f.path, content, func(place, name string) {
			errs = append(errs, fmt.Errorf("%s declares %s, as %s would: choose another name for the entity, or for its field", place, name, f.path))
		}); err != nil {
			return err
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
