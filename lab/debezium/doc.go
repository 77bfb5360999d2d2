// Package debezium runs the real Debezium, embedded, with the properties of options/wal, over a real PostgreSQL. Its
// records must equal the messages of our own publisher: topic, key, headers and bytes.
//
// It needs Java 17 and Maven, which fetches the libraries into the folder target. Without them, its tests pass and say what was not looked at.
package debezium
