// Package api carries the contract in the forms that REST clients and Pub/Sub
// read. Its source is proto/; make generate writes the description of REST.
package api

import _ "embed"

// OpenAPI is the description of the REST API, OpenAPI 3.0 as JSON.
//
//go:embed openapi.json
var OpenAPI []byte

// VideoEventSchema is the definition of the Pub/Sub schema of the events of
// videos, which deploy/ registers from the same file.
//
//go:embed proto/video/v1/video_event.proto
var VideoEventSchema string
