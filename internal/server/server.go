// Package server has the handlers of the API. Package transport serves them. For each aggregate
// type, one function returns the command service, and one the query service.
//
// A handler converts a request, adds the time and new ids, calls package domain
// and a store, and converts the result. It makes no decisions, and no layer
// stands between it and the store. An interface such as VideoStore has the methods of the
// store that a service calls.
package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// origin is where commands get the time and new ids, which decisions need from outside.
type origin struct {
	now   func() time.Time
	newID func() uuid.UUID
}

// realOrigin is the clock of this process, and UUIDv7.
var realOrigin = origin{now: time.Now, newID: newUUIDv7}

// newUUIDv7 cannot panic: the only error of NewV7 is from crypto/rand, which never returns one.
func newUUIDv7() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// stamp returns the stamp of a command, with the caller of its call.
func (o origin) stamp(ctx context.Context) domain.Stamp {
	return domain.Stamp{EventID: o.newID(), Time: o.now().UTC(), Caller: auth.CallerOf(ctx)}
}

// parseRequestID returns the request_id of a create request (AIP-155), or uuid.Nil if it has
// none.
func parseRequestID(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, nil
	}
	id := aip.ID(text)
	if id == uuid.Nil {
		return id, problem.InvalidField("request_id", "must be a UUID other than zero")
	}
	return id, nil
}

// hash returns a hash that is equal for two messages with the same content. An empty field
// does not change the hash, so a retry still matches after a deployment that adds fields.
func hash(message proto.Message) ([]byte, error) {
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("marshal %s: %w", message.ProtoReflect().Descriptor().Name(), err)
	}
	sum := sha256.Sum256(content)
	return sum[:], nil
}
