package envelope

import "github.com/google/uuid"

// Cause says which event led to another one, through a reaction or a timer.
type Cause struct {
	// CausationID is the id of the event that directly led to this one.
	CausationID uuid.UUID
	// CorrelationID is the id of the first event of the chain. All events of a chain have
	// it, except the first.
	CorrelationID uuid.UUID
}

// CauseOfNext returns the cause of an event that m leads to.
func (m Message) CauseOfNext() Cause {
	cause := Cause{CausationID: m.ID, CorrelationID: m.Cause.CorrelationID}
	if cause.CorrelationID == uuid.Nil {
		cause.CorrelationID = m.ID
	}
	return cause
}

// causeOf reads a cause from the attributes of a message. A malformed id counts as absent,
// because no event must be lost for it.
func causeOf(attributes map[string]string) Cause {
	var cause Cause
	var err error
	if cause.CausationID, err = uuid.Parse(attributes[AttrCausationID]); err != nil {
		return Cause{}
	}
	if cause.CorrelationID, err = uuid.Parse(attributes[AttrCorrelationID]); err != nil {
		return Cause{}
	}
	return cause
}
