package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"example.com/servicekit/naming"
)

// collisions returns an error if the words of the options mean something else in a file of
// the template. Two different names of one scope must stay different, and no name may
// become a keyword. The error has the first place.
func (a options) collisions(files fs.FS, names []string) error {
	if a.Entity == "" {
		return nil
	}
	c := checker{options: a, files: token.NewFileSet(), scopes: make(map[string]scope), renamed: make(map[string]string)}
	paths := scope{}
	for _, name := range names {
		if isBelow(name, notCopied) || strings.HasPrefix(name, kit) {
			continue
		}
		c.path(paths, name)
		ext := path.Ext(name)
		if ext != ".go" && ext != ".sql" && ext != ".proto" {
			continue
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if ext != ".go" {
			c.statements(name, string(content))
		} else if err := c.file(name, content); err != nil {
			return err
		}
		if c.err != nil {
			return c.err
		}
	}
	return c.err
}

// scope has the names of one scope: the old ones by the new ones.
type scope map[string]string

// checker looks for names that would become equal.
type checker struct {
	options options
	files   *token.FileSet
	scopes  map[string]scope  // of packages and of types
	renamed map[string]string // identifiers
	err     error             // the first
}

// add adds a name to a scope.
func (c *checker) add(s scope, old, renamed, place string) {
	was, ok := s[renamed]
	s[renamed] = cmp.Or(was, old)
	if ok && was != old {
		if old == renamed {
			old, was = was, old
		}
		c.refuse(old, fmt.Sprintf("in %s %s would become %s, and %s is there, too", place, old, renamed, was))
	}
}

// refuse sets the error about a name that must not be renamed in this way.
func (c *checker) refuse(old, what string) {
	if c.err != nil {
		return
	}
	flag, value, advice := "--entity", c.options.Entity, "such as order_"+c.options.Entity
	switch old = strings.ToLower(old); {
	case strings.Contains(old, "catalog"):
		flag, value, advice = "--view", c.options.View, "such as overview"
	case plurals.MatchString(old) && c.options.Plural != naming.Plural(c.options.Entity):
		flag, value, advice = "--plural", c.options.Plural, "such as "+naming.Plural(c.options.Entity)
	}
	c.err = fmt.Errorf("%s %q: %s: choose another, %s", flag, value, what, advice)
}

var plurals = regexp.MustCompile(`(?i)(video|film)s`)

// path adds the path of a file, and refuses one that the go command reads in another way.
func (c *checker) path(s scope, name string) {
	renamed := c.options.renamePath(name)
	c.add(s, name, renamed, name)
	found := constraint.FindStringSubmatch(path.Base(renamed))
	if found != nil && naming.IsFileSuffix(found[1]) && constraint.FindString(path.Base(name)) != found[0] {
		c.refuse(name, fmt.Sprintf("%s would become %s, and Go compiles what ends in _%s only for that", name, renamed, found[1]))
	}
}

// constraint matches the end of the name of a Go file. naming.IsFileSuffix says which ends
// have a meaning.
var constraint = regexp.MustCompile(`_([a-z0-9]+)(_test)?\.go$`)

// file checks a file of Go.
func (c *checker) file(name string, content []byte) error {
	file, err := parser.ParseFile(c.files, name, content, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(name) + " " + file.Name.Name
	for _, decl := range file.Decls {
		skip := make(map[ast.Node]bool)
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				c.ident(c.scope(dir, receiver(d.Recv.List[0].Type)), d.Name)
				skip[d.Name] = true
			} else if d.Name.Name != "init" {
				c.ident(c.scope(dir, ""), d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				c.spec(dir, spec, skip)
			}
		}
		c.inside(decl, skip)
	}
	return nil
}

// spec adds the names that a declaration outside of functions has for its package.
func (c *checker) spec(dir string, spec ast.Spec, skip map[ast.Node]bool) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		c.ident(c.scope(dir, ""), s.Name)
		c.members(c.scope(dir, s.Name.Name), s.Type, skip)
	case *ast.ValueSpec:
		for _, name := range s.Names {
			c.ident(c.scope(dir, ""), name)
		}
	}
}

// inside checks what is in a declaration. The names that stand alone in it are one scope,
// also if they are in different blocks: what is shadowed must not change either.
func (c *checker) inside(decl ast.Decl, skip map[ast.Node]bool) {
	alone := scope{}
	ast.Inspect(decl, func(n ast.Node) bool {
		if skip[n] {
			_, isName := n.(*ast.Ident)
			return !isName
		}
		switch n := n.(type) {
		case *ast.Ident:
			c.ident(alone, n)
		case *ast.SelectorExpr:
			skip[n.Sel] = true
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				skip[key] = true // a field
			}
		case *ast.StructType, *ast.InterfaceType:
			c.members(scope{}, n, skip)
		case *ast.CompositeLit:
			c.keys(n)
		default:
		}
		return true
	})
}

// members adds the fields of a struct, or the methods of an interface, to a scope.
func (c *checker) members(s scope, of ast.Node, skip map[ast.Node]bool) {
	var fields *ast.FieldList
	switch t := of.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return
	}
	skip[of] = true
	for _, field := range fields.List {
		for _, name := range field.Names {
			c.ident(s, name)
			skip[name] = true
		}
	}
}

// keys adds the strings that are keys of a literal: a map has each once.
func (c *checker) keys(literal *ast.CompositeLit) {
	keys := scope{}
	for _, element := range literal.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if key, ok := pair.Key.(*ast.BasicLit); ok && key.Kind == token.STRING {
			c.add(keys, key.Value, c.options.rename(key.Value, []span{{len(key.Value), text}}), c.place(key))
		}
	}
}

// ident adds an identifier of Go to a scope. One that is renamed must be no keyword, and
// must hide nothing of the language.
func (c *checker) ident(s scope, ident *ast.Ident) {
	if ident.Name == "_" {
		return
	}
	renamed := c.identifier(ident.Name)
	if renamed != ident.Name && (token.IsKeyword(renamed) || types.Universe.Lookup(renamed) != nil) {
		c.refuse(ident.Name, fmt.Sprintf("in %s %s would become %s, which Go uses for itself", c.place(ident), ident.Name, renamed))
	}
	c.add(s, ident.Name, renamed, c.place(ident))
}

func (c *checker) identifier(name string) string {
	renamed, ok := c.renamed[name]
	if !ok {
		renamed = c.options.rename(name, []span{{len(name), golang}})
		c.renamed[name] = renamed
	}
	return renamed
}

func (c *checker) place(n ast.Node) string {
	p := c.files.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// scope returns the scope of a package, or of a type in it.
func (c *checker) scope(dir, of string) scope {
	key := dir + " " + of
	if c.scopes[key] == nil {
		c.scopes[key] = scope{}
	}
	return c.scopes[key]
}

// receiver returns the name of the type that has a method.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

var identifierOfSQL = regexp.MustCompile(`\w+`)

// statements checks a file of SQL or protobuf. The words of a statement of SQL are one
// scope, and those of a block of protobuf.
func (c *checker) statements(name, source string) {
	s, start, end := scope{}, 0, ";"
	if path.Ext(name) == ".proto" {
		end = "}"
	}
	for _, p := range spans(name, source) {
		part := source[start:p.end]
		for _, at := range identifierOfSQL.FindAllStringIndex(part, -1) {
			if p.kind != code {
				break
			}
			old := part[at[0]:at[1]]
			renamed := c.options.rename(old, []span{{len(old), code}})
			place := fmt.Sprintf("%s:%d", name, 1+strings.Count(source[:start+at[0]], "\n"))
			if renamed != old && path.Ext(name) == ".sql" && naming.IsSQLKeyword(renamed) {
				c.refuse(old, fmt.Sprintf("in %s %s would become %s, a keyword of SQL", place, old, renamed))
			}
			c.add(s, old, renamed, place)
		}
		if p.kind == code && strings.Contains(part, end) {
			s = scope{}
		}
		start = p.end
	}
}
