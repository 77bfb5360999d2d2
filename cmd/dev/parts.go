package main

import "example.com/servicekit/dev"

// parts returns the programs beside the server, each in the file of its name. To remove one, delete its file and its line here.
func parts() []dev.Part {
	return []dev.Part{
		console(),
		observe(),
	}
}
