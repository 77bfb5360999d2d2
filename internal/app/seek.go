package app

// QueryConsumers returns the consumers of the query side, by the IDs of their subscriptions.
func (p *Process) QueryConsumers() map[string]string {
	all := make(map[string]string)
	for _, s := range p.cfg.program.subscriptions(roleProjector) {
		all[s.ID] = s.Consumer
	}
	return all
}
