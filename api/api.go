// Package api carries the contract in the forms that REST clients and Pub/Sub
// read. Its source is proto/; make generate writes the description of REST.
package api

import "embed"

// OpenAPI is the description of the REST API, OpenAPI 3.0 as JSON.
//
//go:embed openapi.json
var OpenAPI []byte

// Schemas has the files that are schemas of Pub/Sub, by their path in this
// folder.
//
//go:embed proto/*/v1/*_event.proto
var Schemas embed.FS
