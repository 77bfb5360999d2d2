package event

// Aggregate identifies an aggregate.
type Aggregate struct{ Type, ID string }

// Aggregate returns the aggregate of a message.
func (m Message) Aggregate() Aggregate { return Aggregate{m.AggregateType, m.AggregateID} }
