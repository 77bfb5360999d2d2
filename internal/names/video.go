package names

// VideoTopic has the events of videos.
var VideoTopic = add(Topic{
	Name:           "video.events",
	AggregateTypes: []string{"video"},
	Schema:         "api/proto/video/v1/video_event.proto",
	Consumers:      []string{"catalog"},
})
