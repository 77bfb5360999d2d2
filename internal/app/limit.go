package app

// LimitConns limits the connections to each side. Call it before a side is opened.
func (p *Process) LimitConns(n uint16) { p.cfg.DatabaseMaxConns = min(p.cfg.DatabaseMaxConns, n) }
