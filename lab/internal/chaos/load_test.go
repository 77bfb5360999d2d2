package chaos

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	videov1 "example.com/videocatalog/api/proto/video/v1"
)

// The outcome of a command depends on all its attempts: after a lost attempt, a
// refusal proves nothing.
func TestClientBelievesOnlyWhatIsCertain(t *testing.T) {
	t.Parallel()
	type attempt struct {
		code codes.Code
		sent bool
	}
	ok, refused, lost, nobody := attempt{codes.OK, true}, attempt{codes.Aborted, true}, attempt{codes.Unavailable, true}, attempt{codes.Unavailable, false}
	for _, tt := range []struct {
		name     string
		attempts []attempt // the last one repeats
		want     Answer
	}{
		{"answered", []attempt{ok}, Answer{Outcome: Acknowledged, Version: 4, Expected: 3}},
		{"refused", []attempt{refused}, Answer{Outcome: Failed, Expected: 3}},
		{"answered at last", []attempt{lost, nobody, ok}, Answer{Outcome: Acknowledged, Version: 4, Lost: 1}},
		{"nobody was there at first", []attempt{nobody, ok}, Answer{Outcome: Acknowledged, Version: 4, Expected: 3}},
		{"refused after a lost answer", []attempt{lost, nobody, refused}, Answer{Outcome: Unknown, Lost: 1, Expected: 3}},
		{"never answered", []attempt{lost}, Answer{Outcome: Unknown, Lost: 8, Expected: 3}},
		{"never sent", []attempt{nobody}, Answer{Outcome: Failed, Expected: 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := &videov1.Video{Name: "videos/0197f2a4-0000-7000-8000-000000000001", Version: 4}
			c := newClient(&load{}, 1)
			got, n := Answer{Expected: 3}, 0
			c.decide(t.Context(), &got, func() (*videov1.Video, codes.Code, bool) {
				a := tt.attempts[min(n, len(tt.attempts)-1)]
				n++
				return v, a.code, a.sent
			})
			if tt.want.Outcome == Acknowledged {
				tt.want.Video, tt.want.State = videoID(v.GetName()), stateOfAnswer(v).digest()
			}
			if got.Since.IsZero() != (got.Lost == 0) {
				t.Errorf("%d answers were lost, the first of an attempt at %s", got.Lost, got.Since)
			}
			if got.Since = (time.Time{}); got != tt.want {
				t.Errorf("after %d attempts: got %+v, want %+v", n, got, tt.want)
			}
		})
	}
}

// All clients together send at the given rate, at all times. A client that was
// delayed catches up by at most a second.
func TestClientsDoNotSendTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &load{clients: 16, rate: 200, seed: 1}
		const span, looks = 5 * time.Minute, 200 * time.Millisecond
		start, mu, clients := time.Now(), sync.Mutex{}, sync.WaitGroup{}
		sent, inPhase, moments := 0, [10]int{}, map[time.Duration]bool{}
		ctx, stop := context.WithTimeout(t.Context(), span)
		defer stop()
		for i := range uint64(l.clients) {
			clients.Go(func() {
				outage := true
				newClient(l, i+1).run(ctx, func(context.Context) {
					at := time.Since(start)
					mu.Lock()
					moments[at] = true
					inPhase[at%looks*10/looks]++
					sent++
					mu.Unlock()
					if outage && at > span/2 {
						outage = false
						time.Sleep(10 * time.Second)
					}
				})
			})
		}
		clients.Wait()
		if want := int(l.rate * (span - 9*time.Second).Seconds()); sent < want*97/100 || sent > want*103/100 {
			t.Errorf("%d commands in %s, want about %d", sent, span, want)
		}
		if len(moments) < sent*9/10 {
			t.Errorf("%d commands at %d moments, want hardly any two at one", sent, len(moments))
		}
		for phase, n := range inPhase {
			if n < sent/10*9/10 || n > sent/10*11/10 {
				t.Errorf("in phase %d of the looks: %d commands of %d, want about a tenth", phase, n, sent)
			}
		}
	})
}

// A result that does not show the change is not a success.
func TestAnswerFitsItsCommand(t *testing.T) {
	t.Parallel()
	published, deleted := &videov1.Video{State: videov1.Video_STATE_PUBLISHED}, &videov1.Video{DeleteTime: timestamppb.Now()}
	for kind, tt := range map[string]struct{ fits, not *videov1.Video }{
		kindPublish: {published, deleted}, kindUnpublish: {deleted, published}, kindDelete: {deleted, published}, kindUndelete: {published, deleted}, kindPurge: {deleted, published},
	} {
		for video, want := range map[*videov1.Video]int{tt.fits: 0, tt.not: 1} {
			problems := 0
			c := newClient(&load{problem: func(Rule, string, ...any) { problems++ }}, 1)
			c.decide(t.Context(), &Answer{Kind: kind}, func() (*videov1.Video, codes.Code, bool) { return video, codes.OK, true })
			if problems != want {
				t.Errorf("%s answered with %v: %d problems, want %d", kind, video, problems, want)
			}
		}
	}
}

// A video that was purged is not changed again, whatever late answer shows it.
// Deleted videos are purged only while that is asked for.
func TestPurgedVideosAreForgotten(t *testing.T) {
	t.Parallel()
	l := &load{}
	v := &videov1.Video{Name: "videos/0197f2a4-0000-7000-8000-000000000001", Version: 4, DeleteTime: timestamppb.Now()}
	l.learn(v)
	kinds := func() map[string]bool {
		drawn, r := map[string]bool{}, rand.New(rand.NewPCG(1, 1))
		for range 200 {
			drawn[l.drawKind(r, *l.videos[0])] = true
		}
		return drawn
	}
	if drawn := kinds(); drawn[kindPurge] || !drawn[kindUndelete] {
		t.Errorf("drawn %v, want no purge", drawn)
	}
	l.purge(true)
	if drawn := kinds(); !drawn[kindPurge] {
		t.Errorf("drawn %v, want a purge", drawn)
	}
	newClient(l, 1).decide(t.Context(), &Answer{Kind: kindPurge}, func() (*videov1.Video, codes.Code, bool) { return v, codes.OK, true })
	if l.learn(v); len(l.videos) != 0 || l.purge(false) != 1 || l.purges() {
		t.Errorf("clients know %d videos, and %d were purged; want 0 and 1", len(l.videos), len(l.purged))
	}
}

// Unexpected codes are recorded for the checker: those that neither refuse the
// command nor allow a retry. Before the first fault, codes that allow a retry are
// recorded, too.
func TestOddCodesAreKept(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		request
		refusals string // refusals that are not recorded
	}{
		{request{kind: kindCreate}, ""},
		{request{kind: kindUpdate}, "FailedPrecondition"},
		{request{kind: kindUpdate, etag: "1"}, "FailedPrecondition Aborted"},
		{request{kind: kindPublish}, "FailedPrecondition"},
		{request{kind: kindUnpublish, etag: "1"}, "FailedPrecondition Aborted"},
		{request{kind: kindDelete, etag: "1"}, "NotFound Aborted"},
		{request{kind: kindUndelete}, "AlreadyExists"},
		{request{kind: kindPurge}, "FailedPrecondition"},
	} {
		l := &load{codes: map[string]int{}, attempts: json.NewEncoder(io.Discard)}
		for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable} {
			l.attempted(0, tt.request, "gRPC api-1", 0, code)
		}
		if len(l.odd) != 3 {
			t.Errorf("%s: kept %v before there were faults, want all three", tt.kind, l.odd)
		}
		l.odd = nil
		l.expectFaults()
		want := strings.Fields("Unknown InvalidArgument NotFound AlreadyExists PermissionDenied ResourceExhausted FailedPrecondition Aborted OutOfRange Unimplemented Internal DataLoss Unauthenticated")
		want = slices.DeleteFunc(want, func(code string) bool { return slices.Contains(strings.Fields(tt.refusals), code) })
		for code := codes.OK; code <= codes.Unauthenticated; code++ {
			l.attempted(int64(code), tt.request, "gRPC api-1", 0, code)
		}
		var got []string
		for _, o := range l.odd {
			got = append(got, o.Code.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s with etag %q: kept %q, want %q", tt.kind, tt.etag, got, want)
		}
	}
}

// A failed read or stream is counted. It is recorded for the checker like a
// command, unless it only timed out.
func TestFailedReadsAreKept(t *testing.T) {
	t.Parallel()
	l := &load{unread: map[string]int{}}
	all := []codes.Code{codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unavailable}
	for _, want := range []int{4, 3} { // before and after the first fault
		l.odd = nil
		for _, code := range all {
			l.failedToRead(1, "GetCatalogEntry", code)
		}
		if len(l.odd) != want {
			t.Errorf("kept %v, want %d", l.odd, want)
		}
		l.expectFaults()
	}
	if l.unread["Unavailable"] != 2 || len(l.unread) != len(all) {
		t.Errorf("counted %v, want all twice", l.unread)
	}
}

// Over REST, every command has its own path, etag and request id. An error has
// the code of the server.
func TestCallsOverREST(t *testing.T) {
	t.Parallel()
	const name, etag = "videos/0197f2a4-0000-7000-8000-000000000001", `"3"`
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.Path + " " + r.URL.RawQuery + " " + string(b)
		if strings.Contains(asked, "undelete") {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error": {"code": 409, "status": "ABORTED", "message": "changed meanwhile"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"name": "`+name+`", "version": "4"}`)
	}))
	defer server.Close()
	for _, tt := range []struct {
		kind string
		want []string
		code codes.Code
	}{
		{kindCreate, []string{"POST /v1/videos ", "requestId=id", `"title":"t"`}, codes.OK},
		{kindUpdate, []string{"PATCH /v1/" + name, "updateMask=title", `"etag":"\"3\""`}, codes.OK},
		{kindPublish, []string{"POST /v1/" + name + ":publish", `"\"3\""`}, codes.OK},
		{kindUnpublish, []string{"POST /v1/" + name + ":unpublish", `"\"3\""`}, codes.OK},
		{kindDelete, []string{"DELETE /v1/" + name, "etag=%223%22"}, codes.OK},
		{kindPurge, []string{"POST /v1/" + name + ":purge"}, codes.OK},
		{kindUndelete, []string{"POST /v1/" + name + ":undelete", `"\"3\""`}, codes.Aborted},
	} {
		v, err := overREST(t.Context(), strings.TrimPrefix(server.URL, "http://"),
			request{kind: tt.kind, video: &videov1.Video{Title: "t"}, name: name, etag: etag, requestID: "id"})
		if status.Code(err) != tt.code || err == nil && v.GetVersion() != 4 {
			t.Errorf("%s: %v, %v, want version 4 and code %s", tt.kind, v, err, tt.code)
		}
		compact := strings.ReplaceAll(asked, `": "`, `":"`)
		for _, want := range tt.want {
			if !strings.Contains(compact, want) {
				t.Errorf("%s: asked %s, want %s in it", tt.kind, asked, want)
			}
		}
	}
	server.Close()
	_, err := overREST(t.Context(), strings.TrimPrefix(server.URL, "http://"), request{kind: kindPublish, name: name})
	if !lost(status.Code(err)) {
		t.Errorf("without a server: %v, want a code that leaves the outcome open", err)
	}
}

// The seed decides the commands of a client. They do not depend on other clients,
// or on the results of earlier commands.
func TestScriptComesFromTheSeed(t *testing.T) {
	t.Parallel()
	script := func(seed uint64, disturb func(c *client, n int)) (all []string) {
		c := newClient(&load{seed: seed}, 1)
		for i := range 10 {
			c.load.videos = append(c.load.videos, &known{name: "videos/" + uuid.UUID{0: byte(i)}.String(), version: int64(i), deleted: i%3 == 0})
		}
		for n := range 20 {
			disturb(c, n)
			r, answer := c.next()
			b, err := json.Marshal([]any{r.kind, r.name, r.etag, r.requestID, r.read, r.video, answer.Expected})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(b))
		}
		return all
	}
	undisturbed := func(*client, int) {}
	first := script(1, undisturbed)
	if again := script(1, undisturbed); !slices.Equal(first, again) {
		t.Error("with the same seed the script is another one")
	}
	ids := map[string]bool{}
	for _, number := range []uint64{1, 2} {
		c := newClient(&load{seed: 1}, number)
		for range 20 {
			r, _ := c.next()
			ids[r.requestID] = true
		}
	}
	if len(ids) != 40 {
		t.Errorf("40 commands of two clients have %d request ids", len(ids))
	}
	if slices.Equal(first, script(2, undisturbed)) {
		t.Error("with another seed the script is the same")
	}
	const strange = 5 // number of the command without a video; each command has several attempts
	var videos []*known
	got := script(1, func(c *client, n int) {
		c.luck.Uint64()
		switch n {
		case strange:
			videos, c.load.videos = c.load.videos, nil
		case strange + 1:
			c.load.videos = videos
		}
	})
	for n := range first {
		if same := got[n] == first[n]; same == (n == strange) {
			t.Errorf("command %d: %s, undisturbed: %s", n, got[n], first[n])
		}
	}
}
