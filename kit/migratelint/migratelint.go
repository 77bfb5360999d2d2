// Package migratelint refuses migrations that stop a running service.
//
// A migration runs while the service runs, and before the build that needs it. So no statement may lock a table in use
// for longer than an instant, and none may remove what the previous build still uses. PostgreSQL's own parser reads the
// statements (version 17, compiled to WebAssembly). A statement that is not known to be harmless is refused. Nothing
// uses the tables that the same migration creates, so it may alter, index and fill them freely.
//
// The rules, by their names in findings:
//
//   - lock-timeout: a statement that locks a table in use needs SET LOCAL lock_timeout before it (SET, in a migration
//     without transaction), of 10 s at most and in whole s or ms. A new table also needs it if it refers to a table in
//     use, is a partition of it or inherits from it. While a statement waits for a lock, all later statements wait too. CONCURRENTLY
//     needs none: it does not block them, and a timeout would leave an invalid index.
//   - add-not-null, volatile-default, add-constraint: a new column is nullable or has a constant default, and has no
//     key, check or reference. Otherwise the table is read or rewritten under an exclusive lock, or inserts of the
//     previous build fail. A computed column is allowed after the comment "-- small: WHY IT HAS FEW ROWS".
//   - set-not-null: only after a validated CHECK (column IS NOT NULL), which makes it instant.
//   - validate: a constraint on a table in use is added NOT VALID, and validated in a later transaction.
//   - index: CREATE, DROP and REINDEX INDEX are CONCURRENTLY, each in its own migration with NO TRANSACTION.
//   - alter-type: the type of a column does not change; a new column replaces it.
//   - rename: nothing in use is renamed or moved, nor a value of an enum: the previous build has only the old name.
//   - contract: the comment "-- contract: WHY NOTHING NEEDS IT" comes before a statement that drops (defaults too),
//     empties, revokes, disables triggers, changes an owner, or hides rows by row security.
//   - whole-table: no UPDATE or DELETE without WHERE or with a constant one, also in WITH; a backfill is a command that
//     works in batches.
//   - opaque: DO contains none of these statements, because the parser cannot read its body.
//   - unknown: no other statement, unless it is known to be harmless.
//
// It knows neither the size of a table nor the effect of a function that a migration calls. A review must find:
//
//   - a WHERE that is true for all rows but not constant; an INSERT that reads a whole table;
//   - CREATE OR REPLACE of a view, a function, a trigger or a rule that changes what it does;
//   - a new trigger, policy or rule that refuses what the previous build does;
//   - ALTER ROLE, such as NOLOGIN, and ALTER DEFAULT PRIVILEGES; privileges revoked from PUBLIC;
//   - set_config('lock_timeout', …), which does not count;
//   - inside DO, revoked privileges, and SQL that is composed from strings.
package migratelint

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// File is a migration.
type File struct {
	Name string
	Text string
}

// Finding is a statement that breaks a rule.
type Finding struct {
	File    string
	Line    int
	Rule    string // its name in the package comment
	Message string // the problem, and what to do instead
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Message)
}

// Lint returns the findings in migrations, which must be in the order in which they run. It returns an error if a
// migration cannot be parsed.
func Lint(files []File) ([]Finding, error) {
	l := &linter{checks: make(map[string]notNull)}
	for _, file := range files {
		if err := l.file(file); err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name, err)
		}
	}
	return l.findings, nil
}

// notNull is a CHECK (column IS NOT NULL).
type notNull struct {
	column string // with the name of its table
	valid  bool
	added  string // name of the migration that adds it
}

type linter struct {
	findings []Finding
	checks   map[string]notNull // by table and name of the constraint

	// The present migration.
	name          string
	inTransaction bool
	statements    int
	made          map[string]bool // tables and schemas that it creates
	lockTimeout   bool            // a lock_timeout is set: see set
	at            statement
}

var noTransaction = regexp.MustCompile(`(?m)^-- \+goose NO TRANSACTION\s*$`)

func (l *linter) file(file File) error {
	statements, err := parse(file.Text)
	if err != nil {
		return err
	}
	l.name, l.inTransaction, l.statements = file.Name, !noTransaction.MatchString(file.Text), 0
	l.made, l.lockTimeout = make(map[string]bool), false
	for _, s := range statements {
		if s.kind != "VariableSetStmt" {
			l.statements++
		}
	}
	for _, l.at = range statements {
		if err := l.statement(); err != nil {
			return fmt.Errorf("line %d: %w", l.at.line, err)
		}
	}
	return nil
}

func (l *linter) report(rule, format string, args ...any) {
	l.findings = append(l.findings, Finding{File: l.name, Line: l.at.line, Rule: rule, Message: fmt.Sprintf(format, args...)})
}

// isNew reports whether the present migration has created a table, or its schema.
func (l *linter) isNew(r relation) bool {
	return l.made[r.String()] || r.Schema != "" && l.made[r.Schema]
}

// locks reports a statement that locks a table in use without a lock_timeout.
func (l *linter) locks(what string) {
	if l.lockTimeout {
		return
	}
	set := "SET"
	if l.inTransaction {
		set = "SET LOCAL"
	}
	l.report("lock-timeout", "%s is in use: put %s lock_timeout = '2s', or up to 10s, before this statement", what, set)
}

// These match the comments with the reason why something can be removed, and why a table can be rewritten.
var (
	contract = regexp.MustCompile(`(?m)^-- contract: \S+`)
	small    = regexp.MustCompile(`(?m)^-- small: \S+`)
)

// hasComment reports whether a comment of a kind comes before the present statement.
func (l *linter) hasComment(comment *regexp.Regexp) bool {
	return comment.MatchString(l.at.text[:comments(l.at.text)])
}

func (l *linter) needsContract(what string) {
	if !l.hasComment(contract) {
		l.report("contract", "%s: the build before this one may need it; when none does, say so in a comment before the statement: -- contract: WHY", what)
	}
}

// harmless are the statements that lock no table, or block only each other, and remove nothing that a build uses.
var harmless = []string{
	"AlterDefaultPrivilegesStmt", "AlterRoleSetStmt", "AlterRoleStmt", "CommentStmt", "CompositeTypeStmt", "CreateDomainStmt", "CreateEnumStmt",
	"CreateExtensionStmt", "CreateFunctionStmt", "CreatePublicationStmt", "CreateRoleStmt", "CreateStatsStmt",
}

func (l *linter) statement() error {
	switch l.at.kind {
	case "VariableSetStmt":
		s, err := read[set](l.at.node)
		l.set(s)
		return err
	case "CreateStmt", "CreateSchemaStmt", "CreateSeqStmt", "ViewStmt", "CreateTableAsStmt":
		return l.create()
	case "CreateTrigStmt", "CreatePolicyStmt", "AlterPolicyStmt", "RuleStmt":
		c, err := read[create](l.at.node)
		table := c.Relation
		if table.Name == "" {
			table = c.Table
		}
		if !l.isNew(table) {
			l.locks(table.String())
		}
		return err
	case "AlterTableStmt":
		return l.alter()
	case "IndexStmt":
		return l.index()
	case "ReindexStmt":
		if !strings.Contains(strings.ToUpper(l.at.text[comments(l.at.text):]), "CONCURRENTLY") {
			l.report("index", "writers wait: REINDEX … CONCURRENTLY, in a migration of its own with NO TRANSACTION")
		}
		return nil
	case "DropStmt":
		return l.drop()
	case "TruncateStmt":
		l.locks("what is emptied")
		l.needsContract("empties")
		return nil
	case "DropRoleStmt", "DropOwnedStmt":
		l.needsContract("drops")
		return nil
	case "RenameStmt", "AlterObjectSchemaStmt":
		l.report("rename", "the previous build has only the old name: add the new one beside it, and drop the old one later")
		return nil
	case "GrantStmt":
		g, err := read[grant](l.at.node)
		for _, to := range g.To {
			if !g.IsGrant && to.Role.Kind != "ROLESPEC_PUBLIC" { // no grant of ours depends on PUBLIC
				l.needsContract("takes a privilege")
				break
			}
		}
		return err
	case "GrantRoleStmt":
		g, err := read[grant](l.at.node)
		if !g.IsGrant {
			l.needsContract("takes a role from its members")
		}
		return err
	case "AlterEnumStmt":
		e, err := read[enum](l.at.node)
		if e.Renames != "" {
			l.report("rename", "the previous build writes and reads %q: add the new value beside it", e.Renames)
		}
		return err
	case "UpdateStmt", "DeleteStmt", "InsertStmt", "SelectStmt":
		return l.wholeTable()
	case "DoStmt":
		if found := dangerous.FindString(l.at.text[comments(l.at.text):]); found != "" {
			l.report("opaque", "%q inside DO cannot be checked: write it as a statement", found)
		}
		return nil
	}
	if !slices.Contains(harmless, l.at.kind) {
		l.report("unknown", "%s is not known to be harmless: see what it locks, then add it to migratelint", l.at.kind)
	}
	return nil
}

// set records a change of lock_timeout.
func (l *linter) set(s set) {
	switch {
	case s.Kind == "VAR_RESET_ALL":
	case s.Name != "lock_timeout":
		return
	case s.Local && !l.inTransaction: // it has no effect
		return
	}
	wait := lockTimeout(s)
	l.lockTimeout = 0 < wait && wait <= longestWait
}

// longestWait is the longest allowed lock_timeout. All later statements wait behind a statement that waits for its lock.
const longestWait = 10 * time.Second

// lockTimeout returns the time of a setting. It returns 0, which means no timeout, if there is none or it has another
// form. Without a unit it is in milliseconds.
// https://www.postgresql.org/docs/current/config-setting.html#CONFIG-SETTING-NAMES-VALUES
func lockTimeout(s set) time.Duration {
	if s.Kind != "VAR_SET_VALUE" || len(s.Args) != 1 {
		return 0
	}
	value := s.Args[0].Const
	if value.Integer != nil {
		return time.Duration(value.Integer.Value) * time.Millisecond
	}
	text := strings.ReplaceAll(value.String.Value, " ", "")
	if n, err := strconv.Atoi(text); err == nil {
		return time.Duration(n) * time.Millisecond
	}
	wait, _ := time.ParseDuration(text)    // PostgreSQL refuses the forms that only Go has
	return wait.Truncate(time.Millisecond) // PostgreSQL takes less for 0
}

// wholeTable reports changes of all rows, also in WITH queries.
func (l *linter) wholeTable() error {
	statement, err := json.Marshal(object{l.at.kind: l.at.node})
	if err != nil {
		return fmt.Errorf("write the result of the parser: %w", err)
	}
	for _, kind := range []string{"UpdateStmt", "DeleteStmt"} {
		if err := each(statement, kind, func(node json.RawMessage) error {
			c, err := read[change](node)
			_, constant := c.Where["A_Const"] // for example WHERE true
			if (c.Where == nil || constant) && !l.isNew(c.Relation) {
				l.report("whole-table", "it locks every row of %s: backfill in batches, in a command", c.Relation)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// dangerous matches statements that other rules check.
var dangerous = regexp.MustCompile(`(?i)\b(ALTER\s+(TABLE|TYPE)|CREATE\s+(UNIQUE\s+)?INDEX|DROP|TRUNCATE|RENAME|UPDATE|DELETE|LOCK|REINDEX|CLUSTER)\b`)

// create records the new tables of the migration, and checks their references to tables in use.
func (l *linter) create() error {
	if l.at.kind == "CreateTableAsStmt" {
		c, err := read[createAs](l.at.node)
		if err != nil {
			return err
		}
		if !c.Maybe {
			l.made[c.Into.Relation.String()] = true
		}
		return l.wholeTable()
	}
	c, err := read[create](l.at.node)
	if err != nil {
		return err
	}
	if !c.Maybe && !c.Replaces { // otherwise it may exist already, and be in use
		l.makes(c)
	}
	for _, parent := range c.Parents {
		if !l.isNew(parent.Relation) {
			l.locks(parent.Relation.String())
		}
	}
	for _, element := range c.Elements {
		l.references(element.Constraint)
		l.columnReferences(element.Column)
	}
	return nil
}

func (l *linter) makes(c create) {
	for _, r := range []relation{c.Relation, c.View, c.Sequence, {Name: c.Schema}} {
		l.made[r.String()] = true
	}
}

func (l *linter) index() error {
	i, err := read[index](l.at.node)
	if err != nil || l.isNew(i.Relation) {
		return err
	}
	if !i.Concurrent {
		l.report("index", "writers to %s wait until it is built: CREATE INDEX CONCURRENTLY, in a migration of its own with NO TRANSACTION", i.Relation)
		return nil
	}
	l.alone()
	return nil
}

// alone reports a CONCURRENTLY statement in a transaction or beside others. Alone, it can run again after a failure.
func (l *linter) alone() {
	if l.inTransaction || l.statements > 1 {
		l.report("index", "CONCURRENTLY has no transaction: put it alone into a migration with the line -- +goose NO TRANSACTION")
	}
}

func (l *linter) drop() error {
	d, err := read[drop](l.at.node)
	if err != nil {
		return err
	}
	what := "drops a " + strings.ToLower(strings.TrimPrefix(d.Kind, "OBJECT_"))
	switch d.Kind {
	case "OBJECT_INDEX":
		if !d.Concurrent {
			l.report("index", "queries wait: DROP INDEX CONCURRENTLY, in a migration of its own with NO TRANSACTION")
			return nil
		}
		l.alone()
	case "OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW", "OBJECT_TRIGGER", "OBJECT_POLICY", "OBJECT_RULE", "OBJECT_SCHEMA":
		l.locks("what is dropped")
	}
	l.needsContract(what)
	return nil
}
