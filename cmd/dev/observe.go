package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"example.com/servicekit/dev"
	"example.com/videocatalog/internal/names"
)

// observe has Prometheus scrape the server's private port, with the rules of deploy/observe, and show the alerts.
func observe() dev.Part {
	return dev.Part{
		Flag: "observe", Help: "start Prometheus too, with the alerts of deploy/observe",
		Check: func() error {
			if _, err := exec.LookPath("prometheus"); err != nil {
				return errors.New("--observe needs prometheus on PATH: " +
					"apt-get install prometheus, or brew install prometheus, or take it from https://prometheus.io/download")
			}
			return nil
		},
		Start: startPrometheus,
	}
}

func startPrometheus(ctx context.Context, s *dev.Stack) error {
	addr, err := dev.FreeAddr(ctx)
	if err != nil {
		return err
	}
	config := filepath.Join(s.State, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 2s, evaluation_interval: 2s}\nrule_files: [%q]\n"+
		"scrape_configs: [{job_name: %s, static_configs: [{targets: [%q]}]}]\n",
		filepath.Join(s.Root, "deploy", "observe", "alerts.yaml"), names.Service, s.Private)
	data := filepath.Join(s.State, "prometheus")
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o644), os.RemoveAll(data)); err != nil { //nolint:gosec // no secrets
		return err
	}
	url := "http://" + addr
	for _, row := range [][2]string{{"alerts", url + "/alerts"}, {"queries", url + "/graph"}, {"metrics", "http://" + s.Private + "/metrics"}} {
		s.Show(row[0], row[1])
	}
	return s.Run(ctx, dev.Program{
		Name: "Prometheus", Path: "prometheus", Ready: url + "/-/ready",
		Args: []string{"--config.file=" + config, "--storage.tsdb.path=" + data, "--web.listen-address=" + addr},
	})
}
