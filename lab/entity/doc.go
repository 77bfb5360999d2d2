// Package entity proves cmd/entity. Its test copies this repository, makes aggregate types
// of different shapes, one of which reacts to another, runs all checks on them, calls the
// service that has them, lets one grow, and breaks each layer to see its generated test fail.
//
// Matrix has the entities whose names collide with others, in services of lab/scaffold.
//
// Another test renders the description of the example, testdata/video.txt, and compares the
// result with the files of videos. Differences are in testdata/differences.txt, with a reason.
package entity
