// Command size prints the size of this repository, or of the service in a folder, by folder and kind of file.
//
//	go run ./size [DIR]
package main

import (
	"context"
	"io"

	"example.com/servicekit/tool"
	"example.com/videocatalog/lab/internal/size"
)

func main() {
	tool.Main("size", "", func(ctx context.Context, args []string, stdout io.Writer) error {
		tree, err := size.Of(ctx, append(args, "..")[0])
		if err != nil {
			return err
		}
		return tree.Print(stdout)
	})
}
