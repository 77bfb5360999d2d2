// Package tenant has the tenant of a call in its context, where an option puts it. Loops have none.
package tenant

import (
	"context"

	"github.com/google/uuid"
)

type key struct{}

// With returns the context of a call of a tenant.
func With(ctx context.Context, id string) context.Context { return context.WithValue(ctx, key{}, id) }

// Of returns the tenant of ctx; empty if it has none.
func Of(ctx context.Context) string {
	id, _ := ctx.Value(key{}).(string)
	return id
}

// Key returns an id in place of one that two tenants may both choose. uuid.Nil, and an id without a tenant, stay.
func Key(ctx context.Context, id uuid.UUID) uuid.UUID {
	if of := Of(ctx); of != "" && id != uuid.Nil {
		return uuid.NewSHA1(id, []byte(of))
	}
	return id
}
