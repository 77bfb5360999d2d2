// Command server is the service with the reaction and the timer of the test.
package main

import (
	"log"

	"example.com/videocatalog/lab/internal/tuned"
	"example.com/videocatalog/lab/reactions"
)

func main() { log.Fatal(tuned.Main(reactions.Program())) }
