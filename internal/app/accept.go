package app

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
)

// databasesCommand records the present databases of both sides as the known ones. It repairs
// nothing: a person has compared the data.
func databasesCommand(ctx context.Context, cfg config, args []string, stdout io.Writer) error {
	if len(args) == 0 || args[0] != "accept" {
		return errUsage
	}
	o, err := parseAction("databases accept", args[1:])
	if err != nil {
		return err
	}
	if len(o.args) > 0 {
		return errUsage
	}
	entry, err := o.entry(admin.ActionAccept, struct{}{})
	if err != nil {
		return err
	}
	database, err := openDatabase(ctx, cfg, sides{commands: true, queries: true}, 0, nil)
	if err != nil {
		return err
	}
	defer database.close()
	commands, queries := store.NewOutbox(database.commands.own), store.NewInbox(database.queries.own)
	p := newPrinter(stdout, o.json)
	for _, s := range []struct {
		name string
		look func(context.Context) (store.Database, error)
		know func(context.Context, string, admin.Entry) (bool, error)
	}{
		{server.SideCommands, commands.Database, commands.KnowDatabase},
		{server.SideQueries, queries.Database, queries.KnowDatabase},
	} {
		found, err := s.look(ctx)
		if err != nil {
			return errors.Join(p.end(), err)
		}
		result := accepted{Side: s.name, Live: found.Live, Known: found.Known}
		if !o.DryRun {
			if result.Changed, err = s.know(ctx, found.Live, entry); err != nil {
				return errors.Join(p.end(), err)
			}
			result.ActionID = entry.ActionID
		}
		p.line("%s", result.text())
		p.row(result)
	}
	return p.end()
}

// accepted is what a command has made of the database of a side.
type accepted struct {
	ActionID uuid.UUID `json:"action_id,omitzero"` // zero after a dry run
	Side     string    `json:"side"`
	Live     string    `json:"live"`
	Known    string    `json:"known"` // before
	Changed  bool      `json:"changed"`
}

func (a accepted) text() string {
	switch {
	case a.Changed:
		return fmt.Sprintf("%s: %s is known now, before it was %s; action %s", a.Side, a.Live, a.Known, a.ActionID)
	case a.Live == a.Known, a.ActionID != uuid.Nil: // or another operator has done it
		return fmt.Sprintf("%s: %s is known already; nothing was changed", a.Side, a.Live)
	}
	return fmt.Sprintf("%s: %s is not known, but %s; nothing was changed", a.Side, a.Live, a.Known)
}
