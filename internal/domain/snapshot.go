package domain

import "github.com/google/uuid"

// Snapshot is the type of an event that has the state and the version of the last event, and
// says nothing about what happened. It is published for consumers that lack events, and is not
// recorded in the outbox. A consumer that has applied its version ignores it.
const Snapshot EventType = "Snapshot"

// snapshotVersion is the version of the UUIDs of snapshots. Other events have UUIDv7.
const snapshotVersion = 8

// SnapshotID returns the id of a snapshot from a digest of its aggregate and version. The id
// is a UUIDv8 (https://www.rfc-editor.org/rfc/rfc9562#name-uuid-version-8) that begins with 48
// zero bits, where a UUIDv7 has its time. So it is below the id of every other event: of two
// events with one version the greater id wins.
func SnapshotID(digest [10]byte) (id uuid.UUID) {
	copy(id[6:], digest[:])
	id[6] = id[6]&0x0f | snapshotVersion<<4
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id
}

// IsSnapshot reports whether an event is a snapshot, by its id.
func IsSnapshot(eventID uuid.UUID) bool {
	return eventID.Version() == snapshotVersion && [6]byte(eventID[:6]) == [6]byte{}
}
