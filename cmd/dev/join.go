package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// place is the address of a running stack, for another cmd/dev.
type place struct {
	Addr     string `json:"addr"`     // of the server
	Database string `json:"database"` // URL
}

func (s *stack) placeFile() string { return filepath.Join(s.state, "place.json") }

// announce writes the address of the stack to a file, and removes the file at
// the stop. After a crash the next stack with the folder removes it.
func (s *stack) announce(context.Context) error {
	content, err := json.Marshal(place{Addr: s.addr, Database: s.database})
	if err == nil {
		s.atStop(func() error {
			_ = os.Remove(s.placeFile()) // on error the next stack removes it
			return nil
		})
		err = os.WriteFile(s.placeFile(), content, 0o600) // the URL may have a password
	}
	if err != nil {
		return fmt.Errorf("%w: choose another folder with --state DIR", err)
	}
	return nil
}

// joins reports whether a running stack can do all that the options require.
func (s *stack) joins() bool {
	// only observe: begin
	if s.prometheus != "" {
		return false
	}
	// only observe: end
	return s.file != "" && !s.fresh
}

// join connects to the stack that runs with the state folder.
func (s *stack) join(ctx context.Context) error {
	var there place
	content, err := os.ReadFile(s.placeFile())
	if err == nil {
		err = json.Unmarshal(content, &there)
	}
	if err != nil {
		return fmt.Errorf("the cmd/dev that runs with the folder %s is starting or stopping (%w): try again when it runs", s.state, err)
	}
	s.addr, s.database = there.Addr, there.Database
	if err := s.connect(ctx); err != nil {
		return err
	}
	s.screen.print("Loading into the cmd/dev that runs with the folder " + s.short(s.state) + ".")
	return nil
}
