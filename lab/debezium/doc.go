// Package debezium runs the real Debezium, embedded, with the properties of options/wal, over a real PostgreSQL. What it would
// produce must equal what our own publisher sends: topic, key, headers and bytes.
//
// It needs Java 17 and Maven, which fetches the libraries into the folder target. Without them, its tests pass and say what was not looked at.
package debezium
