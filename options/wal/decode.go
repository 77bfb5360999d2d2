package wal

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/pg"
)

// decoder reads the events of a relation of the log. It is not safe for concurrent use.
type decoder struct {
	types    *pgtype.Map
	relation *pglogrepl.RelationMessage
	into     []any // where each column goes; nil: nowhere

	event         envelope.Message
	traceparent   *string
	cause, origin *[16]byte
}

// newDecoder finds the columns of an event by their names. The relation may have others.
func newDecoder(relation *pglogrepl.RelationMessage) (d *decoder, err error) {
	d = &decoder{types: pgtype.NewMap(), relation: relation, into: make([]any, len(relation.Columns))}
	m := &d.event
	columns := map[string]any{
		"id": (*[16]byte)(&m.ID), "aggregate_type": &m.AggregateType, "aggregate_id": &m.AggregateID, "event_type": &m.Type, "version": &m.Version,
		"schema_version": &m.SchemaVersion, "payload": &m.Payload, "occurred_at": &m.OccurredAt, "traceparent": &d.traceparent,
		"causation_id": &d.cause, "correlation_id": &d.origin,
	}
	for i, column := range relation.Columns {
		d.into[i] = columns[column.Name]
		delete(columns, column.Name)
	}
	for name := range columns {
		err = errors.Join(err, fmt.Errorf("the publication must have the column %s of %s.%s", name, relation.Namespace, relation.RelationName))
	}
	return d, err
}

// decode returns the event of an inserted row, whose columns are in binary format.
func (d *decoder) decode(row *pglogrepl.TupleData) (envelope.Message, error) {
	d.event = envelope.Message{}
	for i, column := range row.Columns {
		data := column.Data
		if column.DataType == pglogrepl.TupleDataTypeNull {
			data = nil
		}
		if d.into[i] == nil {
			continue
		}
		if err := d.types.Scan(d.relation.Columns[i].DataType, pgtype.BinaryFormatCode, data, d.into[i]); err != nil {
			return envelope.Message{}, fmt.Errorf("read the column %s of the log: %w", d.relation.Columns[i].Name, err)
		}
	}
	m := d.event
	m.OccurredAt, m.Traceparent = m.OccurredAt.In(time.UTC), pg.ValueOf(d.traceparent)
	m.Causation = envelope.Causation{CausationID: uuid.UUID(pg.ValueOf(d.cause)), CorrelationID: uuid.UUID(pg.ValueOf(d.origin))}
	return m, nil
}
