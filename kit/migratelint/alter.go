package migratelint

import "slices"

// brief are the subcommands of ALTER TABLE that hold their lock only for an instant and do not affect the
// previous build. The list has only the subcommands that were needed so far.
// https://www.postgresql.org/docs/current/sql-altertable.html
var brief = []string{
	"AT_DropNotNull", "AT_SetStatistics", "AT_SetStorage", "AT_SetCompression", "AT_SetRelOptions", "AT_ResetRelOptions",
	"AT_ReplicaIdentity", "AT_DisableRowSecurity", "AT_NoForceRowSecurity", "AT_EnableTrig",
}

func (l *linter) alter() error {
	a, err := read[alterTable](l.at.node)
	if err != nil {
		return err
	}
	if l.isNew(a.Relation) {
		return l.alterNew(a)
	}
	l.locks(a.Relation.String())
	for _, command := range a.Commands {
		if err := l.alterCommand(a.Relation, command.Command); err != nil {
			return err
		}
	}
	return nil
}

// alterNew checks whether a change of a new table locks other tables.
func (l *linter) alterNew(a alterTable) error {
	for _, command := range a.Commands {
		for kind, node := range command.Command.Definition { // there is exactly one
			switch kind {
			case "Constraint":
				added, err := read[constraint](node)
				if err != nil {
					return err
				}
				l.references(added)
			case "ColumnDef":
				added, err := read[column](node)
				if err != nil {
					return err
				}
				l.columnReferences(added)
			case "PartitionCmd":
				part, err := read[partition](node)
				if err != nil {
					return err
				}
				if !l.isNew(part.Name) {
					l.report("unknown", "%s is in use: see what %s locks, then add it to migratelint", part.Name, command.Command.Subtype)
				}
			}
		}
	}
	return nil
}

// references reports a foreign key to a table in use, because it blocks the writers of that table.
func (l *linter) references(c constraint) {
	if c.Kind == "CONSTR_FOREIGN" && !l.isNew(c.References) {
		l.locks(c.References.String())
	}
}

func (l *linter) columnReferences(c column) {
	for _, wrapped := range c.Constraints {
		l.references(wrapped.Constraint)
	}
}

// reasons has the subcommands of ALTER TABLE that need a contract, with their effects on the previous build.
var reasons = map[string]string{
	"AT_EnableRowSecurity": "hides all rows that no policy shows",
	"AT_ForceRowSecurity":  "hides from the owner all rows that no policy shows",
	"AT_ChangeOwner":       "takes the rights of an owner from the previous one",
	"AT_DisableTrig":       "stops a trigger",
	"AT_DisableTrigAll":    "stops all triggers",
	"AT_DisableTrigUser":   "stops all triggers",
}

func (l *linter) alterCommand(table relation, c alterCommand) error {
	switch c.Subtype {
	case "AT_AddColumn":
		col, err := read[column](c.Definition["ColumnDef"])
		if err == nil {
			l.addColumn(col)
		}
		return err
	case "AT_AddConstraint":
		added, err := read[constraint](c.Definition["Constraint"])
		if err != nil {
			return err
		}
		return l.addConstraint(table, added)
	case "AT_ValidateConstraint":
		key := table.String() + "." + c.Name
		check := l.checks[key]
		if check.added == l.name && l.inTransaction {
			l.report("validate", "the lock of ADD CONSTRAINT is held while it reads every row: validate in the next migration")
		}
		check.valid = true
		l.checks[key] = check
	case "AT_SetNotNull":
		for _, check := range l.checks {
			if check.valid && check.column == table.String()+"."+c.Name {
				return nil
			}
		}
		l.report("set-not-null", "it reads every row under an exclusive lock: first ADD CONSTRAINT … CHECK (%s IS NOT NULL) NOT VALID, then VALIDATE it", c.Name)
	case "AT_AlterColumnType":
		l.report("alter-type", "it rewrites the table, or breaks the previous build: add a column beside %s, write both, and drop this one later", c.Name)
	case "AT_DropColumn":
		l.needsContract("drops the column " + c.Name)
	case "AT_DropConstraint":
		delete(l.checks, table.String()+"."+c.Name)
		l.needsContract("drops the constraint " + c.Name)
	case "AT_ColumnDefault":
		if c.Definition == nil {
			l.needsContract("drops the default of " + c.Name)
		}
	default:
		if what, ok := reasons[c.Subtype]; ok {
			l.needsContract(what)
			return nil
		}
		if !slices.Contains(brief, c.Subtype) {
			l.report("unknown", "%s is not known to be brief: see what it locks, then add it to migratelint", c.Subtype)
		}
	}
	return nil
}

// stable are functions that have the same value for all existing rows.
// https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-NOTES
var stable = []string{"now", "transaction_timestamp", "statement_timestamp"}

// serial are the types that imply a volatile default.
var serial = []string{"serial", "bigserial", "smallserial", "serial4", "serial8", "serial2"}

func (l *linter) addColumn(c column) {
	notNull, hasDefault := false, false
	if n := len(c.Type.Names); n > 0 && slices.Contains(serial, c.Type.Names[n-1].String.Value) {
		l.report("volatile-default", "%s gets a value per row, so the table is rewritten: add it without, set the default, and backfill", c.Name)
	}
	for _, wrapped := range c.Constraints {
		switch constraint := wrapped.Constraint; constraint.Kind {
		case "CONSTR_NULL":
		case "CONSTR_NOTNULL":
			notNull = true
		case "CONSTR_DEFAULT":
			hasDefault = true
			if !isConstant(constraint.Expression) {
				l.report("volatile-default", "%s gets a value per row, so the table is rewritten: add it without, set the default, and backfill", c.Name)
			}
		case "CONSTR_IDENTITY", "CONSTR_GENERATED":
			hasDefault = true
			if !l.hasComment(small) {
				l.report("volatile-default", "%s is computed for every row, so the table is rewritten: add a plain column, and backfill; or say in a comment before the statement why it has few rows: -- small: WHY", c.Name)
			}
		default:
			l.report("add-constraint", "%s has a constraint, which reads every row under an exclusive lock: add it NOT VALID in its own statement", c.Name)
		}
	}
	if notNull && !hasDefault {
		l.report("add-not-null", "%s: the previous build does not set it: make it nullable, or give it a constant default", c.Name)
	}
}

// isConstant reports whether a default has the same value for all rows.
func isConstant(expression object) bool {
	for kind, node := range expression { // there is exactly one
		switch kind {
		case "A_Const", "SQLValueFunction":
			return true
		case "TypeCast":
			cast, err := read[struct {
				Arg object `json:"arg"`
			}](node)
			return err == nil && isConstant(cast.Arg)
		case "A_ArrayExpr":
			array, err := read[struct {
				Elements []object `json:"elements"`
			}](node)
			return err == nil && !slices.ContainsFunc(array.Elements, func(e object) bool { return !isConstant(e) })
		case "FuncCall":
			call, err := read[struct {
				Name []struct {
					String stringNode `json:"String"`
				} `json:"funcname"`
				Args []object `json:"args"`
			}](node)
			return err == nil && len(call.Name) == 1 && len(call.Args) == 0 && slices.Contains(stable, call.Name[0].String.Value)
		}
	}
	return false
}

func (l *linter) addConstraint(table relation, c constraint) error {
	switch c.Kind {
	case "CONSTR_CHECK", "CONSTR_FOREIGN":
		if !c.SkipValidation {
			l.report("validate", "it reads every row under a lock: add %s NOT VALID, and validate it in the next migration", c.Name)
			return nil
		}
		if test, err := read[struct {
			Arg struct {
				Column struct {
					Fields []struct {
						String stringNode `json:"String"`
					} `json:"fields"`
				} `json:"ColumnRef"`
			} `json:"arg"`
			Kind string `json:"nulltesttype"`
		}](orNull(c.Expression["NullTest"])); err != nil {
			return err
		} else if fields := test.Arg.Column.Fields; test.Kind == "IS_NOT_NULL" && len(fields) == 1 {
			l.checks[table.String()+"."+c.Name] = notNull{column: table.String() + "." + fields[0].String.Value, added: l.name}
			return nil
		}
		l.checks[table.String()+"."+c.Name] = notNull{added: l.name}
	case "CONSTR_UNIQUE", "CONSTR_PRIMARY":
		if c.Index == "" {
			l.report("add-constraint", "it builds an index under an exclusive lock: build it CONCURRENTLY, then ADD CONSTRAINT … USING INDEX")
		}
	default:
		l.report("add-constraint", "%s reads every row under an exclusive lock", c.Kind)
	}
	return nil
}

// orNull returns a node, or the JSON null if it is absent.
func orNull(node []byte) []byte {
	if node == nil {
		return []byte("null")
	}
	return node
}
