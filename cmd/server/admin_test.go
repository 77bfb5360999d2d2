package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "example.com/videocatalog/api/proto/admin/v1"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/names"
)

// adminPort is AdminService of a running server.
type adminPort struct {
	adminv1.AdminServiceClient
	conn *grpc.ClientConn
	addr string
}

// startAdmin starts a server with AdminService.
func (s *stack) startAdmin(t *testing.T, extra ...string) (*process, *adminPort) {
	t.Helper()
	p := s.start(t, append(extra, "ADMIN_ADDR=127.0.0.1:0")...)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.log {
		var line struct{ Message, Addr string }
		if json.Unmarshal([]byte(text), &line) != nil || line.Message != "admin: port open" {
			continue
		}
		conn := dialInsecure(t, line.Addr)
		return p, &adminPort{adminv1.NewAdminServiceClient(conn), conn, line.Addr}
	}
	t.Fatal("the server did not open the port of AdminService")
	return nil, nil
}

func dialInsecure(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// quarantineMany sets messages aside, which this build cannot decode, with ids from 1.
func (s *stack) quarantineMany(t *testing.T, n int) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), `
		INSERT INTO video_catalog_read.quarantine (consumer, message_id, ordering_key, attributes, payload, reason, publish_time, received_at)
		SELECT 'catalog', 'm' || n, 'k' || n, jsonb_build_object('aggregate_type', 'video'), '\x00', CASE WHEN n = 1 THEN E'not \\xff text' ELSE 'version ' || n || ' is unknown' END, now(), now() - interval '2 hours'
		FROM generate_series(1, $1) n`, n); err != nil {
		t.Fatal(err)
	}
}

// parked counts the aggregates that wait for a person.
func (s *stack) parked(t *testing.T) int {
	t.Helper()
	return s.count(t, "SELECT count(*) FROM video_catalog.outbox_blocked WHERE parked_at IS NOT NULL")
}

// send sends a REST request, and returns the status and the body of the response.
func send(t *testing.T, method, url, body string, header http.Header) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	if host := header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// rest calls AdminService over REST, and reads the response into a message.
func (a *adminPort) rest(t *testing.T, method, path, body string, response proto.Message) {
	t.Helper()
	code, text := send(t, method, "http://"+a.addr+path, body, http.Header{"Content-Type": {"application/json"}})
	if code != http.StatusOK {
		t.Fatalf("%s %s = %d %s", method, path, code, text)
	}
	if err := protojson.Unmarshal([]byte(text), response); err != nil {
		t.Fatalf("%s %s = %s: %v", method, path, text, err)
	}
}

// must fails the test with the error of a call.
func must[T any](t *testing.T) func(T, error) T {
	return func(response T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
}

// Operators do the same over gRPC and REST as by command: they see groups and items, count
// first, act, and the audit says who did what, from both sides.
func TestAdminServiceServesOperators(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 120)
	s.quarantineMany(t, 4)
	p, a := s.startAdmin(t)

	groups := must[*adminv1.GroupBlockedAggregatesResponse](t)(a.GroupBlockedAggregates(t.Context(), &adminv1.GroupBlockedAggregatesRequest{}))
	if len(groups.GetGroups()) != 2 || groups.GetGroups()[0].GetWaiting() != 60 || groups.GetGroups()[0].GetFirstTime() == nil {
		t.Fatalf("groups = %v, want two of 60", groups)
	}
	restGroups := new(adminv1.GroupBlockedAggregatesResponse)
	if a.rest(t, "GET", "/v1/blockedAggregates:group", "", restGroups); !proto.Equal(groups, restGroups) {
		t.Errorf("groups over REST = %v, want %v", restGroups, groups)
	}
	filter := &adminv1.Filter{Type: "video", Cause: groups.GetGroups()[0].GetCause(), Age: durationpb.New(time.Hour)}
	var ids []string
	for request := (&adminv1.ListBlockedAggregatesRequest{Filter: filter, PageSize: 25}); ; {
		page := must[*adminv1.ListBlockedAggregatesResponse](t)(a.ListBlockedAggregates(t.Context(), request))
		for _, b := range page.GetBlockedAggregates() {
			if b.GetCause() != filter.GetCause() || b.GetParkTime() == nil || b.GetRetryTime() != nil {
				t.Errorf("listed %v, want it parked for the cause", b)
			}
			ids = append(ids, b.GetAggregateId())
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if len(ids) != 60 || !slices.IsSorted(ids) || len(slices.Compact(ids)) != 60 {
		t.Errorf("listed %q, want 60 in order, each once", ids)
	}
	listed := new(adminv1.ListBlockedAggregatesResponse)
	query := "?pageSize=1000&filter.type=video&filter.age=1h&filter.cause=" + filter.GetCause()
	if a.rest(t, "GET", "/v1/blockedAggregates"+query, "", listed); len(listed.GetBlockedAggregates()) != 60 || listed.GetNextPageToken() != "" {
		t.Errorf("listed %d over REST, want 60", len(listed.GetBlockedAggregates()))
	}

	result := must[*adminv1.ActionResult](t)(a.RequeueBlockedAggregates(t.Context(), &adminv1.RequeueBlockedAggregatesRequest{Filter: filter, DryRun: true}))
	if want := (&adminv1.ActionResult{Matched: 60}); !proto.Equal(result, want) || s.parked(t) != 120 || s.audited(t) != 0 {
		t.Errorf("dry run = %v, want %v, and nothing changed", result, want)
	}
	requeued := must[*adminv1.ActionResult](t)(a.RequeueBlockedAggregates(t.Context(), &adminv1.RequeueBlockedAggregatesRequest{Filter: filter, Confirmed: 60, Reason: "quota is up", Actor: "ann"}))
	if requeued.GetDone() != 60 || requeued.GetActionId() == "" || s.parked(t) != 60 {
		t.Errorf("requeue = %v with %d parked, want 60 and 60", requeued, s.parked(t))
	}
	purged := new(adminv1.ActionResult)
	if a.rest(t, "POST", "/v1/quarantinedMessages:purge", `{"filter":{"id":"2"},"reason":"broken","actor":"bob"}`, purged); purged.GetDone() != 1 {
		t.Errorf("purge = %v, want 1", purged)
	}
	restRequeued := new(adminv1.ActionResult)
	if a.rest(t, "POST", "/v1/blockedAggregates:requeue", `{"all":true,"reason":"rest","actor":"cid"}`, restRequeued); restRequeued.GetDone() != 60 || s.parked(t) != 0 {
		t.Errorf("requeue over REST = %v, want the other 60", restRequeued)
	}

	var got []string
	for request := (&adminv1.ListAuditEntriesRequest{PageSize: 1}); ; {
		page := must[*adminv1.ListAuditEntriesResponse](t)(a.ListAuditEntries(t.Context(), request))
		for _, e := range page.GetAuditEntries() {
			got = append(got, fmt.Sprint(e.GetActionId(), e.GetAction(), e.GetActor(), e.GetVia(), e.GetReason(), e.GetItems(), e.GetFilter().GetId(), e.GetFilter().GetAge().GetSeconds(), e.GetDatabaseUser() != ""))
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	want := []string{
		fmt.Sprint(restRequeued.GetActionId(), admin.ActionRequeue, "cid", "api", "rest", 60, "", 0, true),
		fmt.Sprint(purged.GetActionId(), admin.ActionDelete, "bob", "api", "broken", 1, "2", 0, true),
		fmt.Sprint(requeued.GetActionId(), admin.ActionRequeue, "ann", "api", "quota is up", 60, "", 3600, true),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit, by pages (-want +got):\n%s", diff)
	}
	entries := new(adminv1.ListAuditEntriesResponse)
	if a.rest(t, "GET", "/v1/auditEntries", "", entries); len(entries.GetAuditEntries()) != len(want) {
		t.Errorf("audit over REST = %v, want %d entries", entries, len(want))
	}
	if _, err := p.stop(t); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// A skip gives up the event that it names, and no other. A replay applies what can be
// decoded, and names the rest.
func TestAdminServiceSkipsAndReplays(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, a := s.startAdmin(t, "ROLES=api,projector")
	for _, id := range []string{"v1", "v2"} {
		s.blockEvent(t, id)
	}
	s.quarantineMany(t, 3)
	blocked := must[*adminv1.ListBlockedAggregatesResponse](t)(a.ListBlockedAggregates(t.Context(), &adminv1.ListBlockedAggregatesRequest{})).GetBlockedAggregates()
	if len(blocked) != 2 || blocked[0].GetEventId() == "" || blocked[0].GetVersion() != 1 {
		t.Fatalf("blocked = %v, want two with an event", blocked)
	}
	v1 := &adminv1.Filter{Type: "video", Id: "v1"}
	_, err := a.SkipBlockedAggregates(t.Context(), &adminv1.SkipBlockedAggregatesRequest{Filter: v1, EventId: blocked[1].GetEventId(), Reason: "x", Actor: "ann"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("skip of another event = %v, want NOT_FOUND", err)
	}
	if result := must[*adminv1.ActionResult](t)(a.SkipBlockedAggregates(t.Context(), &adminv1.SkipBlockedAggregatesRequest{Filter: v1, EventId: blocked[0].GetEventId(), Reason: "x", Actor: "ann"})); result.GetDone() != 1 {
		t.Errorf("skip = %v, want 1", result)
	}
	skipped := new(adminv1.ActionResult)
	if a.rest(t, "POST", "/v1/blockedAggregates:skip", `{"all":true,"reason":"x","actor":"ann"}`, skipped); skipped.GetDone() != 1 {
		t.Errorf("skip over REST = %v, want 1", skipped)
	}
	if n := s.count(t, "SELECT count(*) FROM video_catalog.outbox_pending"); n != 0 {
		t.Errorf("%d events are left, want none", n)
	}

	messages := must[*adminv1.ListQuarantinedMessagesResponse](t)(a.ListQuarantinedMessages(t.Context(), &adminv1.ListQuarantinedMessagesRequest{PageSize: 2}))
	if got := messages.GetQuarantinedMessages(); len(got) != 2 || got[0].GetReason() != "not \ufffd text" || got[1].GetAttributes()["aggregate_type"] != "video" || messages.GetNextPageToken() == "" {
		t.Errorf("quarantine = %v, want the first two, in UTF-8", messages)
	}
	listed := new(adminv1.ListQuarantinedMessagesResponse)
	if a.rest(t, "GET", "/v1/quarantinedMessages?filter.id=3", "", listed); len(listed.GetQuarantinedMessages()) != 1 || listed.GetQuarantinedMessages()[0].GetMessageId() != "m3" {
		t.Errorf("quarantine over REST = %v, want m3", listed)
	}
	groups := must[*adminv1.GroupQuarantinedMessagesResponse](t)(a.GroupQuarantinedMessages(t.Context(), &adminv1.GroupQuarantinedMessagesRequest{}))
	restGroups := new(adminv1.GroupQuarantinedMessagesResponse)
	if a.rest(t, "GET", "/v1/quarantinedMessages:group", "", restGroups); !proto.Equal(groups, restGroups) || len(groups.GetGroups()) != 2 || groups.GetGroups()[0].GetItems() != 2 {
		t.Errorf("groups = %v, over REST %v, want two of 2 and 1", groups, restGroups)
	}
	s.makeReplayable(t, 3)
	replayed := must[*adminv1.ActionResult](t)(a.ReplayQuarantinedMessages(t.Context(), &adminv1.ReplayQuarantinedMessagesRequest{All: true, Reason: "newer build", Actor: "ann"}))
	if replayed.GetMatched() != 3 || replayed.GetDone() != 1 || replayed.GetFailures() != 2 || replayed.GetFailed()[0].GetId() != "1" || replayed.GetFailed()[0].GetError() == "" {
		t.Errorf("replay = %v, want the third, and why not the others", replayed)
	}
	again := new(adminv1.ActionResult)
	if a.rest(t, "POST", "/v1/quarantinedMessages:replay", `{"filter":{"type":"video"},"dryRun":true}`, again); again.GetMatched() != 2 || again.GetActionId() != "" {
		t.Errorf("dry run over REST = %v, want 2", again)
	}
	if result := must[*adminv1.ActionResult](t)(a.PurgeQuarantinedMessages(t.Context(), &adminv1.PurgeQuarantinedMessagesRequest{All: true, Reason: "x", Actor: "ann"})); result.GetDone() != 2 {
		t.Errorf("purge = %v, want 2", result)
	}
}

// blockEvent makes a parked aggregate with one event.
func (s *stack) blockEvent(t *testing.T, id string) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), `
		WITH event AS (
			INSERT INTO video_catalog.outbox_pending (lane, id, aggregate_type, aggregate_id, event_type, schema_version, version, payload, occurred_at)
			VALUES (-1, gen_random_uuid(), 'video', $1, 'VideoCreated', 1, 1, '\x00', now())
		)
		INSERT INTO video_catalog.outbox_blocked (aggregate_type, aggregate_id, lane, attempts, last_error, parked_at)
		VALUES ('video', $1, 0, 8, 'refused', now())`, id); err != nil {
		t.Fatal(err)
	}
}

// makeReplayable makes a message in quarantine one that this build can decode.
func (s *stack) makeReplayable(t *testing.T, id int) {
	t.Helper()
	created, err := domain.Create(uuid.Must(uuid.NewV7()), domain.Details{Title: "Ran"}, domain.Stamp{EventID: uuid.Must(uuid.NewV7()), Time: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	message, err := event.Encode(created)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), "UPDATE video_catalog_read.quarantine SET attributes = $2, payload = $3 WHERE id = $1", id, message.Attributes(), message.Payload); err != nil {
		t.Fatal(err)
	}
}

// Wrong requests are refused over gRPC and REST, with the name of the field and the rule,
// and change nothing.
func TestAdminServiceRefusesMistakes(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2)
	s.quarantineMany(t, 2)
	_, a := s.startAdmin(t, "ROLES=api")
	sought := names.TopicOf(event.AggregateVideo).Subscription("catalog")
	all := func(change func(*adminv1.RequeueBlockedAggregatesRequest)) *adminv1.RequeueBlockedAggregatesRequest {
		request := &adminv1.RequeueBlockedAggregatesRequest{All: true, Reason: "x", Actor: "ann"}
		change(request)
		return request
	}
	for name, test := range map[string]struct {
		request     proto.Message // of the method
		method      string
		verb, path  string // of the same over REST
		code        codes.Code
		field, rule string
	}{
		"no filter":            {all(func(r *adminv1.RequeueBlockedAggregatesRequest) { r.All = false }), adminv1.AdminService_RequeueBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:requeue", codes.InvalidArgument, "filter", "must name"},
		"all and a filter":     {all(func(r *adminv1.RequeueBlockedAggregatesRequest) { r.Filter = &adminv1.Filter{Type: "video"} }), adminv1.AdminService_RequeueBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:requeue", codes.InvalidArgument, "all", "must not be set"},
		"no reason":            {all(func(r *adminv1.RequeueBlockedAggregatesRequest) { r.Reason = " " }), adminv1.AdminService_RequeueBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:requeue", codes.InvalidArgument, "reason", "1 to 500 bytes"},
		"long reason":          {all(func(r *adminv1.RequeueBlockedAggregatesRequest) { r.Reason = strings.Repeat("x", 501) }), adminv1.AdminService_RequeueBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:requeue", codes.InvalidArgument, "reason", "1 to 500 bytes"},
		"no actor":             {all(func(r *adminv1.RequeueBlockedAggregatesRequest) { r.Actor = "" }), adminv1.AdminService_RequeueBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:requeue", codes.InvalidArgument, "actor", "1 to 200 bytes"},
		"negative count":       {all(func(r *adminv1.RequeueBlockedAggregatesRequest) { r.Confirmed = -1 }), adminv1.AdminService_RequeueBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:requeue", codes.InvalidArgument, "confirmed", "negative"},
		"more match":           {all(func(r *adminv1.RequeueBlockedAggregatesRequest) { r.Confirmed = 1 }), adminv1.AdminService_RequeueBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:requeue", codes.FailedPrecondition, "", "2 items match now, and 1 were confirmed"},
		"negative age":         {&adminv1.SkipBlockedAggregatesRequest{Filter: &adminv1.Filter{Age: durationpb.New(-time.Hour)}, Reason: "x", Actor: "ann"}, adminv1.AdminService_SkipBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:skip", codes.InvalidArgument, "filter.age", "greater than or equal to 0s"},
		"no event":             {&adminv1.SkipBlockedAggregatesRequest{All: true, EventId: "v1", Reason: "x", Actor: "ann"}, adminv1.AdminService_SkipBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:skip", codes.InvalidArgument, "event_id", "UUID"},
		"the empty event":      {&adminv1.SkipBlockedAggregatesRequest{All: true, EventId: uuid.Nil.String(), Reason: "x", Actor: "ann"}, adminv1.AdminService_SkipBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:skip", codes.InvalidArgument, "event_id", "must not be in list"},
		"one, any event":       {&adminv1.SkipBlockedAggregatesRequest{Filter: &adminv1.Filter{Type: "video", Id: "v1"}, Reason: "x", Actor: "ann"}, adminv1.AdminService_SkipBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:skip", codes.InvalidArgument, "event_id", "must name the first event"},
		"wrong aggregate":      {&adminv1.SkipBlockedAggregatesRequest{Filter: &adminv1.Filter{Type: "video", Id: "v3"}, EventId: uuid.NewString(), Reason: "x", Actor: "ann"}, adminv1.AdminService_SkipBlockedAggregates_FullMethodName, "POST", "/v1/blockedAggregates:skip", codes.NotFound, "", `video "v3" is not blocked`},
		"wrong message":        {&adminv1.PurgeQuarantinedMessagesRequest{Filter: &adminv1.Filter{Id: "7"}, Reason: "x", Actor: "ann"}, adminv1.AdminService_PurgeQuarantinedMessages_FullMethodName, "POST", "/v1/quarantinedMessages:purge", codes.NotFound, "", "message 7 is not in quarantine"},
		"no number":            {&adminv1.ReplayQuarantinedMessagesRequest{Filter: &adminv1.Filter{Id: "m7"}, Reason: "x", Actor: "ann"}, adminv1.AdminService_ReplayQuarantinedMessages_FullMethodName, "POST", "/v1/quarantinedMessages:replay", codes.InvalidArgument, "filter.id", "must be the number"},
		"negative size":        {&adminv1.ListBlockedAggregatesRequest{PageSize: -1}, adminv1.AdminService_ListBlockedAggregates_FullMethodName, "GET", "/v1/blockedAggregates?pageSize=-1", codes.InvalidArgument, "page_size", "greater than or equal to 0"},
		"wrong token":          {&adminv1.ListAuditEntriesRequest{PageToken: "x"}, adminv1.AdminService_ListAuditEntries_FullMethodName, "GET", "/v1/auditEntries?pageToken=x", codes.InvalidArgument, "page_token", "last response"},
		"events, no filter":    {&adminv1.RepublishEventsRequest{Reason: "x", Actor: "ann"}, adminv1.AdminService_RepublishEvents_FullMethodName, "POST", "/v1/events:republish", codes.InvalidArgument, "filter", "must name"},
		"events by cause":      {&adminv1.RepublishEventsRequest{Filter: &adminv1.Filter{Cause: "x"}, Reason: "x", Actor: "ann"}, adminv1.AdminService_RepublishEvents_FullMethodName, "POST", "/v1/events:republish", codes.InvalidArgument, "filter", "must have only a type and an id"},
		"events of nobody":     {&adminv1.RepublishEventsRequest{Filter: &adminv1.Filter{Type: "parcel"}, Reason: "x", Actor: "ann"}, adminv1.AdminService_RepublishEvents_FullMethodName, "POST", "/v1/events:republish", codes.InvalidArgument, "filter.type", "must be one of the aggregate types"},
		"no such events":       {&adminv1.RepublishEventsRequest{Filter: &adminv1.Filter{Id: uuid.Nil.String()}, Reason: "x", Actor: "ann"}, adminv1.AdminService_RepublishEvents_FullMethodName, "POST", "/v1/events:republish", codes.NotFound, "", "no such event"},
		"before 1970":          {&adminv1.RepublishEventsRequest{All: true, StartTime: timestamppb.New(time.Unix(-1, 0)), Reason: "x", Actor: "ann"}, adminv1.AdminService_RepublishEvents_FullMethodName, "POST", "/v1/events:republish", codes.InvalidArgument, "start_time", "1970"},
		"end before start":     {&adminv1.RepublishEventsRequest{All: true, StartTime: timestamppb.New(time.Unix(9, 0)), EndTime: timestamppb.New(time.Unix(8, 0)), Reason: "x", Actor: "ann"}, adminv1.AdminService_RepublishEvents_FullMethodName, "POST", "/v1/events:republish", codes.InvalidArgument, "end_time", "must be later than"},
		"no cursor":            {&adminv1.RepublishEventsRequest{All: true, Cursor: "x", Reason: "x", Actor: "ann"}, adminv1.AdminService_RepublishEvents_FullMethodName, "POST", "/v1/events:republish", codes.InvalidArgument, "cursor", "UUID"},
		"too many pending":     {&adminv1.BackfillAggregatesRequest{Type: "video", Pending: 100_001, Reason: "x", Actor: "ann"}, adminv1.AdminService_BackfillAggregates_FullMethodName, "POST", "/v1/aggregates:backfill", codes.InvalidArgument, "pending", "100000"},
		"backfill of nobody":   {&adminv1.BackfillAggregatesRequest{Type: "parcel", Reason: "x", Actor: "ann"}, adminv1.AdminService_BackfillAggregates_FullMethodName, "POST", "/v1/aggregates:backfill", codes.InvalidArgument, "type", "must be one of the aggregate types"},
		"backfill, no actor":   {&adminv1.BackfillAggregatesRequest{Type: "video", Reason: "x"}, adminv1.AdminService_BackfillAggregates_FullMethodName, "POST", "/v1/aggregates:backfill", codes.InvalidArgument, "actor", "1 to 200 bytes"},
		"compare, no type":     {&adminv1.CompareProjectionEntriesRequest{}, adminv1.AdminService_CompareProjectionEntries_FullMethodName, "GET", "/v1/projectionEntries:compare", codes.InvalidArgument, "type", "at least 1"},
		"compare nothing":      {&adminv1.CompareProjectionEntriesRequest{Type: "parcel"}, adminv1.AdminService_CompareProjectionEntries_FullMethodName, "GET", "/v1/projectionEntries:compare?type=parcel", codes.InvalidArgument, "type", "that can be compared: video"},
		"compare no id":        {&adminv1.CompareProjectionEntriesRequest{Type: "video", Ids: []string{"7"}}, adminv1.AdminService_CompareProjectionEntries_FullMethodName, "GET", "/v1/projectionEntries:compare?type=video&ids=7", codes.InvalidArgument, "ids[0]", "UUID"},
		"repair, no reason":    {&adminv1.RepairProjectionEntriesRequest{Type: "video", Actor: "ann"}, adminv1.AdminService_RepairProjectionEntries_FullMethodName, "POST", "/v1/projectionEntries:repair", codes.InvalidArgument, "reason", "1 to 500 bytes"},
		"repair what is equal": {&adminv1.RepairProjectionEntriesRequest{Type: "video", Ids: []string{uuid.NewString()}, Reason: "x", Actor: "ann"}, adminv1.AdminService_RepairProjectionEntries_FullMethodName, "POST", "/v1/projectionEntries:repair", codes.NotFound, "", "no such entry of video differs"},
		"rebuild, no type":     {&adminv1.RebuildProjectionsRequest{Reason: "x", Actor: "ann"}, adminv1.AdminService_RebuildProjections_FullMethodName, "POST", "/v1/projections:rebuild", codes.InvalidArgument, "type", "at least 1"},
		"rebuild nothing":      {&adminv1.RebuildProjectionsRequest{Type: "parcel", Reason: "x", Actor: "ann"}, adminv1.AdminService_RebuildProjections_FullMethodName, "POST", "/v1/projections:rebuild", codes.InvalidArgument, "type", "that can be rebuilt: video"},
		"rebuild, no reason":   {&adminv1.RebuildProjectionsRequest{Type: "video", Actor: "ann"}, adminv1.AdminService_RebuildProjections_FullMethodName, "POST", "/v1/projections:rebuild", codes.InvalidArgument, "reason", "1 to 500 bytes"},
		"rebuild, no actor":    {&adminv1.RebuildProjectionsRequest{Type: "video", Reason: "x"}, adminv1.AdminService_RebuildProjections_FullMethodName, "POST", "/v1/projections:rebuild", codes.InvalidArgument, "actor", "1 to 200 bytes"},
		"rebuild, negative":    {&adminv1.RebuildProjectionsRequest{Type: "video", Confirmed: -1, Reason: "x", Actor: "ann"}, adminv1.AdminService_RebuildProjections_FullMethodName, "POST", "/v1/projections:rebuild", codes.InvalidArgument, "confirmed", "negative"},
		"inspect nothing":      {&adminv1.InspectProjectionRebuildsRequest{Type: "parcel"}, adminv1.AdminService_InspectProjectionRebuilds_FullMethodName, "GET", "/v1/projectionRebuilds:inspect?type=parcel", codes.InvalidArgument, "type", "that can be rebuilt: video"},
		"seek nothing":         {&adminv1.SeekSubscriptionsRequest{Subscription: "parcels", StartTime: timestamppb.New(time.Unix(9, 0)), Reason: "x", Actor: "ann"}, adminv1.AdminService_SeekSubscriptions_FullMethodName, "POST", "/v1/subscriptions:seek", codes.InvalidArgument, "subscription", "one of the query side: " + sought},
		"seek without a time":  {&adminv1.SeekSubscriptionsRequest{Subscription: sought, Reason: "x", Actor: "ann"}, adminv1.AdminService_SeekSubscriptions_FullMethodName, "POST", "/v1/subscriptions:seek", codes.InvalidArgument, "start_time", "required"},
		"seek the future":      {&adminv1.SeekSubscriptionsRequest{Subscription: sought, StartTime: timestamppb.New(time.Now().Add(time.Hour)), Reason: "x", Actor: "ann"}, adminv1.AdminService_SeekSubscriptions_FullMethodName, "POST", "/v1/subscriptions:seek", codes.InvalidArgument, "start_time", "in the future"},
		"seek before 1970":     {&adminv1.SeekSubscriptionsRequest{Subscription: sought, StartTime: timestamppb.New(time.Unix(-1, 0)), Reason: "x", Actor: "ann"}, adminv1.AdminService_SeekSubscriptions_FullMethodName, "POST", "/v1/subscriptions:seek", codes.InvalidArgument, "start_time", "1970"},
		"seek, no reason":      {&adminv1.SeekSubscriptionsRequest{Subscription: sought, StartTime: timestamppb.New(time.Unix(9, 0)), Actor: "ann"}, adminv1.AdminService_SeekSubscriptions_FullMethodName, "POST", "/v1/subscriptions:seek", codes.InvalidArgument, "reason", "1 to 500 bytes"},
		"age of a list":        {&adminv1.ListQuarantinedMessagesRequest{Filter: &adminv1.Filter{Age: durationpb.New(-time.Second)}}, adminv1.AdminService_ListQuarantinedMessages_FullMethodName, "GET", "/v1/quarantinedMessages?filter.age=-1s", codes.InvalidArgument, "filter.age", "greater than or equal to 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			st := status.Convert(a.conn.Invoke(t.Context(), test.method, test.request, new(adminv1.ActionResult)))
			if st.Code() != test.code || !strings.Contains(st.Message(), test.rule) || fieldOf(st) != test.field {
				t.Errorf("%s = %v, want %s about %q with %q", test.method, st, test.code, test.field, test.rule)
			}
			body := ""
			if test.verb == "POST" {
				text, err := protojson.Marshal(test.request)
				if err != nil {
					t.Fatal(err)
				}
				body = string(text)
			}
			code, text := send(t, test.verb, "http://"+a.addr+test.path, body, http.Header{"Content-Type": {"application/json"}})
			var refused struct {
				Error struct{ Status, Message string }
			}
			if err := json.Unmarshal([]byte(text), &refused); err != nil || code != runtime.HTTPStatusFromCode(test.code) || !strings.Contains(refused.Error.Message, test.rule) {
				t.Errorf("%s %s = %d %s, want %s with %q", test.verb, test.path, code, text, test.code, test.rule)
			}
		})
	}
	for _, query := range []string{"?filter.typ=video", "?filter.age.seconds=5", "?filter.type.x=1", "?page=1"} {
		if code, text := send(t, "GET", "http://"+a.addr+"/v1/blockedAggregates"+query, "", nil); code != 400 || !strings.Contains(text, "unknown parameter") {
			t.Errorf("GET %s = %d %s, want 400 for an unknown parameter", query, code, text)
		}
	}
	changed := s.count(t, "SELECT (SELECT count(*) FROM video_catalog_read.rebuilds) + (SELECT count(*) FROM video_catalog_read.inbox_generations)")
	if s.parked(t) != 2 || s.audited(t) != 0 || changed != 0 || s.count(t, "SELECT count(*) FROM video_catalog_read.quarantine") != 2 {
		t.Errorf("%d parked, %d in the audit, want 2 and none", s.parked(t), s.audited(t))
	}
}

// fieldOf returns the field that a status names; empty: none.
func fieldOf(st *status.Status) string {
	for _, detail := range st.Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok && len(bad.GetFieldViolations()) == 1 {
			return bad.GetFieldViolations()[0].GetField()
		}
	}
	return ""
}

// Of several callers who do the same at once, each item is changed for one.
func TestAdminServiceServesTwoAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2500)
	s.quarantineMany(t, 60)
	_, a := s.startAdmin(t, "ROLES=api")
	var wg sync.WaitGroup
	requeued, purged := make([]int64, 4), make([]int64, 4)
	for i := range requeued {
		wg.Go(func() {
			result, err := a.RequeueBlockedAggregates(t.Context(), &adminv1.RequeueBlockedAggregatesRequest{All: true, Reason: "x", Actor: fmt.Sprint("caller ", i)})
			if err != nil {
				t.Errorf("requeue = %v", err)
			}
			requeued[i] = result.GetDone()
		})
		wg.Go(func() {
			result, err := a.PurgeQuarantinedMessages(t.Context(), &adminv1.PurgeQuarantinedMessagesRequest{All: true, Reason: "x", Actor: fmt.Sprint("caller ", i)})
			if err != nil {
				t.Errorf("purge = %v", err)
			}
			purged[i] = result.GetDone()
		})
	}
	wg.Wait()
	sum := func(n []int64) (total int64) {
		for _, each := range n {
			total += each
		}
		return total
	}
	if sum(requeued) != 2500 || sum(purged) != 60 || s.parked(t) != 0 {
		t.Errorf("requeued %v, purged %v, %d still parked, want 2,500 and 60 together", requeued, purged, s.parked(t))
	}
	if n := s.count(t, "SELECT (SELECT sum(items) FROM video_catalog.audit) + (SELECT sum(items) FROM video_catalog_read.audit)"); n != 2560 {
		t.Errorf("the audit has %d items, want 2,560", n)
	}
}

// Nothing of AdminService is at the public port, and nothing of the API at its own.
func TestAdminServiceIsPrivate(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2)
	p, a := s.startAdmin(t, "ROLES=api", "SERVER_CORS_ORIGINS=*")
	public := adminv1.NewAdminServiceClient(p.conn)
	if _, err := public.RequeueBlockedAggregates(t.Context(), &adminv1.RequeueBlockedAggregatesRequest{All: true, Reason: "x", Actor: "x"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("requeue at the public port = %v, want UNIMPLEMENTED", err)
	}
	for verb, path := range map[string]string{"GET": "/v1/auditEntries", "POST": "/v1/blockedAggregates:requeue"} {
		if code, text := send(t, verb, "http://"+p.addr+path, "", nil); code != 404 {
			t.Errorf("%s %s at the public port = %d %s, want 404", verb, path, code, text)
		}
	}
	if _, text := send(t, "GET", "http://"+p.addr+"/openapi.json", "", nil); strings.Contains(text, "admin.v1") || strings.Contains(text, "auditEntries") || !strings.Contains(text, "/v1/videos") {
		t.Error("/openapi.json of the public port describes AdminService")
	}
	if code, _ := send(t, "GET", "http://"+a.addr+"/v1/videos", "", nil); code != 404 {
		t.Errorf("GET /v1/videos at the port of AdminService = %d, want 404", code)
	}
	for name, test := range map[string]struct {
		conn *grpc.ClientConn
		want []bool // whether it knows the service, a message, and the file
	}{"public": {p.conn, []bool{false, false, false}}, "own": {a.conn, []bool{true, true, true}}} {
		got := []bool{
			knows(t, test.conn, &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "admin.v1.AdminService"}}),
			knows(t, test.conn, &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "admin.v1.Filter"}}),
			knows(t, test.conn, &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileByFilename{FileByFilename: "admin/v1/admin_service.proto"}}),
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("reflection of the %s port (-want +got):\n%s", name, diff)
		}
		if !knows(t, test.conn, &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "google.rpc.ErrorInfo"}}) {
			t.Errorf("reflection of the %s port does not know the details of errors", name)
		}
	}
	for _, method := range methods() {
		if strings.HasPrefix(method, "admin.") {
			t.Errorf("a policy can name %s", method)
		}
	}
	if s.parked(t) != 2 {
		t.Errorf("%d are parked, want 2", s.parked(t))
	}
}

// knows asks the reflection of a server.
func knows(t *testing.T, conn *grpc.ClientConn, request *reflectionpb.ServerReflectionRequest) bool {
	t.Helper()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return response.GetFileDescriptorResponse() != nil
}

// A page in a browser cannot act: neither by what it may send without asking first, nor with
// a name that it has given the address of the port. Nor if pages may call the public port.
func TestAdminServiceRefusesPages(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2)
	_, a := s.startAdmin(t, "ROLES=api", "SERVER_CORS_ORIGINS=*")
	const body = `{"all":true,"reason":"x","actor":"x"}`
	url := "http://" + a.addr + "/v1/blockedAggregates:requeue"
	for name, test := range map[string]struct {
		header http.Header
		code   int
	}{
		"a form":                   {http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {"https://evil.example.com"}}, 403},
		"text":                     {http.Header{"Content-Type": {"text/plain"}, "Origin": {"https://evil.example.com"}}, 403},
		"text without an origin":   {http.Header{"Content-Type": {"text/plain"}}, 415},
		"JSON":                     {http.Header{"Content-Type": {"application/json"}, "Origin": {"https://evil.example.com"}}, 403},
		"a form of a sandbox":      {http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {"null"}}, 403},
		"a site of the same host":  {http.Header{"Content-Type": {"application/json"}, "Origin": {"http://127.0.0.1:1"}}, 403},
		"another name of the port": {http.Header{"Content-Type": {"application/json"}, "Origin": {"http://evil.example.com"}, "Host": {"evil.example.com"}, "X-Forwarded-Host": {"localhost"}}, 403},
	} {
		if code, text := send(t, "POST", url, body, test.header); code != test.code {
			t.Errorf("POST of %s = %d %s, want %d", name, code, text, test.code)
		}
	}
	if code, text := send(t, "GET", "http://"+a.addr+"/v1/blockedAggregates", "", http.Header{"Host": {"evil.example.com:9091"}}); code != 403 {
		t.Errorf("GET by another name = %d %s, want 403", code, text)
	}
	if s.parked(t) != 2 || s.audited(t) != 0 {
		t.Errorf("%d are parked, want 2", s.parked(t))
	}
	for _, host := range []string{"localhost:9091", "[::1]:9091", a.addr} {
		if code, text := send(t, "GET", "http://"+a.addr+"/v1/blockedAggregates", "", http.Header{"Host": {host}}); code != 200 {
			t.Errorf("GET of %s = %d %s, want 200", host, code, text)
		}
	}
	// curl without a content type sends that of a form.
	if code, text := send(t, "POST", url, body, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}); code != 200 || s.parked(t) != 0 {
		t.Errorf("POST of curl = %d %s, want 200", code, text)
	}
}

// A process serves the side that it has, and says what it lacks.
func TestAdminServiceOfOneSide(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.quarantineMany(t, 1)
	_, publisher := s.startAdmin(t, "ROLES=publisher", "DATABASE_MAX_CONNS=8")
	_, projector := s.startAdmin(t, "ROLES=projector", "DATABASE_MAX_CONNS=8")
	commands := func(a *adminPort) map[string]error {
		errs := make(map[string]error)
		_, errs["list"] = a.ListBlockedAggregates(t.Context(), &adminv1.ListBlockedAggregatesRequest{})
		_, errs["group"] = a.GroupBlockedAggregates(t.Context(), &adminv1.GroupBlockedAggregatesRequest{})
		_, errs["requeue"] = a.RequeueBlockedAggregates(t.Context(), &adminv1.RequeueBlockedAggregatesRequest{All: true, DryRun: true})
		_, errs["skip"] = a.SkipBlockedAggregates(t.Context(), &adminv1.SkipBlockedAggregatesRequest{All: true, DryRun: true})
		_, errs["republish"] = a.RepublishEvents(t.Context(), &adminv1.RepublishEventsRequest{All: true, DryRun: true})
		_, errs["backfill"] = a.BackfillAggregates(t.Context(), &adminv1.BackfillAggregatesRequest{Type: "video", DryRun: true})
		return errs
	}
	queries := func(a *adminPort) map[string]error {
		errs := make(map[string]error)
		_, errs["list"] = a.ListQuarantinedMessages(t.Context(), &adminv1.ListQuarantinedMessagesRequest{})
		_, errs["group"] = a.GroupQuarantinedMessages(t.Context(), &adminv1.GroupQuarantinedMessagesRequest{})
		_, errs["replay"] = a.ReplayQuarantinedMessages(t.Context(), &adminv1.ReplayQuarantinedMessagesRequest{All: true, DryRun: true})
		_, errs["purge"] = a.PurgeQuarantinedMessages(t.Context(), &adminv1.PurgeQuarantinedMessagesRequest{All: true, DryRun: true})
		_, errs["seek"] = a.SeekSubscriptions(t.Context(), &adminv1.SeekSubscriptionsRequest{
			Subscription: names.TopicOf(event.AggregateVideo).Subscription("catalog"), StartTime: timestamppb.New(time.Unix(9, 0)), DryRun: true,
		})
		return errs
	}
	both := func(a *adminPort) map[string]error {
		errs := make(map[string]error)
		_, errs["compare"] = a.CompareProjectionEntries(t.Context(), &adminv1.CompareProjectionEntriesRequest{Type: "video"})
		_, errs["rebuild"] = a.RebuildProjections(t.Context(), &adminv1.RebuildProjectionsRequest{Type: "video", DryRun: true})
		_, errs["inspect"] = a.InspectProjectionRebuilds(t.Context(), &adminv1.InspectProjectionRebuildsRequest{Type: "video"})
		_, errs["repair"] = a.RepairProjectionEntries(t.Context(), &adminv1.RepairProjectionEntriesRequest{Type: "video", DryRun: true})
		return errs
	}
	for _, test := range []struct {
		name string
		errs map[string]error
		code codes.Code
		want string
	}{
		{"both sides of a publisher", both(publisher), codes.FailedPrecondition, "publisher and projector"},
		{"both sides of a projector", both(projector), codes.FailedPrecondition, "publisher and projector"},
		{"commands of a publisher", commands(publisher), codes.OK, ""},
		{"queries of a publisher", queries(publisher), codes.FailedPrecondition, "role api or projector"},
		{"commands of a projector", commands(projector), codes.FailedPrecondition, "role api or publisher"},
		{"queries of a projector", queries(projector), codes.OK, ""},
	} {
		for method, err := range test.errs {
			if status.Code(err) != test.code || !strings.Contains(status.Convert(err).Message(), test.want) {
				t.Errorf("%s: %s = %v, want %s with %q", test.name, method, err, test.code, test.want)
			}
		}
	}
	must[*adminv1.ActionResult](t)(projector.PurgeQuarantinedMessages(t.Context(), &adminv1.PurgeQuarantinedMessagesRequest{All: true, Reason: "x", Actor: "ann"}))
	for a, want := range map[*adminPort]int{publisher: 0, projector: 1} {
		if got := must[*adminv1.ListAuditEntriesResponse](t)(a.ListAuditEntries(t.Context(), &adminv1.ListAuditEntriesRequest{})); len(got.GetAuditEntries()) != want {
			t.Errorf("audit = %v, want %d entries", got, want)
		}
	}
}

// If an action fails in the middle, its caller hears how much is done, which stays done.
func TestAdminServiceTellsWhatIsDone(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.parkMany(t, 2500)
	_, a := s.startAdmin(t, "ROLES=api")
	hold, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
	// The last key is in the third transaction.
	if _, err := hold.Exec(t.Context(), "SELECT FROM video_catalog.outbox_blocked WHERE aggregate_id = 'v999' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := a.RequeueBlockedAggregates(t.Context(), &adminv1.RequeueBlockedAggregatesRequest{All: true, Reason: "x", Actor: "ann"})
		ended <- err
	}()
	const waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	eventually(t, 20*time.Second, "the action waits", func() bool { return s.count(t, "SELECT count(*) "+waiting) == 1 })
	if _, err := s.pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) "+waiting); err != nil {
		t.Fatal(err)
	}
	if st := status.Convert(<-ended); st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "after 2000 of 2500 items") {
		t.Errorf("requeue = %v, want UNAVAILABLE after 2,000", st)
	}
	if s.parked(t) != 500 || s.audited(t) != 2 {
		t.Errorf("%d parked, %d in the audit, want 500 and 2", s.parked(t), s.audited(t))
	}
}

// A page ends early if its items are large, so that every client can receive it.
func TestAdminServiceLimitsPages(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.quarantineMany(t, 120)
	if _, err := s.pool.Exec(t.Context(), `UPDATE video_catalog_read.quarantine SET attributes = jsonb_build_object('long', repeat('x', 90000))`); err != nil {
		t.Fatal(err)
	}
	_, a := s.startAdmin(t, "ROLES=api")
	var ids []int64
	pages := 0
	for request := (&adminv1.ListQuarantinedMessagesRequest{PageSize: 1000}); ; pages++ {
		page := must[*adminv1.ListQuarantinedMessagesResponse](t)(a.ListQuarantinedMessages(t.Context(), request))
		for _, m := range page.GetQuarantinedMessages() {
			ids = append(ids, m.GetId())
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if len(ids) != 120 || !slices.IsSorted(ids) || len(slices.Compact(ids)) != 120 || pages < 9 {
		t.Errorf("%d messages in %d pages, want 120 in order, in pages of 1 MiB", len(ids), pages)
	}
}
