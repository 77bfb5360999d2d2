package store

import (
	"errors"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// lostClaims are the tokens of claims whose answer was lost. PostgreSQL may
// have made such a claim, or make it once it goes on, and then its lane would
// wait for the end of a lease that nobody uses. A token never means another
// claim, so it may stay here for ever. Safe for concurrent use.
type lostClaims struct {
	mu     sync.Mutex
	tokens []int64 // guarded by mu; the oldest first
}

// maxLost bounds what every later claim carries. A database that stops loses
// one claim per connection; each further one takes as long as a claim may.
const maxLost = 64

func (l *lostClaims) add(token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tokens = append(l.tokens[max(0, len(l.tokens)-maxLost+1):], token)
}

// list returns the tokens; empty, never nil.
func (l *lostClaims) list() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int64{}, l.tokens...)
}

// isRefused reports whether PostgreSQL says that a statement has had no effect.
// After a FATAL error it may have had one.
func isRefused(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.SeverityUnlocalized == "ERROR"
}
