package main

import "context"

// openConsolePort chooses the address of the console.
func (s *stack) openConsolePort(ctx context.Context) (err error) {
	s.console, err = freeAddr(ctx)
	return err
}

func (s *stack) consoleURL() string { return "http://" + s.console + "/" }

// startConsole starts the console beside the server.
func (s *stack) startConsole(ctx context.Context) error {
	s.screen.begin("starting the console")
	return s.watch(ctx, "console", s.consoleURL()+"static/icon.svg", s.environment(), s.binary(),
		"console", "--addr", s.console, "--metrics", "http://"+s.private+"/metrics")
}
