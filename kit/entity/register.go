package entity

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	gotypes "go/types"
	"os"
	"slices"
)

// registered is the file with the list of the registrations.
const registered = "cmd/server/registrations.go"

// register adds to the list of registrations those of entities and of their reactions that it
// does not have.
func register(all []entity, written *undo) error {
	source, err := os.ReadFile(registered)
	if err != nil {
		return err
	}
	for _, e := range all {
		names := []string{e.VarPlural()}
		for i := range e.Reactions {
			names = append(names, e.Reactions[i].Func())
		}
		for _, name := range names {
			if source, err = withRegistration(source, name); err != nil {
				return fmt.Errorf("%s: %w", registered, err)
			}
		}
	}
	return written.write(registered, source)
}

// withRegistration returns the source of the list with a call of the function name at its end,
// if it has none.
func withRegistration(source []byte, name string) ([]byte, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, "", source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var list *ast.CompositeLit
	ast.Inspect(tree, func(n ast.Node) bool {
		if found, ok := n.(*ast.ReturnStmt); ok && list == nil && len(found.Results) == 1 {
			list, _ = found.Results[0].(*ast.CompositeLit)
		}
		return list == nil
	})
	if list == nil {
		return nil, errors.New("no function returns a list of registrations")
	}
	call := name + "(queries)"
	if slices.ContainsFunc(list.Elts, func(element ast.Expr) bool { return gotypes.ExprString(element) == call }) {
		return source, nil
	}
	end, comma := set.Position(list.Rbrace).Offset, ""
	if n := len(list.Elts); n > 0 {
		last := set.Position(list.Elts[n-1].End()).Offset
		if !bytes.HasPrefix(bytes.TrimSpace(source[last:]), []byte(",")) {
			comma = ","
		}
	}
	return format.Source(slices.Concat(bytes.TrimRight(source[:end], " \t\n"), []byte(comma+"\n"+call+",\n"), source[end:]))
}
