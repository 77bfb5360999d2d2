package store

import (
	"errors"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// lostClaims are the tokens of claims whose answer was lost. PostgreSQL may have made such
// a claim, or may make it later. Its lane would then wait for the end of a lease that no
// publisher uses. A token never belongs to another claim, so it may stay here for ever.
// lostClaims is safe for concurrent use.
type lostClaims struct {
	mu     sync.Mutex
	tokens []int64 // guarded by mu; the oldest first
}

// maxLost limits the list that every later claim carries. If a database stops, it loses one
// claim per connection. Each further one takes as long as a claim may take.
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

// isRefused reports whether PostgreSQL says that a statement had no effect. A statement
// that ended with a FATAL error may have had one.
func isRefused(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.SeverityUnlocalized == "ERROR"
}
