// Package service tests the whole service as its clients, its operators and its monitoring see it: attacks on its port, its memory
// under load, the alerts that fire when something is broken on purpose, and the smoke test of a release.
//
// The alerts need Prometheus. If it is not installed, their tests pass and log that nothing was looked at.
package service
