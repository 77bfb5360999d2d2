// Package entity proves cmd/entity. Its test copies this repository, makes aggregate types
// of different shapes, one of which reacts to another, runs all checks on them, calls the
// service that has them, lets one grow, and breaks each layer to see its generated test fail.
//
// Another test compares the reference, which are the files of videos, with
// testdata/reference.txt. It fails when the reference changes, so that the templates follow.
package entity
