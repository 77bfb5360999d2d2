// Package playlist shows what a second aggregate costs. Its test copies this repository,
// adds the files of testdata/new and the lines of edits, and runs the result.
package playlist
