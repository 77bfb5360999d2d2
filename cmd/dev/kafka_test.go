package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// With --kafka, what is published reaches the catalog over Kafka.
func TestDevWithKafka(t *testing.T) {
	t.Parallel()
	screen := start(t, "--kafka")
	api := field(t, screen, `(http://localhost:\d+)/v1`)
	field(t, screen, `Kafka\s+(127\.0\.0\.1:\d+)`)
	var video struct{ Name string }
	if err := json.Unmarshal([]byte(call(t, http.MethodPost, api+"/v1/videos", `{"title":"Ran"}`)), &video); err != nil {
		t.Fatal(err)
	}
	call(t, http.MethodPost, api+"/v1/"+video.Name+":publish", "{}")
	eventually(t, "the catalog has the video", func() bool {
		return strings.Contains(call(t, http.MethodGet, api+"/v1/catalogEntries", ""), `"Ran"`)
	})
}
