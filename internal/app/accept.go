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
	p := NewPrinter(stdout, o.json)
	for _, side := range identities(database) {
		if err := side.find(ctx); err != nil {
			return errors.Join(p.End(), err)
		}
		if !o.DryRun {
			if err := side.accept(ctx, entry); err != nil {
				return errors.Join(p.End(), err)
			}
		}
		side.print(p)
	}
	return p.End()
}

// identity is the database of a side, and what a command made of it.
type identity struct {
	accepted
	look func(context.Context) (store.Database, error)
	know func(context.Context, string, admin.Entry) (bool, error)
}

// identities returns the databases of both sides.
func identities(database database) []*identity {
	commands, queries := store.NewOutbox(database.commands.own), store.NewInbox(database.queries.own)
	return []*identity{
		{accepted{Side: server.SideCommands}, commands.Database, commands.KnowDatabase},
		{accepted{Side: server.SideQueries}, queries.Database, queries.KnowDatabase},
	}
}

// find reads the live and the known database.
func (i *identity) find(ctx context.Context) error {
	found, err := i.look(ctx)
	i.Live, i.Known = found.Live, found.Known
	return err
}

// accept records the database that find has found as known.
func (i *identity) accept(ctx context.Context, entry admin.Entry) (err error) {
	if i.Changed, err = i.know(ctx, i.Live, entry); err == nil {
		i.ActionID = entry.ActionID
	}
	return err
}

func (i *identity) print(p *Printer) {
	p.Line("%s", i.text())
	p.Row(i.accepted)
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
