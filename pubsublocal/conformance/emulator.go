package conformance

// Emulator holds where Google's emulator (0.8.20) is known to do otherwise than
// the service.
var Emulator = map[string]string{}
