package app

import "example.com/videocatalog/internal/auth"

// NewChecker makes the check of callers. methods are the names of all methods of the API, as package.Service/Method.
type NewChecker func(p *Process, methods []string) (auth.Checker, error)

// addChecker has a gate check callers as the option does that AUTH selects, if it selects one.
func (p *Process) addChecker(gate *auth.Gate, methods []string) error {
	gate.Scope = p.tenants().Scope // only tenancy
	for _, option := range p.cfg.program.Options {
		if option.NewChecker != nil && option.selector() == p.cfg.Auth {
			var err error
			if gate.Checker, err = option.NewChecker(p, methods); err != nil {
				return UsageError(err)
			}
		}
	}
	return nil
}
