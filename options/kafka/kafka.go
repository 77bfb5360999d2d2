// Package kafka publishes to and consumes from a cluster of Apache Kafka, with BROKER=kafka.
package kafka

// name is the name of the option, and its value of BROKER.
const name = "kafka"
