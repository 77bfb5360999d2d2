package event_test

import (
	"testing"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// The file of the event is one that Pub/Sub accepts as a schema: it imports
// nothing and defines one top-level message
// (https://cloud.google.com/pubsub/docs/schemas#protocol-buffer).
func TestEventFileIsAPubSubSchema(t *testing.T) {
	file := videov1.File_video_v1_video_event_proto
	for i := range file.Imports().Len() {
		t.Errorf("it imports %s", file.Imports().Get(i).Path())
	}
	messages := file.Messages()
	if messages.Len() != 1 || messages.Get(0).Name() != "VideoEvent" {
		for i := range messages.Len() {
			t.Errorf("top-level message %s, want only VideoEvent", messages.Get(i).Name())
		}
	}
	for what, n := range map[string]int{
		"services": file.Services().Len(), "top-level enums": file.Enums().Len(), "extensions": file.Extensions().Len(),
	} {
		if n != 0 {
			t.Errorf("%s = %d, want none", what, n)
		}
	}
}
