// Package failover breaks databases for real: it promotes a standby without its last transactions,
// and moves the service to another cluster by the commands of options/repair/failover.md. It repairs
// the catalog, also while everybody works. It needs psql, pg_dump and pg_basebackup.
package failover
