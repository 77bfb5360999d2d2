package consumer

// Source is where a projector gets its messages.
type Source = source

// NewFrom makes a projector with a source of its own.
var NewFrom = newProjector
