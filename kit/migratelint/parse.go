package migratelint

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/wasilibs/go-pgquery/parser"
)

// up matches the up part of a goose migration. Only that part runs in production.
var up = regexp.MustCompile(`(?s)^(.*-- \+goose Up[^\n]*\n)(.*?)(?:-- \+goose Down.*)?$`)

// statement is one statement of a migration, as parsed by PostgreSQL's parser.
type statement struct {
	kind string          // name of the node, such as AlterTableStmt
	node json.RawMessage // its content
	text string          // with the comments before it
	line int             // line of its start, after these comments
}

// The nodes of https://github.com/postgres/postgres/blob/REL_17_STABLE/src/include/nodes/parsenodes.h, with the
// fields that the rules need. In JSON, fields with a zero value are absent.
type (
	object map[string]json.RawMessage // a node of any kind, by the name of its kind

	relation struct {
		Schema string `json:"schemaname"`
		Name   string `json:"relname"`
	}
	alterTable struct {
		Relation relation `json:"relation"`
		Kind     string   `json:"objtype"`
		Commands []struct {
			Command alterCommand `json:"AlterTableCmd"`
		} `json:"cmds"`
	}
	alterCommand struct {
		Subtype    string `json:"subtype"`
		Name       string `json:"name"`
		Definition object `json:"def"`
	}
	partition struct { // ATTACH, DETACH
		Name relation `json:"name"`
	}
	column struct {
		Name        string `json:"colname"`
		Type        names  `json:"typeName"`
		Constraints []struct {
			Constraint constraint `json:"Constraint"`
		} `json:"constraints"`
	}
	constraint struct {
		Kind           string   `json:"contype"`
		Name           string   `json:"conname"`
		SkipValidation bool     `json:"skip_validation"` // NOT VALID
		Index          string   `json:"indexname"`       // USING INDEX
		Expression     object   `json:"raw_expr"`
		References     relation `json:"pktable"`
	}
	names struct {
		Names []struct {
			String stringNode `json:"String"`
		} `json:"names"`
	}
	stringNode struct {
		Value string `json:"sval"`
	}
	index struct {
		Relation   relation `json:"relation"`
		Concurrent bool     `json:"concurrent"`
	}
	drop struct {
		Kind       string   `json:"removeType"`
		Concurrent bool     `json:"concurrent"`
		Objects    []object `json:"objects"`
	}
	set struct {
		Kind  string `json:"kind"`
		Name  string `json:"name"`
		Local bool   `json:"is_local"`
		Args  []struct {
			Const struct {
				Integer *struct { // absent if it is no integer
					Value int64 `json:"ival"`
				} `json:"ival"`
				String stringNode `json:"sval"`
			} `json:"A_Const"`
		} `json:"args"`
	}
	enum struct { // ALTER TYPE of an enum
		Renames string `json:"oldVal"`
	}
	change struct { // UPDATE, DELETE
		Relation relation `json:"relation"`
		Where    object   `json:"whereClause"`
	}
	createAs struct {
		Into struct {
			Relation relation `json:"rel"`
		} `json:"into"`
		Maybe bool `json:"if_not_exists"`
	}
	create struct { // table, view, sequence, schema, trigger, policy, rule
		Relation relation `json:"relation"`
		Table    relation `json:"table"`
		View     relation `json:"view"`
		Sequence relation `json:"sequence"`
		Schema   string   `json:"schemaname"`
		Maybe    bool     `json:"if_not_exists"`
		Replaces bool     `json:"replace"` // CREATE OR REPLACE

		Elements []struct {
			Column     column     `json:"ColumnDef"`
			Constraint constraint `json:"Constraint"`
		} `json:"tableElts"`
		Parents []struct { // INHERITS, PARTITION OF
			Relation relation `json:"RangeVar"`
		} `json:"inhRelations"`
	}
	grant struct { // of privileges, or of a role
		IsGrant bool `json:"is_grant"`
		To      []struct {
			Role struct {
				Kind string `json:"roletype"`
			} `json:"RoleSpec"`
		} `json:"grantees"`
	}
)

// parsing: only one call at a time; two at once would each compile the parser, which takes seconds.
var parsing sync.Mutex

// parse splits the up part of a migration into its statements.
func parse(text string) ([]statement, error) {
	parts := up.FindStringSubmatch(text)
	if parts == nil {
		return nil, fmt.Errorf("there is no line %q", "-- +goose Up")
	}
	before, sql := parts[1], parts[2]
	parsing.Lock()
	tree, err := parser.ParseToJSON(sql)
	parsing.Unlock()
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	var parsed struct {
		Statements []struct {
			Node     object `json:"stmt"`
			Location int    `json:"stmt_location"`
			Length   int    `json:"stmt_len"` // 0: up to the end
		} `json:"stmts"`
	}
	if err := json.Unmarshal([]byte(tree), &parsed); err != nil {
		return nil, fmt.Errorf("read the result of the parser: %w", err)
	}
	var statements []statement
	for _, s := range parsed.Statements {
		end := s.Location + s.Length
		if s.Length == 0 {
			end = len(sql)
		}
		text := sql[s.Location:end]
		for kind, node := range s.Node { // there is exactly one
			statements = append(statements, statement{
				kind: kind, node: node, text: text,
				line: 1 + strings.Count(before, "\n") + strings.Count(sql[:s.Location+comments(text)], "\n"),
			})
		}
	}
	return statements, nil
}

// leading matches blank lines and comments before a statement.
var leading = regexp.MustCompile(`^(?:\s+|--[^\n]*\n|(?s:/\*.*?\*/))*`)

// each calls f with every node of a kind in a node, at any depth.
func each(node json.RawMessage, kind string, f func(json.RawMessage) error) error {
	switch node[0] {
	case '[':
		inner, err := read[[]json.RawMessage](node)
		if err != nil {
			return err
		}
		for _, n := range inner {
			if err := each(n, kind, f); err != nil {
				return err
			}
		}
	case '{':
		fields, err := read[object](node)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if name == kind {
				if err := f(fields[name]); err != nil {
					return err
				}
			}
			if err := each(fields[name], kind, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// comments returns the length of the comments before a statement.
func comments(text string) int { return len(leading.FindString(text)) }

// read decodes the node of a statement.
func read[T any](node json.RawMessage) (v T, err error) {
	if err = json.Unmarshal(node, &v); err != nil {
		err = fmt.Errorf("read the result of the parser: %w", err)
	}
	return v, err
}

func (r relation) String() string {
	if r.Schema == "" {
		return r.Name
	}
	return r.Schema + "." + r.Name
}
