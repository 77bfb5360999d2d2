package app

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"reflect"

	"example.com/videocatalog/internal/auth"
)

// Part is an option of a service: a folder of options, whose line in cmd/server/parts.go adds
// it. All fields but Name may be zero.
type Part struct {
	// Name is the name of the folder.
	Name string
	// Settings points to a struct whose fields are settings, with the tags env, envDefault and
	// help. It is filled before everything that follows is called.
	Settings any
	// Check returns the mistakes in Settings. Each begins with the name of a setting and does
	// not show its value.
	Check func(Process) []error
	// NewChecker makes the check of callers, which AUTH selects by the name of the part.
	NewChecker func(*Service) (auth.Checker, error)
	// Start adds to a process that serves, before its port is opened.
	Start func(context.Context, *Service) error
	// Commands are more commands of the program, by their first word. Help has their lines for
	// the command help.
	Commands map[string]Command
	Help     string
}

// Command runs until it or ctx ends. It gets the arguments behind its name. For a command a
// Service has no methods to call.
type Command func(ctx context.Context, s *Service, args []string, stdout io.Writer) error

// Process is what the settings of a part may depend on.
type Process struct {
	Command string          // serve, migrate, ...
	Auth    string          // the value of AUTH
	Methods func() []string // names of all methods of the API, as package.Service/Method
}

// Service is what a part sees of the process, and adds to it.
type Service struct {
	Process
	Log *slog.Logger

	instance *instance
}

// Go runs a loop until the last request of the process is answered. An error ends the process.
func (s *Service) Go(loop func(context.Context) error) {
	s.instance.loops = append(s.instance.loops, loop)
}

// Wrap puts a middleware around all requests of the port, before they are checked. The last one
// that is added gets a request first.
func (s *Service) Wrap(middleware func(http.Handler) http.Handler) {
	s.instance.wrap = append(s.instance.wrap, middleware)
}

// process returns what the parts may know of a process with this config.
func (c config) process(command string) Process {
	return Process{Command: command, Auth: c.Auth, Methods: c.program.Methods}
}

// startParts starts the parts of a process that serves.
func (i *instance) startParts(ctx context.Context) error {
	for _, part := range i.cfg.program.Parts {
		if part.Start == nil {
			continue
		}
		if err := part.Start(ctx, i.service()); err != nil {
			return err
		}
	}
	return nil
}

func (i *instance) service() *Service {
	return &Service{Process: i.cfg.process("serve"), Log: i.log, instance: i}
}

// wrapped returns a handler behind the middlewares of the parts.
func (i *instance) wrapped(handler http.Handler) http.Handler {
	for _, middleware := range i.wrap {
		handler = middleware(handler)
	}
	return handler
}

// command returns a command of the parts, or nil.
func (p Program) command(name string) Command {
	for _, part := range p.Parts {
		if run := part.Commands[name]; run != nil {
			return run
		}
	}
	return nil
}

// checker returns the part whose check of callers a value of AUTH selects, or nil.
func (p Program) checker(auth string) *Part {
	for _, part := range p.Parts {
		if part.NewChecker != nil && part.Name == auth {
			return &part
		}
	}
	return nil
}

// Setting describes a setting.
type Setting struct{ Name, Default, Help string }

// SettingsOf returns the settings of a struct, by the tags of its fields. of points to it, or is
// nil.
func SettingsOf(of any) []Setting {
	if of == nil {
		return nil
	}
	var all []Setting
	for field := range reflect.TypeOf(of).Elem().Fields() {
		if field.IsExported() {
			all = append(all, Setting{field.Tag.Get("env"), field.Tag.Get("envDefault"), field.Tag.Get("help")})
		}
	}
	return all
}

// settings returns all settings of the program: its own in the order of config, then those of
// its parts.
func (p Program) settings() []Setting {
	all := SettingsOf(new(config))
	for _, part := range p.Parts {
		all = append(all, SettingsOf(part.Settings)...)
	}
	return all
}
