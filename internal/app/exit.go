package app

import (
	"errors"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/problem"
)

// The exit codes, as `server help` promises them.
const (
	ExitFailed  = 1 // anything else; what the output says is changed
	ExitUsage   = 2 // wrong arguments, or mistakes in the configuration; nothing is changed
	ExitNothing = 3 // what was named does not exist; nothing is changed
	ExitPartly  = 4 // some items could not be changed, the others are
	ExitDiffers = 5 // a comparison has found differences
)

// ErrDiffers means that a comparison has found differences.
var ErrDiffers = errors.New("a projection differs from its owner")

// usage is a mistake in the arguments or the configuration.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// UsageError makes err a mistake in the arguments of a command.
func UsageError(err error) error { return usage{err} }

// ExitCode returns the exit code for an error of [Program.Run]; 0 for none.
func ExitCode(err error) int {
	known, ok := errors.AsType[*problem.Error](err)
	_, wrong := errors.AsType[usage](err)
	switch {
	case err == nil:
		return 0
	case wrong || ok && known.Kind == problem.Invalid:
		return ExitUsage
	case ok && known.Kind == problem.NotFound:
		return ExitNothing
	case errors.Is(err, admin.ErrPartly):
		return ExitPartly
	case errors.Is(err, ErrDiffers):
		return ExitDiffers
	}
	return ExitFailed
}
