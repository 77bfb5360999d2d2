// Package archtest holds the architecture in place: it is tests only, and they
// read the source of the whole module.
//
// They hold what the compiler cannot: which package may import which, what is
// linked into the server, that the domain is pure, that an aggregate and its event
// are written in one place, and a few things that must not come back because
// they looked right and were not. docs/architecture.md has the reasons.
package archtest
