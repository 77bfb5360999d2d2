package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.com/videocatalog/internal/admin"
)

// listRows is how many rows are read at a time.
const listRows = 1000

// operation is what the flags and arguments of an operator's command say.
type operation struct {
	admin.Request
	args []string // that are no flags
	json bool
}

// replayer returns what applies a message of a subscription.
func replayer(subscribed []Subscription) admin.Apply {
	return func(ctx context.Context, m admin.Quarantined) error {
		i := slices.IndexFunc(subscribed, func(s Subscription) bool { return s.Consumer == m.Consumer })
		if i < 0 {
			return fmt.Errorf("this build has no subscription of the consumer %q", m.Consumer)
		}
		return subscribed[i].Handlers.Replay(ctx, m.Consumer, m.Attributes, m.Payload)
	}
}

// reportTo prints a result.
func (o *operation) reportTo(p *Printer, verb, items string, r admin.Result, failure error) error {
	if failure != nil && r.Done == 0 {
		return failure
	}
	for _, f := range r.Failed {
		p.Line("%s is unchanged: %s", f.ID, strings.Map(onOneLine, f.Cause))
	}
	if o.DryRun || r.Matched == 0 {
		p.Line("%d %s match; nothing was changed", r.Matched, items)
	} else if r.Done == 0 {
		p.Line("%s 0 of %d %s", verb, r.Matched, items)
	} else {
		p.Line("%s %d of %d %s; action %s", verb, r.Done, r.Matched, items, r.ActionID)
	}
	p.Row(r)
	if r.Failures > 0 {
		failure = errors.Join(failure, ErrPartly)
	}
	return errors.Join(p.End(), failure)
}
