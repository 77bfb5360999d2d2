package store

// LoseAnswer makes a claim that had an answer one whose answer was lost.
func (s *Videos) LoseAnswer(token int64) { s.lost.add(token) }

// BoundQuarantine makes the quarantine keep fewer bytes.
func (b *Inbox) BoundQuarantine(bytes int64) { b.quarantineBytes = bytes }
