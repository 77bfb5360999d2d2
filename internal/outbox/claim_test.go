package outbox_test

import (
	"strings"
	"testing"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

// Pending events of a blocked aggregate follow its deferred events if the claim has all of these. In the
// table /0 is a deferred event, /1 one that was refused before, and ! a blocked event.
func TestUnblock(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, events string
		maxBytes     int64
		want         string
	}{
		{"nothing is deferred", "a1 b1!", 100, "a1 b1!"},
		{"all of the aggregate", "a1/0 a2/0 a3! a4!", 100, "a1/0 a2/0 a3 a4"},
		{"another aggregate", "a1/0 a2! b1!", 100, "a1/0 a2 b1!"},
		{"refused before", "a1/1 a2!", 100, "a1/1 a2!"},
		{"each by itself", "a1/1 b1/0 a2! b2!", 100, "a1/1 b1/0 a2! b2"},
		{"as many as the claim may have", "a1/0 a2/0 a3/0 a4!", 100, "a1/0 a2/0 a3/0 a4!"},
		{"as many bytes as the claim may have", "a1/0 a2/0 a3!", 4, "a1/0 a2/0 a3!"},
	} {
		var events []outbox.Claimed
		for name := range strings.FieldsSeq(test.events) {
			events = append(events, outbox.Claimed{
				Message:  envelope.Message{AggregateType: "letter", AggregateID: name[:1], Payload: []byte(name[:2])},
				Deferred: strings.Contains(name, "/"), Attempts: strings.Count(name, "/1"), Blocked: strings.HasSuffix(name, "!"),
			})
		}
		outbox.Unblock(events, 3, test.maxBytes)
		var got []string
		for i, name := range strings.Fields(test.events) {
			if name = strings.TrimSuffix(name, "!"); events[i].Blocked {
				name += "!"
			}
			got = append(got, name)
		}
		if got := strings.Join(got, " "); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
