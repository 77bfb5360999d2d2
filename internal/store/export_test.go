package store

// LoseAnswer makes a claim that had an answer one whose answer was lost.
func (o *Outbox) LoseAnswer(token int64) { o.lost.add(token) }

// BoundQuarantine makes the quarantine keep fewer bytes.
func (c *Catalog) BoundQuarantine(bytes int64) { c.quarantineBytes = bytes }
