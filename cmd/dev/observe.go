package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"example.com/videocatalog/internal/names"
)

// With --observe, Prometheus scrapes the server's private port with the rules of deploy/observe, and shows the alerts.

// usageObserve is the help for --observe.
const usageObserve = `  --observe    start Prometheus too, with the alerts of deploy/observe
`

// findPrometheus returns the path of Prometheus.
func findPrometheus() (string, error) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		return "", errors.New("--observe needs prometheus on PATH: " +
			"apt-get install prometheus, or brew install prometheus, or take it from https://prometheus.io/download")
	}
	return program, nil
}

func (s *stack) startPrometheus(ctx context.Context) error {
	if s.prometheus == "" {
		return nil
	}
	s.screen.begin("starting Prometheus")
	addr, err := freeAddr(ctx)
	if err != nil {
		return err
	}
	config := filepath.Join(s.state, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 2s, evaluation_interval: 2s}\nrule_files: [%q]\n"+
		"scrape_configs: [{job_name: %s, static_configs: [{targets: [%q]}]}]\n",
		filepath.Join(s.root, "deploy", "observe", "alerts.yaml"), names.Service, s.private)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil { //nolint:gosec // no secrets
		return err
	}
	data := filepath.Join(s.state, "prometheus")
	if s.fresh {
		if err := os.RemoveAll(data); err != nil {
			return fmt.Errorf("delete what Prometheus keeps: %w", err)
		}
	}
	url := "http://" + addr
	if err := s.watch(ctx, "Prometheus", url+"/-/ready", nil, s.prometheus, "--config.file="+config, "--storage.tsdb.path="+data,
		"--web.listen-address="+addr); err != nil {
		return err
	}
	s.watchers = append(s.watchers, [2]string{"alerts", url + "/alerts"}, [2]string{"queries", url + "/graph"},
		[2]string{"metrics", "http://" + s.private + "/metrics"})
	return nil
}
