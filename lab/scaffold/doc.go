// Package scaffold makes services with cmd/new and runs them. Its tests need no template:
// they make one from this working tree.
package scaffold
