// Command size prints the size of this repository, or of the service in a folder, by folder and kind of file.
//
//	go run ./size [DIR]
package main

import (
	"context"
	"fmt"
	"os"

	"example.com/videocatalog/lab/internal/size"
)

func main() {
	dir := ".."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	tree, err := size.Of(context.Background(), dir)
	if err == nil {
		err = tree.Print(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}
