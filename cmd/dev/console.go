package main

import (
	"context"

	"example.com/servicekit/dev"
)

// console serves the console.
func console() dev.Part {
	return dev.Part{Start: func(ctx context.Context, s *dev.Stack) error {
		addr, err := dev.FreeAddr(ctx)
		if err != nil {
			return err
		}
		s.Show("console", "http://"+addr+"/")
		return s.Run(ctx, dev.Program{
			Name: "console", Path: s.Server, Args: []string{"console", "--addr", addr},
			Env: s.Environment(), Ready: "http://" + addr + "/static/icon.svg",
		})
	}}
}
