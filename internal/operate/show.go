package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/envelope"
)

const (
	listRows   = 1000    // how many rows are read at a time
	countRows  = 100_000 // how many rows are counted at most, which the status then shows
	mostCauses = 5       // how many causes of one side the status shows
)

func listBlocked(ctx context.Context, j *job) error {
	for after, more := (envelope.Aggregate{}), true; more; {
		page, err := j.outbox.ListBlocked(ctx, j.request.Filter, after, listRows)
		if err != nil {
			return err
		}
		for _, b := range page {
			j.showBlocked(b)
			after = b.Aggregate
		}
		more = len(page) == listRows
	}
	return nil
}

// listQuarantined lists messages. If an aggregate was named, it lists those about it.
func listQuarantined(ctx context.Context, j *job) error {
	filter, aggregate := j.request.Filter, ""
	if filter.Type != "" {
		filter.ID, aggregate = "", filter.ID
	}
	for after, more := int64(0), true; more; {
		page, err := j.inbox.ListQuarantine(ctx, filter, after, listRows)
		if err != nil {
			return err
		}
		for _, m := range page {
			if aggregate == "" || m.Attributes[envelope.AttrAggregateID] == aggregate {
				j.showQuarantined(m)
			}
			after = m.ID
		}
		more = len(page) == listRows
	}
	return nil
}

func (j *job) showBlocked(b admin.Blocked) {
	item, state := b.Type+"/"+b.ID, "parked"
	if b.ParkedAt.IsZero() {
		state = "blocked until " + timeText(b.NextRetry)
	}
	j.show(struct {
		Item string `json:"item"`
		admin.Blocked
	}{item, b}, item, timeText(b.EventTime), state, strconv.Itoa(b.Attempts), b.EventID.String(), shortened(b.LastError))
}

func (j *job) showQuarantined(m admin.Quarantined) {
	item, state := strconv.FormatInt(m.ID, 10), "quarantined by "+m.Consumer
	if m.PayloadSHA256 != "" {
		state += ", payload not kept"
	}
	j.show(struct {
		Item string `json:"item"`
		admin.Quarantined
	}{item, m}, item, timeText(m.ReceivedAt), state, "-", m.Attributes[envelope.AttrEventID], shortened(m.Reason))
}

// show prints an item as a row of the list, or, if it was named, all about it.
func (j *job) show(item any, cells ...string) {
	if j.found++; j.found == 1 && len(j.Args) == 0 {
		j.out.Line("ITEM\tSINCE\tSTATE\tATTEMPTS\tEVENT_ID\tERROR")
	}
	if len(j.Args) == 0 || j.JSON {
		j.out.Row(item, cells...)
		return
	}
	text, err := json.MarshalIndent(item, "", "  ")
	if err != nil {
		text = []byte(err.Error())
	}
	for line := range strings.Lines(string(text)) {
		j.out.Row(nil, strings.TrimRight(line, "\n"))
	}
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// shortened returns as much of an error as a list has room for.
func shortened(text string) string {
	if runes := []rune(text); len(runes) > 120 {
		return string(runes[:120]) + "…"
	}
	return text
}

func statusOfOutbox(ctx context.Context, j *job) error {
	backlog, backlogErr := j.outbox.Measure(ctx, countRows)
	groups, err := j.outbox.GroupBlocked(ctx, listRows)
	if err := errors.Join(backlogErr, err); err != nil {
		return err
	}
	j.out.Line("build\t%s", j.Version)
	j.out.Line("pending events\t%d%s", backlog.Pending, waits("; the oldest that is not blocked", backlog.Oldest))
	j.out.Line("blocked aggregates\t%d, of them parked %d%s", backlog.Blocked, backlog.Parked, waits("; the oldest event", backlog.OldestBlocked))
	j.causes(groups)
	return nil
}

func statusOfQuarantine(ctx context.Context, j *job) error {
	groups, err := j.inbox.GroupQuarantine(ctx, listRows)
	if err != nil {
		return err
	}
	var messages int64
	for _, g := range groups {
		messages += g.Items
	}
	j.out.Line("messages in quarantine\t%d", messages)
	j.causes(groups)
	for _, consumer := range j.Consumers {
		at, err := j.inbox.LastApplied(ctx, consumer)
		if err != nil {
			return err
		}
		j.out.Line("consumer %s\tits newest event was applied at %s", consumer, timeText(at))
	}
	return nil
}

// waits says how long something has waited since a time; nothing for the zero time.
func waits(what string, since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s waits for %s", what, max(0, time.Since(since)).Round(time.Second))
}

// causes prints the most frequent causes of one side.
func (j *job) causes(groups []admin.Group) {
	for _, g := range groups[:min(mostCauses, len(groups))] {
		j.out.Row(nil, "", fmt.Sprintf("%d: %s", g.Items, shortened(g.Sample)))
	}
	if more := len(groups) - mostCauses; more > 0 {
		j.out.Line("\tand %d more causes: see `server stuck`", more)
	}
}
