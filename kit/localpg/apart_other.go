//go:build !linux

package localpg

import "errors"

// Apart returns an error: only Linux can divide the CPUs.
func (s *Server) Apart() (undo func() error, err error) {
	return nil, errors.New("CPUs can be divided on Linux only")
}
