package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"example.com/videocatalog/internal/names"
)

// With --observe, Prometheus scrapes the server's private port with the rules of deploy/observe, and shows the
// dashboard on a console page. If Grafana is installed, it shows the dashboard too.

// usageObserve is the help for --observe.
const usageObserve = `  --observe    start Prometheus too, with the alerts and the dashboard of deploy/observe, and Grafana if there is one
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
	if err := s.write(config, fmt.Sprintf("global: {scrape_interval: 2s, evaluation_interval: 2s}\nrule_files: [%q]\n"+
		"scrape_configs: [{job_name: %s, static_configs: [{targets: [%q]}]}]\n", s.observe("alerts.yaml"), names.Service(), s.private)); err != nil {
		return err
	}
	data := filepath.Join(s.state, "prometheus")
	if s.fresh {
		if err := os.RemoveAll(data); err != nil {
			return fmt.Errorf("delete what Prometheus keeps: %w", err)
		}
	}
	url, pages := "http://"+addr, s.observe("dashboard", "prometheus")
	if err := s.watch(ctx, "Prometheus", url+"/-/ready", nil, s.prometheus, "--config.file="+config, "--storage.tsdb.path="+data,
		"--web.listen-address="+addr, "--web.console.templates="+pages, "--web.console.libraries="+pages); err != nil {
		return err
	}
	s.watchers = append(s.watchers, [2]string{"dashboard", url + "/consoles/service.html"}, [2]string{"alerts", url + "/alerts"},
		[2]string{"metrics", "http://" + s.private + "/metrics"})
	return s.startGrafana(ctx, url)
}

// startGrafana starts Grafana if it is installed. Everybody who reaches its port can view it without a login.
func (s *stack) startGrafana(ctx context.Context, prometheus string) error {
	program, home, args := findGrafana()
	if program == "" {
		return nil
	}
	s.screen.begin("starting Grafana")
	addr, err := freeAddr(ctx)
	if err != nil {
		return err
	}
	provisioning := filepath.Join(s.state, "grafana", "provisioning")
	if err := errors.Join(
		s.write(filepath.Join(provisioning, "datasources", "prometheus.yaml"), fmt.Sprintf(
			"apiVersion: 1\ndatasources: [{name: Prometheus, type: prometheus, url: %q, isDefault: true}]\n", prometheus)),
		s.write(filepath.Join(provisioning, "dashboards", "service.yaml"), fmt.Sprintf(
			"apiVersion: 1\nproviders: [{name: service, type: file, options: {path: %q}}]\n", s.observe("dashboard", "grafana"))),
	); err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(addr)
	environ := []string{
		"GF_PATHS_PROVISIONING=" + provisioning, "GF_PATHS_DATA=" + filepath.Join(s.state, "grafana", "data"),
		"GF_PATHS_LOGS=" + filepath.Join(s.state, "grafana", "log"), "GF_PATHS_PLUGINS=" + filepath.Join(s.state, "grafana", "plugins"),
		"GF_SERVER_HTTP_ADDR=127.0.0.1", "GF_SERVER_HTTP_PORT=" + port,
		"GF_AUTH_ANONYMOUS_ENABLED=true", "GF_ANALYTICS_REPORTING_ENABLED=false", "GF_ANALYTICS_CHECK_FOR_UPDATES=false",
	}
	if err := s.watch(ctx, "Grafana", "http://"+addr+"/api/health", environ, program, append(args, "--homepath", home)...); err != nil {
		return err
	}
	s.watchers = append(s.watchers, [2]string{"Grafana", "http://" + addr + "/d/" + names.Service()})
	return nil
}

// findGrafana returns the program, its home folder and its first arguments, or nothing if Grafana is not installed.
func findGrafana() (program, home string, args []string) {
	for _, command := range [][]string{{"grafana", "server"}, {"grafana-server"}} {
		found, err := exec.LookPath(command[0])
		if err != nil {
			continue
		}
		bin := filepath.Dir(found)
		if target, err := filepath.EvalSymlinks(found); err == nil {
			bin = filepath.Dir(target)
		}
		// The layouts of the archive, of Homebrew, and of the packages of Linux distributions.
		for _, dir := range []string{filepath.Dir(bin), filepath.Join(filepath.Dir(bin), "share", "grafana"), "/usr/share/grafana"} {
			if _, err := os.Stat(filepath.Join(dir, "conf", "defaults.ini")); err == nil {
				return found, dir, command[1:]
			}
		}
	}
	return "", "", nil
}

// observe returns the path of a file in deploy/observe.
func (s *stack) observe(path ...string) string {
	return filepath.Join(append([]string{s.root, "deploy", "observe"}, path...)...)
}

// write writes a file in the state folder.
func (s *stack) write(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // like the state folder
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644) //nolint:gosec // no secrets
}
