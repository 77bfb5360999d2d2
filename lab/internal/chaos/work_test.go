package chaos

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Back is the time until the last task was done again. A task that is not done
// any more is named.
func TestProcessesAreAwaited(t *testing.T) {
	t.Parallel()
	const api, publisher = "api-1 commits", "publisher-1 publishes"
	for _, tt := range []struct {
		name     string
		recovery Recovery
		struck   time.Duration            // time before the end of the fault
		again    map[string]time.Duration // time after the end; 0: never
		back     time.Duration
		last     string
		shared   time.Duration // time after which share is called
	}{
		{"all at once", Outage, 0, map[string]time.Duration{api: 50 * time.Millisecond, publisher: 50 * time.Millisecond}, 60 * time.Millisecond, api + ", " + publisher, time.Second},
		{"one late", Outage, 0, map[string]time.Duration{api: time.Millisecond, publisher: 3 * time.Second}, 3 * time.Second, publisher, time.Second},
		{"one never", Outage, 0, map[string]time.Duration{api: 0, publisher: time.Second}, 0, api, time.Second},
		{"behind a lease", Takeover, time.Second, map[string]time.Duration{api: time.Millisecond, publisher: 5 * time.Second}, 5 * time.Second, publisher, lease},
		{"behind one that is over", Takeover, time.Minute, map[string]time.Duration{api: time.Millisecond, publisher: 5 * time.Second}, 5 * time.Second, publisher, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := time.Now()
				record := FaultRecord{Recovery: tt.recovery, Struck: ended.Add(-tt.struck), Ended: ended}
				work, failed, over, shared := tasks{"api-1 commits": 7, "publisher-1 publishes": 5}, false, false, time.Duration(0)
				err := record.awaitBack(t.Context(), func(context.Context) (tasks, error) {
					if !failed && time.Since(ended) > 0 { // the second look
						failed = true
						return nil, errors.New("no answer")
					}
					now := maps.Clone(work)
					for name, at := range tt.again {
						if at > 0 && time.Since(ended) >= at {
							now[name]++
						}
					}
					return now, nil
				}, func(idle []string) {
					if over = idle == nil; over {
						return
					}
					if shared == 0 {
						shared = time.Since(ended)
					}
					if got := strings.Join(idle, ", "); !strings.Contains(got, tt.last) {
						t.Errorf("after %s there is to be work for %q, want %q among them", time.Since(ended), got, tt.last)
					}
				})
				if late := tt.back == 0 || tt.back > tt.shared; late != (shared > 0) || late && shared != tt.shared+20*time.Millisecond || !over {
					t.Errorf("the others share after %s, want that after %s: %t; at the end no more: %t", shared, tt.shared, late, over)
				}
				if record.Back != tt.back || record.LastBack != tt.last || (err == nil) != (tt.back > 0) {
					t.Errorf("back after %s, last %q, %v; want %s and %q", record.Back, record.LastBack, err, tt.back, tt.last)
				}
				if err != nil && (!strings.Contains(err.Error(), tt.last) || time.Since(ended) != backWithin) {
					t.Errorf("after %s: %v, want the name of who is unavailable after %s", time.Since(ended), err, backWithin)
				}
			})
		})
	}
}

// The other publishers slow down while some publishers are idle, but not for an
// idle process of another role.
func TestPublishersShare(t *testing.T) {
	t.Parallel()
	l := &lab{}
	for _, name := range []string{"publisher-1", "publisher-2", "publisher-3"} {
		l.publishers = append(l.publishers, &process{name: name, proxy: &proxy{}})
	}
	for _, tt := range []struct{ idle, slow string }{
		{"publisher-2 publishes", "publisher-1 publisher-3"},
		{"api-1 commits, publisher-1 publishes, publisher-2 publishes", "publisher-3"},
		{"publisher-1 publishes, publisher-2 publishes, publisher-3 publishes", ""},
		{"publisher-1 commits", ""},
		{"publisher-3 publishes", "publisher-1 publisher-2"},
		{"", ""},
	} {
		l.share(strings.Split(tt.idle, ", "))
		var slow []string
		for _, p := range l.publishers {
			if p.proxy.delay == shareDelay {
				slow = append(slow, p.name)
			}
		}
		if got := strings.Join(slow, " "); got != tt.slow {
			t.Errorf("while %q are idle, %q leave them something, want %q", tt.idle, got, tt.slow)
		}
	}
}
