// Package store has the aggregates and the projections of the service, a transaction per method. The
// SQL is in db/queries. sqlc compiles it into a package that only this package and those below it can
// import. internal/pg has the transactions, the outbox and the inbox.
//
// The command side has the aggregates, such as [Videos], and owns the schema video_catalog. The query
// side has the projections of their events, and owns the schema video_catalog_read. Neither side
// uses the tables of the other, so each can have its own database user, or its own
// database.
//
// # No row without its event
//
// A new command cannot forget the outbox. A command is a decision. It does not
// return a new state: it returns an event, which carries the state. Only the function
// recordVideo writes a video. It takes the event, writes the row from it, and appends it to the
// outbox, in one transaction. internal/archtest fails if a second
// function calls a query that writes a video, or if recordVideo does not call
// pg.AppendEvent.
//
// # What it promises
//
// A method promises what internal/pg promises. This package makes no decisions: internal/domain
// decides what a command does, and [pg.Project] what an event does to a row.
package store
