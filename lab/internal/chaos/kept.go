package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// countKept asks each process by its metrics what it has in hand while all is
// quiet. A connection that was not given back to its pool, and a message that was
// neither acknowledged nor given back, are leaks. Who polls has a connection for a
// moment, and what is told of a pool may be a second old, so it is asked again.
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

// kept returns what the process has in hand, as its metrics say it.
func (p *process) kept(ctx context.Context) ([]string, error) {
	gauges := []string{"pgxpool_acquired_connections"}
	if p.role == roleProjector {
		gauges = append(gauges, "consumer_messages")
	}
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
		return nil, fmt.Errorf("ask for its metrics: %w", err)
	}
	request.Close = true // its idle connection would count among the goroutines
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for its metrics: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask for its metrics: %s", response.Status)
	}
	return notZero(response.Body, gauges)
}

// notZero returns the lines of these gauges, in the text format of Prometheus,
// that are not 0. It is an error that there is none of one.
func notZero(metrics io.Reader, gauges []string) (lines []string, err error) {
	missing := slices.Clone(gauges)
	scanner := bufio.NewScanner(metrics)
	for scanner.Scan() {
		name, _, _ := strings.Cut(scanner.Text(), " ")
		name, _, _ = strings.Cut(name, "{") // its attributes, if it has some
		if !slices.Contains(gauges, name) {
			continue
		}
		missing = slices.DeleteFunc(missing, func(gauge string) bool { return gauge == name })
		if !strings.HasSuffix(scanner.Text(), " 0") {
			lines = append(lines, scanner.Text())
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("its metrics have no %s", strings.Join(missing, ", "))
	}
	return lines, nil
}
