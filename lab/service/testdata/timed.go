package main

import (
	"errors"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/store"
	"example.com/videocatalog/options/reactions"
)

// timed adds timers to the registration of videos: they publish a video, or fail by its description.
// A test compiles it into the service, which has no timer.
func timed(r app.Registration) app.Registration {
	r.Options = map[string]any{reactions.Name: reactions.Of{Timers: func(b app.Backend) reactions.Timers {
		return reactions.NewTimers(store.NewVideos(b.CommandPool, b.Wake), func(v domain.Video, _ string, stamp domain.Stamp) (*domain.VideoEvent, error) {
			if v.Description == "broken" {
				return nil, errors.New("broken on purpose")
			}
			return domain.PublishVideo(domain.AnyVersion, stamp)(v)
		})
	}}}
	return r
}
