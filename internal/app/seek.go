package app

// QueryConsumers returns the consumers of the query side, by the IDs of their subscriptions.
func (p *Process) QueryConsumers() map[string]string {
	all := make(map[string]string)
	for _, r := range p.Registered {
		for _, s := range r.Subscriptions {
			all[s.ID] = s.Consumer
		}
	}
	return all
}
