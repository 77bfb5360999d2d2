package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "example.com/videocatalog/api/proto/admin/v1"
	"example.com/videocatalog/internal/admin"
)

// inspect returns the last rebuild, without its times.
func (a *adminPort) inspect(t *testing.T) *adminv1.InspectProjectionRebuildsResponse {
	t.Helper()
	state := must[*adminv1.InspectProjectionRebuildsResponse](t)(a.InspectProjectionRebuilds(t.Context(), &adminv1.InspectProjectionRebuildsRequest{Type: "video"}))
	if ended := state.GetPhase() > adminv1.InspectProjectionRebuildsResponse_PHASE_REPEAT; (state.GetGeneration() > 0) != (state.GetStartTime() != nil) || ended != (state.GetEndTime() != nil) {
		t.Errorf("the times of %v do not fit", state)
	}
	state.StartTime, state.EndTime = nil, nil
	return state
}

// Operators count what a rebuild would change, and rebuild, over gRPC and REST. What differs
// more than was confirmed stays.
func TestAdminServiceRebuilds(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p, a := s.startAdmin(t)
	ids := s.create(t, p, 5)
	damage := []string{
		"UPDATE video_catalog_read.video_projection SET title = 'damaged' WHERE video_id = '" + ids[0] + "'",
		"DELETE FROM video_catalog_read.video_projection WHERE video_id = '" + ids[1] + "'",
		"UPDATE video_catalog_read.video_projection SET version = 7 WHERE video_id = '" + ids[2] + "'",
		"DELETE FROM video_catalog.videos WHERE id = '" + ids[3] + "'",
	}
	for _, sql := range damage {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if state := a.inspect(t); state.GetGeneration() != 0 || state.GetRunning() {
		t.Errorf("the last rebuild = %v, want none", state)
	}
	found := &adminv1.RebuildProjectionsResponse{Entries: 4, Compared: true, Missing: 1, Different: 1, Ahead: 1, Extra: 1}
	dry := must[*adminv1.RebuildProjectionsResponse](t)(a.RebuildProjections(t.Context(), &adminv1.RebuildProjectionsRequest{Type: "video", DryRun: true}))
	if diff := cmp.Diff(found, dry, protocmp.Transform()); diff != "" || s.audited(t) != 0 {
		t.Errorf("dry run, with %d in the audit (-want +got):\n%s", s.audited(t), diff)
	}
	if diff := cmp.Diff(&adminv1.InspectProjectionRebuildsResponse{Phase: adminv1.InspectProjectionRebuildsResponse_PHASE_DROPPED, Entries: 4, Generation: 1}, a.inspect(t), protocmp.Transform()); diff != "" {
		t.Errorf("after the dry run (-want +got):\n%s", diff)
	}
	_, err := a.RebuildProjections(t.Context(), &adminv1.RebuildProjectionsRequest{Type: "video", Confirmed: 3, Reason: "x", Actor: "ann"})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "4 items match now, and 3 were confirmed") || s.count(t, unlike) == 0 {
		t.Errorf("rebuild of more than was confirmed = %v, want FAILED_PRECONDITION, and no change", err)
	}
	if state := a.inspect(t); state.GetPhase() != adminv1.InspectProjectionRebuildsResponse_PHASE_DROPPED {
		t.Errorf("after the refusal: %v, want that nothing is left", state)
	}
	rebuilt := new(adminv1.RebuildProjectionsResponse)
	a.rest(t, "POST", "/v1/projections:rebuild", `{"type":"video","confirmed":"4","reason":"a disk was full","actor":"bob"}`, rebuilt)
	action := rebuilt.GetActionId()
	if rebuilt.ActionId = ""; action == "" || !cmp.Equal(found, rebuilt, protocmp.Transform()) || s.count(t, unlike) != 0 {
		t.Errorf("rebuild = %v, with %d entries that differ, want %v", rebuilt, s.count(t, unlike), found)
	}
	state := new(adminv1.InspectProjectionRebuildsResponse)
	if a.rest(t, "GET", "/v1/projectionRebuilds:inspect?type=video", "", state); state.GetPhase() != adminv1.InspectProjectionRebuildsResponse_PHASE_DONE || state.GetGeneration() != 3 {
		t.Errorf("after the rebuild: %v, want the third done", state)
	}
	entries := s.audit(t, admin.ActionRebuild)
	if len(entries) != 1 || entries[0].ActionID.String() != action || entries[0].Actor != (admin.Actor{Name: "bob", Via: "api"}) {
		t.Fatalf("audit = %+v, want one entry of bob", entries)
	}
	entries[0].Actor = admin.Actor{Name: operatorName(), Via: "command"} // as checkAudit wants it
	checkAudit(t, entries[0], 4, `{"type": "video"}`, "a disk was full",
		`[{"missing": 1, "behind": 0, "different": 1, "ahead": 1, "extra": 1}]`, `[{"entries": 4, "lowered": 1, "removed": 1}]`)
}

// A caller who is cut off loses nothing, nor one whose process stops: the same call goes on.
// Meanwhile a second one is refused.
func TestAdminServiceResumesARebuild(t *testing.T) {
	t.Parallel()
	t.Run("the caller hangs up", func(t *testing.T) {
		t.Parallel()
		s := newStack(t)
		_, a := s.startAdmin(t, "ROLES=api")
		s.resumeRebuild(t, a, codes.Canceled, func(hangUp func()) *adminPort { hangUp(); return a })
	})
	t.Run("the process stops", func(t *testing.T) {
		t.Parallel()
		s := newStack(t)
		p, a := s.startAdmin(t, "ROLES=api")
		s.resumeRebuild(t, a, codes.Unavailable, func(func()) *adminPort {
			if _, err := p.stop(t); err != nil {
				t.Errorf("stop = %v", err)
			}
			_, a := s.startAdmin(t, "ROLES=api")
			return a
		})
	})
}

// resumeRebuild rebuilds 1,500 entries, interrupts that before the swap, which gives the call
// a code, and resumes it at the port that interrupt returns.
func (s *stack) resumeRebuild(t *testing.T, a *adminPort, code codes.Code, interrupt func(hangUp func()) *adminPort) {
	t.Helper()
	s.fillOwner(t, 1500)
	release := s.holdCatalog(t)
	defer release()
	request := &adminv1.RebuildProjectionsRequest{Type: "video", Reason: "new", Actor: "ann"}
	calling, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	ended := make(chan error, 1)
	go func() {
		_, err := a.RebuildProjections(calling, request)
		ended <- err
	}()
	eventually(t, time.Minute, "the swap waits", func() bool { return s.swapWaits(t) })
	want := &adminv1.InspectProjectionRebuildsResponse{Phase: adminv1.InspectProjectionRebuildsResponse_PHASE_CHECK, Entries: 1500, Generation: 1, Running: true}
	if diff := cmp.Diff(want, a.inspect(t), protocmp.Transform()); diff != "" {
		t.Errorf("while it runs (-want +got):\n%s", diff)
	}
	if _, err := a.RebuildProjections(t.Context(), request); status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "has been running since") {
		t.Errorf("a second rebuild = %v, want ABORTED", err)
	}
	a = interrupt(hangUp)
	if err := <-ended; status.Code(err) != code {
		t.Errorf("the first = %v, want %s", err, code)
	}
	eventually(t, time.Minute, "nobody runs the rebuild", func() bool { return !a.inspect(t).GetRunning() })
	if s.audited(t) != 0 || s.count(t, "SELECT count(*) FROM video_catalog_read.video_projection") != 0 {
		t.Error("the rebuild that was interrupted has changed the catalog")
	}
	release()
	rest := must[*adminv1.RebuildProjectionsResponse](t)(a.RebuildProjections(t.Context(), request))
	if rest.GetEntries() != 1500 || rest.GetMissing() != 1500 || s.count(t, unlike) != 0 || s.audited(t) != 1 {
		t.Errorf("the rest = %v, with %d in the audit, want 1,500 missing entries", rest, s.audited(t))
	}
	want.Phase, want.Running = adminv1.InspectProjectionRebuildsResponse_PHASE_DONE, false
	if diff := cmp.Diff(want, a.inspect(t), protocmp.Transform()); diff != "" {
		t.Errorf("at the end, of the same rebuild (-want +got):\n%s", diff)
	}
}

// A rebuild that cannot swap before the deadline of its caller reports what it waits for, in its
// error and in the log. The same call resumes it.
func TestAdminServiceReportsWhatARebuildWaitsFor(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p, a := s.startAdmin(t, "ROLES=api")
	s.fillOwner(t, 10)
	release := s.holdCatalog(t)
	defer release()
	request := &adminv1.RebuildProjectionsRequest{Type: "video", Reason: "new", Actor: "ann"}
	eventually(t, time.Minute, "the caller gets the reason", func() bool { // a deadline may end a slow rebuild before it waits
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		_, err := a.RebuildProjections(ctx, request)
		return status.Code(err) == codes.DeadlineExceeded && strings.Contains(err.Error(), "in use by a transaction, for example a backup: run it again, and it goes on")
	})
	if !p.logs(`"severity":"INFO"`, `"rebuild: note"`, `"aggregate_type":"video"`, "waiting for a transaction") {
		t.Error("the log lacks what the rebuild waits for")
	}
	eventually(t, time.Minute, "nobody runs the rebuild", func() bool { return !a.inspect(t).GetRunning() })
	release()
	rest := must[*adminv1.RebuildProjectionsResponse](t)(a.RebuildProjections(t.Context(), request))
	if rest.GetEntries() != 10 || s.count(t, unlike) != 0 || !p.logs(`"rebuild: note"`, `"aggregate_type":"video"`, "rebuild 1 is resumed: check, after 10 entries") {
		t.Errorf("the rest = %v, with %d entries that differ, want 10 entries of the same rebuild, and that the log says so", rest, s.count(t, unlike))
	}
}

// Of several rebuilds at once one runs, and each that ends well has its row in the audit.
func TestAdminServiceRebuildsOnceAtATime(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, a := s.startAdmin(t, "ROLES=api")
	s.fillOwner(t, 100)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = a.RebuildProjections(t.Context(), &adminv1.RebuildProjectionsRequest{Type: "video", Reason: "x", Actor: fmt.Sprint("caller ", i)})
		})
	}
	wg.Wait()
	done := 0
	for _, err := range errs {
		switch status.Code(err) {
		case codes.OK:
			done++
		case codes.Aborted:
		default:
			t.Errorf("a rebuild = %v, want OK or ABORTED", err)
		}
	}
	if done == 0 || s.audited(t) != done || s.count(t, unlike) != 0 {
		t.Errorf("%d rebuilds, %d rows in the audit, %d entries differ", done, s.audited(t), s.count(t, unlike))
	}
}

// Operators seek over gRPC and REST: what was lost comes back.
func TestAdminServiceSeeks(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	id := s.retainAcked(t)
	p, a := s.startAdmin(t)
	since := time.Now().Add(-time.Minute).Truncate(time.Second).UTC()
	s.create(t, p, 3)
	s.settled(t, s.url)
	want := p.listed(t)
	if _, err := s.pool.Exec(t.Context(), "DELETE FROM video_catalog_read.video_projection"); err != nil {
		t.Fatal(err)
	}
	request := &adminv1.SeekSubscriptionsRequest{Subscription: id, StartTime: timestamppb.New(since), DryRun: true}
	dry := must[*adminv1.ActionResult](t)(a.SeekSubscriptions(t.Context(), request))
	if diff := cmp.Diff(&adminv1.ActionResult{Matched: 3}, dry, protocmp.Transform()); diff != "" || s.audited(t) != 0 {
		t.Errorf("dry run (-want +got):\n%s", diff)
	}
	_, without := s.startAdmin(t, "ROLES=api", "PUBSUB_PROJECT=")
	if _, err := without.SeekSubscriptions(t.Context(), request); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no PUBSUB_PROJECT") {
		t.Errorf("seek in a process without Pub/Sub = %v, want FAILED_PRECONDITION", err)
	}
	request = &adminv1.SeekSubscriptionsRequest{Subscription: id, StartTime: timestamppb.New(since), Confirmed: 2, Reason: "x", Actor: "ann"}
	if _, err := a.SeekSubscriptions(t.Context(), request); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("seek over more than was confirmed = %v, want FAILED_PRECONDITION", err)
	}
	sought := new(adminv1.ActionResult)
	body := fmt.Sprintf(`{"subscription":%q,"startTime":%q,"confirmed":"3","reason":"rows were lost","actor":"bob"}`, id, since.Format(time.RFC3339))
	if a.rest(t, "POST", "/v1/subscriptions:seek", body, sought); sought.GetDone() != 3 || sought.GetActionId() == "" {
		t.Errorf("seek = %v, want 3", sought)
	}
	eventually(t, time.Minute, "the catalog is complete again", func() bool { return fmt.Sprint(p.listed(t)) == fmt.Sprint(want) })
	entries := s.audit(t, admin.ActionSeek)
	if len(entries) != 1 || entries[0].ActionID.String() != sought.GetActionId() || entries[0].Actor != (admin.Actor{Name: "bob", Via: "api"}) {
		t.Errorf("audit = %+v, want one entry of bob", entries)
	}
}
