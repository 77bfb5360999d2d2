// Command server is the service with the reaction and the timer of the test.
package main

import (
	"example.com/videocatalog/lab/internal/tuned"
	"example.com/videocatalog/lab/reactions"
)

func main() { tuned.Main(reactions.Program()) }
