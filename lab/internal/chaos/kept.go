package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// countKept reads from the metrics of each process which connections it still
// holds when all events are processed. Connections that were never released are
// leaks. Polling uses a connection for a moment, and the metrics of a pool may be
// a second old, so it reads them several times.
func (l *lab) countKept(ctx context.Context) {
	var wait sync.WaitGroup
	for _, p := range l.processes {
		wait.Go(func() {
			var kept []*dto.Metric
			var err error
			for range 10 {
				if kept, err = p.kept(ctx); err == nil && len(kept) == 0 {
					return
				}
				sleep(ctx, time.Second+rand.N(300*time.Millisecond))
			}
			if err != nil {
				l.problem(NotCounted, "what %s has in hand: %v", p.name, err)
			}
			for _, pool := range kept {
				l.problem(HandsNotEmpty, "%s: acquired connections: %v", p.name, pool)
			}
		})
	}
	wait.Wait()
}

// kept returns the metrics of the pools that have acquired connections.
func (p *process) kept(ctx context.Context) ([]*dto.Metric, error) {
	e := p.running()
	if e == nil {
		return nil, errors.New("it does not run")
	}
	p.mu.Lock()
	addr := e.private
	p.mu.Unlock()
	if addr == "" {
		return nil, errors.New("it has no private port")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("get its metrics: %w", err)
	}
	request.Close = true // an idle connection would count as a goroutine of the process
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("get its metrics: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get its metrics: %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	metrics, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read its metrics: %w", err)
	}
	acquired := metrics["pgxpool_acquired_connections"]
	if acquired == nil {
		return nil, errors.New("its metrics do not count the acquired connections")
	}
	return slices.DeleteFunc(acquired.GetMetric(), func(m *dto.Metric) bool { return m.GetGauge().GetValue() == 0 }), nil
}
