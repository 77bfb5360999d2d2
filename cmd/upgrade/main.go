// Command upgrade brings this service to a later version of its template: go run ./cmd/upgrade --help.
package main

import "example.com/servicekit/upgrade"

func main() { upgrade.Main() }
