// Package api carries the contract in the form that REST clients read. Its
// source is proto/; make generate writes what is embedded here.
package api

import _ "embed"

// OpenAPI is the description of the REST API, OpenAPI 3.0 as JSON.
//
//go:embed openapi.json
var OpenAPI []byte
