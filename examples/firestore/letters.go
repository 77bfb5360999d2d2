package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// Letter is the aggregate: its document in the collection letters.
type Letter struct {
	ID      string   `firestore:"-" json:"id"`
	Version int64    `firestore:"version" json:"version"`
	Lines   []string `firestore:"lines" json:"lines"`
	Sent    bool     `firestore:"sent" json:"sent"`
}

// Letters is the collection of letters. It is safe for concurrent use.
type Letters struct {
	client *firestore.Client
	wake   func()
}

// NewLetters makes the collection. wake is called after each commit: Publisher.Wake of this process, if it has one.
func NewLetters(client *firestore.Client, wake func()) *Letters { return &Letters{client, wake} }

// Write adds a line to a letter. The first line creates it.
func (l *Letters) Write(ctx context.Context, id, line string) error {
	return l.change(ctx, id, "LetterWritten", func(letter *Letter) error {
		if letter.Sent {
			return fmt.Errorf("letter %s is sent", id)
		}
		letter.Lines = append(letter.Lines, line)
		return nil
	})
}

// Send sends a letter.
func (l *Letters) Send(ctx context.Context, id string) error {
	return l.change(ctx, id, "LetterSent", func(letter *Letter) error {
		if letter.Version == 0 {
			return fmt.Errorf("there is no letter %s", id)
		}
		letter.Sent = true
		return nil
	})
}

// change is the unit of work. It reads a letter, lets decide change it, and writes the letter and its event in one
// transaction, or nothing if decide returns an error. The client calls decide again if another transaction commits
// first, so decide changes nothing but the letter. A crash before the commit leaves nothing. After it, the event
// waits for a relay.
func (l *Letters) change(ctx context.Context, id, eventType string, decide func(*Letter) error) error {
	err := l.client.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		document := l.client.Collection("letters").Doc(id)
		letter := Letter{ID: id}
		snapshot, err := tx.Get(document)
		if err == nil {
			err = snapshot.DataTo(&letter)
		} else if status.Code(err) == codes.NotFound {
			err = nil
		}
		if err != nil {
			return err
		}
		if err := decide(&letter); err != nil {
			return err
		}
		letter.Version++
		payload, err := json.Marshal(letter)
		if err != nil {
			return err
		}
		e := eventOf(envelope.Message{
			ID: uuid.Must(uuid.NewV7()), AggregateType: "letter", AggregateID: id, Type: eventType, Version: letter.Version, SchemaVersion: 1,
			Payload: payload, OccurredAt: time.Now(), Traceparent: envelope.Traceparent(ctx),
		})
		if err := tx.Set(document, letter); err != nil {
			return err
		}
		// Create fails if this version already has an event: an event is never replaced.
		return tx.Create(l.client.Collection(pendingEvents).Doc(e.name()), e)
	})
	if err == nil {
		l.wake()
	}
	return err
}

// event is the document of an event. It has all fields from the beginning, because a query of Firestore never finds a
// document that lacks a field of its filter or order.
type event struct {
	Lane int16 `firestore:"lane"`
	// Committed is the time of the commit, by the clock of Firestore. Of two events of a letter the later one has the
	// later time, because their transactions wrote the same document.
	Committed time.Time `firestore:"committed,serverTimestamp"`

	ID            string    `firestore:"event_id"`
	AggregateType string    `firestore:"aggregate_type"`
	AggregateID   string    `firestore:"aggregate_id"`
	Type          string    `firestore:"event_type"`
	Version       int64     `firestore:"version"`
	SchemaVersion int32     `firestore:"schema_version"`
	Payload       []byte    `firestore:"payload"`
	OccurredAt    time.Time `firestore:"occurred_at"`
	Traceparent   string    `firestore:"traceparent"`
}

func eventOf(m envelope.Message) event {
	return event{
		Lane: outbox.Lane(m.Aggregate()), ID: m.ID.String(), AggregateType: m.AggregateType, AggregateID: m.AggregateID, Type: m.Type, Version: m.Version,
		SchemaVersion: m.SchemaVersion, Payload: m.Payload, OccurredAt: m.OccurredAt, Traceparent: m.Traceparent,
	}
}

// name is the id of the document. Its order is the order of versions, for events of one commit time.
func (e event) name() string { return fmt.Sprintf("%s_%013d", e.AggregateID, e.Version) }

func (e event) aggregate() envelope.Aggregate {
	return envelope.Aggregate{Type: e.AggregateType, ID: e.AggregateID}
}

func (e event) message() (envelope.Message, error) {
	id, err := uuid.Parse(e.ID)
	return envelope.Message{
		ID: id, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, Version: e.Version, SchemaVersion: e.SchemaVersion,
		Payload: e.Payload, OccurredAt: e.OccurredAt, Traceparent: e.Traceparent,
	}, err
}
