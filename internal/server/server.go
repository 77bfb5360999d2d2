// Package server has the handlers of the API. Package port serves them. For each aggregate
// type, one function returns the command service, and one the query service.
//
// A handler converts a request, adds the time and new ids, calls package domain
// and a store, and converts the result. It makes no decisions, and no layer
// stands between it and the store. An interface such as VideoStore has the methods of the
// store that a service calls.
package server

// The sides of the process that the services need.
const (
	SideCommands = "commands"
	SideQueries  = "queries"
)
