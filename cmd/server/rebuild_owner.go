package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/store"
)

// A page of the owner's list has at most pageRows videos, and ends when their texts reach
// pageBytes.
const (
	pageRows  = 1000
	pageBytes = 3 << 20
)

// list returns a page of the owner's list, the oldest video first, and where the list
// continues; nil: nowhere.
func (r *rebuilder) list(ctx context.Context, after *domain.VideoCursor) (entries []domain.Entry, next *domain.VideoCursor, err error) {
	videos, more, err := r.owner.ListVideos(ctx, domain.VideoQuery{
		OldestFirst: true, After: after, Limit: pageRows, MaxBytes: pageBytes, ShowPurged: true,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("after %d entries: %w", r.result.Entries, err)
	}
	entries = make([]domain.Entry, len(videos))
	for i, video := range videos {
		entries[i] = domain.EntryOf(video)
	}
	if more {
		last := videos[len(videos)-1]
		next = &domain.VideoCursor{CreateTime: last.CreateTime, ID: last.ID}
	}
	return entries, next, nil
}

// positionText returns where the owner's list continues, as the database keeps it: a time and
// an id. It is empty at the end of the list.
func positionText(next *domain.VideoCursor) string {
	if next == nil {
		return ""
	}
	return next.CreateTime.Format(time.RFC3339Nano) + " " + next.ID.String()
}

// parsePosition reads a positionText. It is empty also before the list. The error is
// problem.Precondition for the text of another build.
func parsePosition(text string) (*domain.VideoCursor, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	created, id, _ := strings.Cut(text, " ")
	var at domain.VideoCursor
	var err error
	if at.CreateTime, err = time.Parse(time.RFC3339Nano, created); err == nil {
		at.ID, err = uuid.Parse(id)
	}
	if err != nil {
		return nil, &problem.Error{Kind: problem.Precondition, Message: "another build began this rebuild, and only that one can go on: start over with --restart", Err: err}
	}
	return &at, nil
}

// copyFromOwner reads entries of the live catalog and then those of the owner. It writes the
// states of the owner: before the swap into the shadow, and after it into the catalog, if they
// are newer. It leaves out entries that the live catalog does not have.
//
// A version is published before it is projected, and the owner's versions only grow. So if
// the owner is behind an entry that was read before, the owner has lost a change. The entry
// is then lowered to the owner's state. If the owner does not have the video, a tombstone
// with the same version replaces the entry and keeps late events out. It has no content,
// because a later purge would not find it.
func (r *rebuilder) copyFromOwner(ctx context.Context, keys []string, swapped bool) error {
	ids, err := parseKeys(keys)
	if err != nil {
		return err
	}
	live, err := r.catalog.FindEntries(ctx, ids)
	if err != nil {
		return err
	}
	videos, err := r.owner.FindVideos(ctx, ids)
	if err != nil {
		return err
	}
	var entries []domain.Entry
	var rows store.RebuildRows
	for id, was := range live {
		video, found := videos[id]
		entry := domain.EntryOf(video)
		switch {
		case !found:
			entry = domain.Entry{VideoID: id, Version: was.Version, Deleted: true, UpdateTime: was.UpdateTime}
			if !was.Deleted {
				r.result.Extra++
			}
		case swapped && entry.Version <= was.Version: // it has the event
			continue
		case entry.Version < was.Version:
			rows.Again = append(rows.Again, id.String())
			r.result.Ahead++
		}
		entries = append(entries, entry)
	}
	return r.write(ctx, entries, rows)
}

func parseKeys(keys []string) ([]uuid.UUID, error) {
	ids := make([]uuid.UUID, len(keys))
	for i, key := range keys {
		var err error
		if ids[i], err = uuid.Parse(key); err != nil {
			return nil, fmt.Errorf("key of an entry %q: %w", key, err)
		}
	}
	return ids, nil
}
