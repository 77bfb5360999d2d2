package telemetry

// How spans and metrics are sent, for tests with a network of their own.
var (
	NewTraceExporter  = newTraceExporter
	NewMetricExporter = newMetricExporter
)
