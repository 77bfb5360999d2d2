package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "example.com/videocatalog/api/proto/admin/v1"
)

// repeated counts the pending events with a mark.
func (s *stack) repeated(t *testing.T, mark string) int {
	t.Helper()
	return s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending WHERE repeat = $1", mark)
}

// Operators publish events and states again over gRPC and REST: counted first, by filter and
// time, and the audit says who did it.
func TestAdminServiceRepublishesAndBackfills(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p, a := s.startAdmin(t, "ROLES=api")
	p.create(t, "Ran") // and publishes it, so each has two events
	id := strings.TrimPrefix(p.create(t, "Kagemusha"), "videos/")
	p.create(t, "Ikiru")
	if _, err := s.pool.Exec(t.Context(), "DELETE FROM video_catalog.outbox_pending"); err != nil { // all are published
		t.Fatal(err)
	}
	dry := must[*adminv1.ActionResult](t)(a.RepublishEvents(t.Context(), &adminv1.RepublishEventsRequest{All: true, DryRun: true}))
	if diff := cmp.Diff(&adminv1.ActionResult{Matched: 6}, dry, protocmp.Transform()); diff != "" || s.repeated(t, "event") != 0 || s.audited(t) != 0 {
		t.Errorf("dry run (-want +got):\n%s", diff)
	}
	_, err := a.RepublishEvents(t.Context(), &adminv1.RepublishEventsRequest{All: true, Confirmed: 5, Reason: "x", Actor: "ann"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("republish of more than was confirmed = %v, want FAILED_PRECONDITION", err)
	}
	one := must[*adminv1.ActionResult](t)(a.RepublishEvents(t.Context(), &adminv1.RepublishEventsRequest{
		Filter: &adminv1.Filter{Type: "video", Id: id}, StartTime: timestamppb.New(time.Unix(0, 0)), Confirmed: 2, Reason: "lost", Actor: "ann",
	}))
	if one.GetDone() != 2 || s.repeated(t, "event") != 2 {
		t.Errorf("republish of one = %v with %d pending, want 2", one, s.repeated(t, "event"))
	}
	rest := new(adminv1.ActionResult)
	if a.rest(t, "POST", "/v1/events:republish", `{"all":true,"endTime":"2020-01-01T00:00:00Z","reason":"lost","actor":"bob"}`, rest); rest.GetMatched() != 0 {
		t.Errorf("republish of another time = %v, want none", rest)
	}
	if a.rest(t, "POST", "/v1/events:republish", `{"all":true,"startTime":"2020-01-01T00:00:00Z","reason":"lost","actor":"bob"}`, rest); rest.GetDone() != 6 || rest.GetNextCursor() != "" {
		t.Errorf("republish of all = %v, want 6", rest)
	}
	if a.rest(t, "POST", "/v1/aggregates:backfill", `{"type":"video","dryRun":true}`, rest); rest.GetMatched() != 3 || s.repeated(t, "snapshot") != 0 {
		t.Errorf("dry run of a backfill = %v, want 3", rest)
	}
	if filled := must[*adminv1.ActionResult](t)(a.BackfillAggregates(t.Context(), &adminv1.BackfillAggregatesRequest{Type: "video", Confirmed: 3, Reason: "new", Actor: "cid"})); filled.GetDone() != 3 || s.repeated(t, "snapshot") != 3 {
		t.Errorf("backfill = %v with %d pending, want 3", filled, s.repeated(t, "snapshot"))
	}
	var got []string
	for _, e := range must[*adminv1.ListAuditEntriesResponse](t)(a.ListAuditEntries(t.Context(), &adminv1.ListAuditEntriesRequest{})).GetAuditEntries() {
		got = append(got, fmt.Sprint(e.GetAction(), " of ", e.GetItems(), " by ", e.GetActor(), " via ", e.GetVia(), ": ", e.GetReason()))
	}
	want := []string{"outbox.backfill of 3 by cid via api: new", "outbox.republish of 6 by bob via api: lost", "outbox.republish of 2 by ann via api: lost"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

// A backfill that fails in the middle names the cursor with which another call does the rest.
func TestAdminServiceContinuesABackfill(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	if _, err := s.pool.Exec(t.Context(), `
		INSERT INTO video_catalog.videos (id, title, description, release_year, duration_ms, language_code, tags, state, version, create_time, update_time)
		SELECT md5(n::text)::uuid, 'Ran', '', 0, 0, '', '{}', 'draft', 1, now(), now() FROM generate_series(1, 1200) n`); err != nil {
		t.Fatal(err)
	}
	_, a := s.startAdmin(t, "ROLES=api")
	hold, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
	if _, err := hold.Exec(t.Context(), "SELECT FROM video_catalog.videos WHERE id = (SELECT id FROM video_catalog.videos ORDER BY id OFFSET 700 LIMIT 1) FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	request := &adminv1.BackfillAggregatesRequest{Type: "video", Reason: "new", Actor: "ann", Pending: 5000}
	ended := make(chan error, 1)
	go func() {
		_, err := a.BackfillAggregates(t.Context(), request)
		ended <- err
	}()
	const waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	eventually(t, 20*time.Second, "the backfill waits", func() bool { return s.count(t, "SELECT count(*) "+waiting) == 1 })
	if _, err := s.pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) "+waiting); err != nil {
		t.Fatal(err)
	}
	st := status.Convert(<-ended)
	found := regexp.MustCompile(`after 500 of 1200 items, .* with the cursor ([-0-9a-f]{36}) for the rest`).FindStringSubmatch(st.Message())
	if st.Code() != codes.Unavailable || found == nil || s.repeated(t, "snapshot") != 500 || s.audited(t) != 1 {
		t.Fatalf("backfill = %v with %d pending, want UNAVAILABLE after 500", st, s.repeated(t, "snapshot"))
	}
	if err := hold.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := &adminv1.BackfillAggregatesRequest{Type: "video", Reason: "new", Actor: "ann", Pending: 5000, Cursor: found[1]}
	if rest := must[*adminv1.ActionResult](t)(a.BackfillAggregates(t.Context(), next)); rest.GetDone() != 700 {
		t.Errorf("the rest = %v, want 700", rest)
	}
	if got := s.count(t, "SELECT count(DISTINCT aggregate_id) FROM video_catalog.outbox_pending WHERE repeat = 'snapshot'"); got != 1200 {
		t.Errorf("%d videos have a snapshot, want all", got)
	}
}

// Operators see what differs, and repair one entry or all, over gRPC and REST.
func TestAdminServiceComparesAndRepairs(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p, a := s.startAdmin(t, "LAB_RECONCILE_WAIT=200ms")
	ids := s.create(t, p, 4)
	for i, sql := range []string{
		"UPDATE video_catalog_read.video_projection SET title = 'Rashomon' WHERE video_id = $1",
		"DELETE FROM video_catalog_read.video_projection WHERE video_id = $1",
		"UPDATE video_catalog_read.video_projection SET version = 7 WHERE video_id = $1",
	} {
		if _, err := s.pool.Exec(t.Context(), sql, ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	want := &adminv1.CompareProjectionEntriesResponse{Compared: 4, Differences: []*adminv1.ProjectionDifference{
		{AggregateId: ids[0], Kind: adminv1.ProjectionDifference_KIND_DIFFERENT, OwnerVersion: 1, Version: 1, Fields: []string{"title"}},
		{AggregateId: ids[1], Kind: adminv1.ProjectionDifference_KIND_MISSING, OwnerVersion: 1},
		{AggregateId: ids[2], Kind: adminv1.ProjectionDifference_KIND_AHEAD, OwnerVersion: 1, Version: 7},
	}}
	compared := must[*adminv1.CompareProjectionEntriesResponse](t)(a.CompareProjectionEntries(t.Context(), &adminv1.CompareProjectionEntriesRequest{Type: "video"}))
	if diff := cmp.Diff(want, compared, protocmp.Transform()); diff != "" {
		t.Errorf("compare (-want +got):\n%s", diff)
	}
	want = &adminv1.CompareProjectionEntriesResponse{Compared: 2, Differences: want.GetDifferences()[:1]}
	some := new(adminv1.CompareProjectionEntriesResponse)
	a.rest(t, "GET", "/v1/projectionEntries:compare?type=video&ids="+ids[3]+"&ids="+ids[0], "", some)
	if diff := cmp.Diff(want, some, protocmp.Transform()); diff != "" {
		t.Errorf("compare of two over REST (-want +got):\n%s", diff)
	}
	behind := must[*adminv1.CompareProjectionEntriesResponse](t)(a.CompareProjectionEntries(t.Context(), &adminv1.CompareProjectionEntriesRequest{Type: "video", Cursor: ids[1]}))
	if behind.GetCompared() != 2 || len(behind.GetDifferences()) != 1 {
		t.Errorf("compare behind a cursor = %v, want the last of the three", behind)
	}

	rest := new(adminv1.ActionResult)
	if a.rest(t, "POST", "/v1/projectionEntries:repair", `{"type":"video","dryRun":true}`, rest); rest.GetMatched() != 3 || s.audited(t) != 0 {
		t.Errorf("dry run = %v, want 3", rest)
	}
	_, err := a.RepairProjectionEntries(t.Context(), &adminv1.RepairProjectionEntriesRequest{Type: "video", Confirmed: 2, Reason: "x", Actor: "ann"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("repair of more than was confirmed = %v, want FAILED_PRECONDITION", err)
	}
	body := fmt.Sprintf(`{"type":"video","ids":[%q,%q],"reason":"edited by hand","actor":"bob"}`, ids[3], ids[0])
	if a.rest(t, "POST", "/v1/projectionEntries:repair", body, rest); rest.GetDone() != 1 || rest.GetMatched() != 1 {
		t.Errorf("repair of two = %v, want the one that differs", rest)
	}
	all := must[*adminv1.ActionResult](t)(a.RepairProjectionEntries(t.Context(), &adminv1.RepairProjectionEntriesRequest{Type: "video", Confirmed: 2, Reason: "a disk was full", Actor: "ann"}))
	if all.GetDone() != 2 || all.GetNextCursor() != "" {
		t.Errorf("repair of all = %v, want 2", all)
	}
	compared = must[*adminv1.CompareProjectionEntriesResponse](t)(a.CompareProjectionEntries(t.Context(), &adminv1.CompareProjectionEntriesRequest{Type: "video"}))
	if compared.GetCompared() != 4 || len(compared.GetDifferences()) != 0 {
		t.Errorf("compare = %v, want no difference", compared)
	}
	if got := s.count(t, "SELECT sum(items) FROM video_catalog_read.audit WHERE action = 'projection.repair' AND via = 'api'"); got != 3 {
		t.Errorf("the audit has %d repaired entries, want 3", got)
	}
}
