//go:build !linux

package localpg

import "errors"

// Apart divides the CPUs on Linux only.
func (s *Server) Apart() (undo func() error, err error) {
	return nil, errors.New("CPUs can be divided on Linux only")
}
