package db

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// refusalPause is the shortest pause between two attempts to connect as a user that the
	// server has refused. A pooler may lock out an address that tries more often.
	refusalPause = 10 * time.Second
	// replacePause is the shortest pause between two replacements of all connections.
	replacePause = time.Second
)

// refusals remembers that the server refused the user of a URL, for example after a change
// of its password. Until the server accepts the user, there is one attempt per
// refusalPause. All other requests for a connection get the same error immediately.
// refusals is safe for concurrent use.
type refusals struct {
	mu   sync.Mutex
	last *pgconn.PgError // nil if the server accepts the user
	next time.Time       // of the next attempt
}

// check returns the last refusal, or nil if the caller may try to connect now.
func (r *refusals) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return nil
	}
	if now := time.Now(); now.After(r.next) {
		r.next = now.Add(refusalPause)
		return nil
	}
	return r.last
}

func (r *refusals) refused(err *pgconn.PgError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.next = err, time.Now().Add(refusalPause)
}

func (r *refusals) over() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = nil
}

// keeps reports whether a connection may be used again after an error of the server. pgx
// calls it as OnPgError for every error, also while connecting.
//
// If a session is read-only, or has a plan from before a change of the schema, other
// sessions are too. So all connections are replaced, and only one caller sees the error,
// not one per connection.
func (l *losses) keeps(_ *pgconn.PgConn, err *pgconn.PgError) bool {
	switch {
	case strings.HasPrefix(err.Code, "28"): // invalid authorization
		l.refusals.refused(err)
	case isStale(err):
		go l.replace()
		return false
	}
	// pgx itself reads only the translated severity.
	severity := cmp.Or(err.SeverityUnlocalized, err.Severity)
	return severity != "FATAL" && severity != "PANIC"
}

// isStale reports whether an error is about the session and not the statement. The same
// statement would succeed in a new session, now or after a failover.
func isStale(err *pgconn.PgError) bool {
	const readOnly, notSupported = "25006", "0A000"
	// The message "cached plan must not change result type" may be translated.
	return err.Code == readOnly || err.Code == notSupported && err.Routine == "RevalidateCachedQuery"
}

// replace closes all idle connections, and each of the others when it is released. It does
// so at most once per replacePause.
func (l *losses) replace() {
	pools := l.pools.Load()
	if pools == nil || !l.replacing.CompareAndSwap(false, true) {
		return
	}
	for _, pool := range *pools {
		pool.Reset()
	}
	time.AfterFunc(replacePause, func() { l.replacing.Store(false) })
}
