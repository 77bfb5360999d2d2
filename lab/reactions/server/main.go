// Command server is the service with the reaction and the timer of the test.
package main

import (
	"fmt"
	"os"

	"example.com/videocatalog/lab/internal/tuned"
	"example.com/videocatalog/lab/reactions"
)

func main() {
	fmt.Fprintln(os.Stderr, "server:", tuned.Main(reactions.Program()))
	os.Exit(2)
}
