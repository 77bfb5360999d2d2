package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// countKept reads from the metrics of each process which connections it still
// holds when all events are processed. Connections that were never released are
// leaks. Polling uses a connection for a moment, and the metrics of a pool may be
// a second old, so it reads them several times.
func (l *lab) countKept(ctx context.Context) {
	var wait sync.WaitGroup
	for _, p := range l.processes {
		wait.Go(func() {
			var kept []string
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
			for _, what := range kept {
				l.problem(HandsNotEmpty, "%s: %s", p.name, what)
			}
		})
	}
	wait.Wait()
}

// kept returns the metrics of the process that show that it holds something.
func (p *process) kept(ctx context.Context) ([]string, error) {
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
	return notZero(response.Body, "pgxpool_acquired_connections")
}

// notZero returns the lines of a gauge that are not 0, from metrics in the
// text format of Prometheus. A gauge without a line is an error.
func notZero(metrics io.Reader, gauge string) (lines []string, err error) {
	missing := true
	scanner := bufio.NewScanner(metrics)
	for scanner.Scan() {
		name, _, _ := strings.Cut(scanner.Text(), " ")
		name, _, _ = strings.Cut(name, "{") // without its attributes
		if name != gauge {
			continue
		}
		missing = false
		if !strings.HasSuffix(scanner.Text(), " 0") {
			lines = append(lines, scanner.Text())
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	if missing {
		return nil, fmt.Errorf("its metrics have no %s", gauge)
	}
	return lines, nil
}
