package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"example.com/videocatalog/internal/admin/adminserver"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/store"
)

// adminTimeout is how long a call of AdminService may take: an action changes all that
// matches.
const adminTimeout = 10 * time.Minute

// startAdmin opens the port of AdminService, if one is configured. Its calls use the same
// connections to the database as those of the API.
func (i *instance) startAdmin(ctx context.Context) error {
	if i.cfg.AdminAddr == "" {
		return nil
	}
	var stores adminserver.Stores
	if i.database.commands != nil {
		events := store.NewOutbox(i.database.commands.calls)
		stores.Outbox = events
		stores.Republish, stores.Backfill = repeats(events, i.registered)
	}
	if i.database.queries != nil {
		inbox := store.NewInbox(i.database.queries.calls)
		stores.Seek = seeker(i.cfg, i.registered, inbox)
		stores.Quarantine, stores.Apply = inbox, replayer(replayed(i.registered, i.database.commandPool()))
	}
	if i.database.commands != nil && i.database.queries != nil {
		p := projections(i.cfg, i.registered, i.database.commands.calls, i.database.queries.calls)
		stores.Projections, stores.Rebuilds = &p, rebuilds(i.registered, i.database.commands.calls, i.database.queries.calls, i.log)
	}
	seal, err := aip.NewSeal(nil)
	if err != nil {
		return err
	}
	cfg := i.cfg.port
	cfg.CORSOrigins, cfg.Hosts, cfg.CallTimeout = nil, i.cfg.hosts(), adminTimeout
	// No metrics: those of calls are for the objectives of the public port.
	deps := port.Deps{Services: []port.Service{adminserver.New(stores, seal)}, Tracing: i.tel.Tracing, Log: i.log}
	if deps.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", i.cfg.AdminAddr); err != nil {
		return fmt.Errorf("ADMIN_ADDR: %w", err)
	}
	server, err := port.New(cfg, deps)
	if err != nil {
		return errors.Join(err, deps.Listener.Close())
	}
	i.tasks = append(i.tasks, server.Run)
	i.log.InfoContext(ctx, "admin: port open", "addr", deps.Listener.Addr().String())
	return nil
}
