package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"example.com/videocatalog/internal/auth"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
)

// origin is where commands get the time and new ids, which decisions need from outside.
type origin struct {
	now   func() time.Time
	newID func() (uuid.UUID, error)
}

// realOrigin is the clock of this process, and UUIDv7.
var realOrigin = origin{now: time.Now, newID: uuid.NewV7}

// stamp returns the stamp of a command, with the caller of its call.
func (o origin) stamp(ctx context.Context) (domain.Stamp, error) {
	id, err := o.newID()
	if err != nil {
		return domain.Stamp{}, fmt.Errorf("make event id: %w", err)
	}
	return domain.Stamp{EventID: id, Time: o.now().UTC(), Caller: auth.CallerOf(ctx)}, nil
}

// parseRequestID returns the request_id of a create request (AIP-155), or uuid.Nil if it has
// none.
func parseRequestID(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil || id == uuid.Nil {
		return uuid.Nil, problem.InvalidField("request_id", "must be a UUID other than zero")
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
