package app

import (
	"context"

	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/telemetry"
)

// Once calls do with a new Process of the same subcommand and settings, which has telemetry. Then it closes
// all that do has opened, and sends its spans and metrics. So nothing stays open between two calls.
func (p *Process) Once(ctx context.Context, do func(*Process) error) (err error) {
	once := newProcess(p.Subcommand, p.cfg, p.Log)
	defer once.close()
	once.tel, err = telemetry.Start(ctx, telemetry.Config{Service: names.Service, Version: p.cfg.program.Version}, p.Log)
	if err != nil {
		return err
	}
	once.Meter = once.tel.Meter("example.com/videocatalog")
	once.closers = append(once.closers, func() { once.closeTelemetry(ctx) })
	return do(once)
}
