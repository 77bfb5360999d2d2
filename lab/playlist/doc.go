// Package playlist shows what a second aggregate costs. Its test copies this repository,
// adds the files of testdata/new, and runs the result.
package playlist
