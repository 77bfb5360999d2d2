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

// The files with the lists of registrations, of the aggregates that are replayed, and of the
// projections that are repaired.
const (
	registered  = "cmd/server/registrations.go"
	aggregates  = replay + "/aggregates.go"
	projections = "options/repair/projections.go"
)

// register adds the missing calls for entities and their reactions to the lists.
func register(all []entity, written *undo) error {
	lists := make(map[string][]string)
	for _, e := range all {
		lists[registered] = append(lists[registered], e.VarPlural()+"()")
		for i := range e.Reactions {
			lists[registered] = append(lists[registered], e.Reactions[i].Func()+"()")
		}
		if e.names.HasReplay && !e.Replica() {
			lists[aggregates] = append(lists[aggregates], e.VarPlural()+"()")
		}
		if e.names.HasRepair && !e.Replica() {
			lists[projections] = append(lists[projections], fmt.Sprintf("entityOf(%q, %q, %q, commands, queries)", e.Name, e.Plural, e.ID()))
		}
	}
	for path, calls := range lists {
		source, err := os.ReadFile(path) //nolint:gosec // a file of this repository
		for _, call := range calls {
			if err == nil {
				source, err = withCall(source, call)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := written.write(path, source); err != nil {
			return err
		}
	}
	return nil
}

// withCall returns source with a call at the end of the first list that a function returns, unless
// the list has the call.
func withCall(source []byte, call string) ([]byte, error) {
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
		return nil, errors.New("no function returns a list")
	}
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
