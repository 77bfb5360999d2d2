// Package service tests the whole service as its clients, its operators and its monitoring see it: attacks on its port, its memory
// under load, the alerts that fire when something is broken on purpose, and the smoke test of a release. It also breaks databases: it
// promotes a standby without its last transactions, moves the service to another cluster by the commands of options/repair/failover.md,
// and repairs the catalog, also while everybody works. That needs psql, pg_dump and pg_basebackup.
//
// The alerts need Prometheus. If it is not installed, their tests pass and log that nothing was looked at.
package service
