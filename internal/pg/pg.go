// Package pg is the machinery of the service on PostgreSQL: transactions, the [Outbox] of the command
// side, the [Inbox] and the quarantine of the query side, the audit of both, and what all aggregate
// types share. Its SQL is in the folder queries. sqlc compiles it into a package that only this
// package and those below it can import. It imports nothing of the owner: internal/store, which has
// the aggregates and their projections, builds on it.
//
// # Statements wait
//
// [InTx] gives a [Tx]. A statement without a result waits for the next statement with one, or for
// the COMMIT: see [Tx.Queue]. Outside a transaction, queries run on [Autocommit].
//
// # What it promises
//
// A method is one transaction, unless its comment says otherwise. If it returns an error, nothing
// has changed, unless the connection was lost during the commit. Then the result is unknown, and the
// caller may safely repeat the command with the same request id or etag. Errors that a
// caller can act on are a *problem.Error. An unavailable database is one of them, with the
// kind Unavailable. An open transaction waits for nothing on the network except the database. All
// methods are safe for concurrent use.
//
// This package makes no decisions: the pure functions of internal/outbox and internal/consumer say
// which events may follow others, and what an event does to a row.
package pg
