// Command entity makes the files of an aggregate type: go run ./cmd/entity --help.
package main

import "example.com/servicekit/entity"

func main() { entity.Main() }
