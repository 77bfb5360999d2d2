package app

import (
	"cmp"

	"example.com/videocatalog/internal/auth"
)

// Tenants separates the API calls of tenants.
type Tenants struct {
	Scope auth.Scope
	// URL returns the URL of the database for the calls to a side; empty: the same as for the loops.
	URL func(side string) string
}

// tenants returns the Tenants of the option that has them; without one, calls are as they are.
func (p *Process) tenants() Tenants {
	for _, option := range p.cfg.program.Options {
		if option.Tenants != nil {
			return *option.Tenants
		}
	}
	return Tenants{URL: func(string) string { return "" }}
}

// callsURL returns the URL of the database for the API calls to a side, whose loops have another.
func (p *Process) callsURL(side, loops string) string { return cmp.Or(p.tenants().URL(side), loops) }
