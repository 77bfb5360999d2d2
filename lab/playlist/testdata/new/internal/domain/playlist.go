package domain

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/problem"
)

// Playlist is an ordered list of videos.
type Playlist struct {
	ID         uuid.UUID
	Title      string
	VideoIDs   []uuid.UUID
	Version    int64
	CreateTime time.Time
	UpdateTime time.Time
	DeleteTime time.Time // zero if it is not deleted
}

// The events of a playlist.
const (
	PlaylistCreated   EventType = "PlaylistCreated"
	PlaylistRenamed   EventType = "PlaylistRenamed"
	PlaylistItemAdded EventType = "PlaylistItemAdded"
	PlaylistDeleted   EventType = "PlaylistDeleted"
)

// PlaylistEvent is a fact about a playlist.
type PlaylistEvent struct {
	ID         uuid.UUID
	Type       EventType // empty: a type that this build does not know
	Playlist   Playlist  // after the event
	OccurredAt time.Time
}

// PlaylistDecision is a command with its arguments, as Decision is for a video.
type PlaylistDecision func(Playlist) (*PlaylistEvent, error)

// CreatePlaylist returns the first event of a playlist.
func CreatePlaylist(id uuid.UUID, title string, stamp Stamp) *PlaylistEvent {
	return Playlist{ID: id, Title: title, CreateTime: stamp.Time.Truncate(time.Millisecond)}.next(PlaylistCreated, stamp)
}

// RenamePlaylist sets the title. It causes no event if the title is the same.
func RenamePlaylist(title string, expected int64, stamp Stamp) PlaylistDecision {
	return func(p Playlist) (*PlaylistEvent, error) {
		if err := p.mayChange(expected); err != nil || p.Title == title {
			return nil, err
		}
		p.Title = title
		return p.next(PlaylistRenamed, stamp), nil
	}
}

// AddPlaylistItem adds a video at the end.
func AddPlaylistItem(video uuid.UUID, expected int64, stamp Stamp) PlaylistDecision {
	return func(p Playlist) (*PlaylistEvent, error) {
		if err := p.mayChange(expected); err != nil {
			return nil, err
		}
		if len(p.VideoIDs) == 1000 {
			return nil, problem.Errorf(problem.Precondition, "playlist %q has 1000 videos, the most it can have", p.ID)
		}
		p.VideoIDs = append(slices.Clone(p.VideoIDs), video)
		return p.next(PlaylistItemAdded, stamp), nil
	}
}

// DeletePlaylist deletes a playlist for good.
func DeletePlaylist(expected int64, stamp Stamp) PlaylistDecision {
	return func(p Playlist) (*PlaylistEvent, error) {
		if err := p.mayChange(expected); err != nil {
			return nil, err
		}
		event := p.next(PlaylistDeleted, stamp)
		event.Playlist.DeleteTime = event.Playlist.UpdateTime
		return event, nil
	}
}

func (p Playlist) mayChange(expected int64) error {
	if !p.DeleteTime.IsZero() {
		return problem.Errorf(problem.NotFound, "playlist %q is deleted", p.ID)
	}
	if expected != AnyVersion && expected != p.Version {
		return problem.Errorf(problem.Conflict, "playlist %q was changed meanwhile: read it again", p.ID)
	}
	return nil
}

func (p Playlist) next(typ EventType, stamp Stamp) *PlaylistEvent {
	now := stamp.Time.Truncate(time.Millisecond)
	if now.Before(p.UpdateTime) {
		now = p.UpdateTime
	}
	p.Version++
	p.UpdateTime = now
	return &PlaylistEvent{ID: stamp.EventID, Type: typ, Playlist: p, OccurredAt: now}
}
