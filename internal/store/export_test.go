package store

// LoseAnswer makes a claim that had an answer one whose answer was lost.
func (s *Videos) LoseAnswer(token int64) { s.lost.add(token) }
