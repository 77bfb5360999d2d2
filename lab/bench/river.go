package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverPeer uses river as a queue, with a job per event. It does not keep any order, and keeps
// completed jobs for a day.
type riverPeer struct {
	base
	client *river.Client[pgx.Tx] // for inserts only
}

type eventJob struct {
	Payload []byte `json:"payload"`
}

// Kind implements river.JobArgs.
func (eventJob) Kind() string { return "event" }

type eventWorker struct {
	river.WorkerDefaults[eventJob]
	sender *sender
}

// Work implements river.Worker.
func (w *eventWorker) Work(ctx context.Context, job *river.Job[eventJob]) error {
	return w.sender.send(ctx, job.Args.Payload)
}

func (p *riverPeer) prepare(ctx context.Context) error {
	driver := riverpgxv5.New(p.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: discard})
	if err != nil {
		return fmt.Errorf("make migrator: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	p.client, err = river.NewClient(driver, &river.Config{Logger: discard})
	return err
}

func (p *riverPeer) tables() []string { return []string{"river_job"} }

func (p *riverPeer) backlog(ctx context.Context, w workload) error {
	chunk := max(1, min(5000, 50_000_000/w.size))
	for from := 0; from < w.len(); from += chunk {
		jobs := make([]river.InsertManyParams, 0, chunk)
		for i := from; i < min(from+chunk, w.len()); i++ {
			jobs = append(jobs, river.InsertManyParams{Args: eventJob{w.payload(i)}})
		}
		if _, err := p.client.InsertManyFast(ctx, jobs); err != nil {
			return fmt.Errorf("insert jobs: %w", err)
		}
	}
	return nil
}

func (p *riverPeer) append(ctx context.Context, tx pgx.Tx, w workload, i int) error {
	_, err := p.client.InsertTx(ctx, tx, eventJob{w.payload(i)}, nil)
	return err
}

func (p *riverPeer) committed(workload, int) {}

func (p *riverPeer) left(ctx context.Context) (int, error) {
	return p.count(ctx, "SELECT count(*) FROM river_job WHERE state <> 'completed'")
}

func (p *riverPeer) instance(ctx context.Context, k *sink) (instance, error) {
	const workers = 500 // jobs at a time; river has no default
	pool, s, release, err := p.connect(ctx, 10, k)
	if err != nil {
		return instance{}, err
	}
	registry := river.NewWorkers()
	river.AddWorker(registry, &eventWorker{sender: s})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: discard, Workers: registry, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		FetchCooldown: river.FetchCooldownMin, FetchPollInterval: pollPause,
	})
	if err != nil {
		return instance{}, errors.Join(fmt.Errorf("make client: %w", err), release())
	}
	return instance{
		run: func(ctx context.Context) error {
			if err := client.Start(context.WithoutCancel(ctx)); err != nil {
				return fmt.Errorf("start: %w", err)
			}
			<-ctx.Done()
			return client.Stop(context.WithoutCancel(ctx))
		},
		close: release,
	}, nil
}
