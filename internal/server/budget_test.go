package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/port"
)

// onePage gives lists room for one page at a time. It is the room that a list
// needs before its page is known.
const onePage = 2 * aip.MaxPageBytes

// A list waits while there is no room for its page, and is refused when there is
// none in time; other calls go on, and it has room once the others have ended.
func TestListsWaitForRoom(t *testing.T) {
	t.Parallel()
	r, c := serve(t, port.Config{CallTimeout: time.Minute, PagesBudget: onePage, PageWait: 500 * time.Millisecond, PageRead: time.Minute})
	mustCreate(t, c, film())
	entered, release := hang(r)
	first := make(chan error, 1)
	go func() {
		_, err := c.videos.ListVideos(t.Context(), nil)
		first <- err
	}()
	<-entered
	_, err := c.videos.ListVideos(t.Context(), nil)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "large pages") {
		t.Errorf("a list without room = %v, want Unavailable", err)
	}
	release()
	if err := <-first; err != nil {
		t.Errorf("the list with room = %v, want success", err)
	}
	for range 20 {
		if _, err := c.videos.ListVideos(t.Context(), nil); err != nil {
			t.Fatalf("a list after the others have ended = %v, want success", err)
		}
	}
}
