// Package adminserver serves package admin as AdminService, over gRPC and REST.
//
// It converts requests and results, and decides nothing: package admin checks and acts, the
// same as for the commands of the server. It authenticates nobody. So it belongs on a
// private port, and the audit has the actor that a request names, and the database user.
//
// A process that does not use a side of the service has no store for it. The methods of that
// side are then problem.Precondition.
package adminserver

import (
	"context"
	"crypto/cipher"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	adminv1 "example.com/videocatalog/api/proto/admin/v1"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/problem"
)

const (
	via       = "api" // how an action came, as the audit has it
	maxGroups = 1000
	readRows  = 50 // how many rows of a list are read at a time
)

// The errors of a side that this process does not use.
var (
	errNoOutbox     = problem.Errorf(problem.Precondition, "this process does not use the command side: call one that has the role api or publisher")
	errNoBoth       = problem.Errorf(problem.Precondition, "this process does not use both sides: call one that has the role api, or publisher and projector")
	errNoQuarantine = problem.Errorf(problem.Precondition, "this process does not use the query side: call one that has the role api or projector")
)

// Stores has what AdminService acts on.
type Stores struct {
	Outbox     admin.Outbox     // nil if the process does not use the command side
	Quarantine admin.Quarantine // nil if the process does not use the query side
	Apply      admin.Apply      // applies a message of Quarantine
	// Republish and Backfill act on Outbox.
	Republish, Backfill admin.Repeat
	Projections         *admin.Projections // nil if the process does not use both sides
	Rebuilds            admin.Rebuilds     // of Projections
	Seek                admin.Seeker       // acts on the inbox of the query side, as Quarantine does
}

// New returns AdminService. seal encrypts page tokens.
func New(stores Stores, seal cipher.AEAD) port.Service {
	return port.Service{
		Desc: &adminv1.AdminService_ServiceDesc, Handler: &service{Stores: stores, seal: seal},
		Gateway: func(mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
			return adminv1.RegisterAdminServiceHandlerClient(context.Background(), mux, adminv1.NewAdminServiceClient(conn))
		},
	}
}

type service struct {
	adminv1.UnimplementedAdminServiceServer
	Stores
	seal cipher.AEAD
}

func (s *service) ListBlockedAggregates(ctx context.Context, request *adminv1.ListBlockedAggregatesRequest) (*adminv1.ListBlockedAggregatesResponse, error) {
	if s.Outbox == nil {
		return nil, errNoOutbox
	}
	page, next, err := list(s.seal, request, blockedToProto,
		func(after envelope.Aggregate, maxRows int) ([]admin.Blocked, error) {
			return s.Outbox.ListBlocked(ctx, filterOf(request.GetFilter()), after, maxRows)
		}, func(b admin.Blocked) envelope.Aggregate { return b.Aggregate })
	return &adminv1.ListBlockedAggregatesResponse{BlockedAggregates: page, NextPageToken: next}, err
}

func (s *service) GroupBlockedAggregates(ctx context.Context, _ *adminv1.GroupBlockedAggregatesRequest) (*adminv1.GroupBlockedAggregatesResponse, error) {
	if s.Outbox == nil {
		return nil, errNoOutbox
	}
	groups, err := s.Outbox.GroupBlocked(ctx, maxGroups)
	return &adminv1.GroupBlockedAggregatesResponse{Groups: mapSlice(groups, groupToProto)}, err
}

func (s *service) RequeueBlockedAggregates(ctx context.Context, request *adminv1.RequeueBlockedAggregatesRequest) (*adminv1.ActionResult, error) {
	if s.Outbox == nil {
		return nil, errNoOutbox
	}
	return report(admin.Requeue(ctx, s.Outbox, requestOf(request)))
}

func (s *service) SkipBlockedAggregates(ctx context.Context, request *adminv1.SkipBlockedAggregatesRequest) (*adminv1.ActionResult, error) {
	if s.Outbox == nil {
		return nil, errNoOutbox
	}
	asked := requestOf(request)
	asked.EventID = aip.ID(request.GetEventId())
	return report(admin.Skip(ctx, s.Outbox, asked))
}

func (s *service) RepublishEvents(ctx context.Context, request *adminv1.RepublishEventsRequest) (*adminv1.ActionResult, error) {
	if s.Outbox == nil {
		return nil, errNoOutbox
	}
	asked := repeatOf(requestOf(request), request)
	if request.GetStartTime() != nil {
		asked.From = request.GetStartTime().AsTime()
	}
	if request.GetEndTime() != nil {
		asked.To = request.GetEndTime().AsTime()
	}
	return reportRepeat(s.Republish(ctx, asked))
}

func (s *service) BackfillAggregates(ctx context.Context, request *adminv1.BackfillAggregatesRequest) (*adminv1.ActionResult, error) {
	if s.Outbox == nil {
		return nil, errNoOutbox
	}
	return reportRepeat(s.Backfill(ctx, repeatOf(actionOf(request, admin.Filter{Type: request.GetType()}), request)))
}

func (s *service) CompareProjectionEntries(ctx context.Context, request *adminv1.CompareProjectionEntriesRequest) (*adminv1.CompareProjectionEntriesResponse, error) {
	if s.Projections == nil {
		return nil, errNoBoth
	}
	result, err := s.Projections.Compare(ctx, request.GetType(), mapSlice(request.GetIds(), aip.ID), aip.ID(request.GetCursor()))
	if err != nil {
		return nil, err
	}
	response := &adminv1.CompareProjectionEntriesResponse{Compared: result.Rows, Waiting: result.Pending, Differences: mapSlice(result.Differences, differenceToProto)}
	if result.UpTo != uuid.Max {
		response.NextCursor = result.UpTo.String()
	}
	return response, nil
}

func (s *service) RepairProjectionEntries(ctx context.Context, request *adminv1.RepairProjectionEntriesRequest) (*adminv1.ActionResult, error) {
	if s.Projections == nil {
		return nil, errNoBoth
	}
	filter := admin.Filter{Type: request.GetType(), ID: strings.Join(request.GetIds(), ",")}
	result, err := s.Projections.Repair(ctx, admin.RepairRequest{Request: actionOf(request, filter), After: aip.ID(request.GetCursor())})
	made, err := report(result.Result, err)
	if err == nil {
		made.NextCursor = aip.IDText(result.Stopped)
	}
	return made, err
}

func (s *service) RebuildProjections(ctx context.Context, request *adminv1.RebuildProjectionsRequest) (*adminv1.RebuildProjectionsResponse, error) {
	if s.Projections == nil {
		return nil, errNoBoth
	}
	asked := admin.RebuildRequest{Request: actionOf(request, admin.Filter{Type: request.GetType()}), Restart: request.GetRestart()}
	result, err := s.Rebuilds.Rebuild(ctx, asked)
	if known, ok := errors.AsType[*problem.Error](err); err != nil && (!ok || known.Kind == problem.Unavailable) && result.Entries > 0 {
		err = &problem.Error{
			Kind: problem.Unavailable, Err: err,
			Message: fmt.Sprintf("it stopped after the owner had listed %d entries: call again, and it goes on", result.Entries),
		}
	}
	return rebuiltToProto(result), err
}

func (s *service) InspectProjectionRebuilds(ctx context.Context, request *adminv1.InspectProjectionRebuildsRequest) (*adminv1.InspectProjectionRebuildsResponse, error) {
	if s.Projections == nil {
		return nil, errNoBoth
	}
	state, err := s.Rebuilds.State(ctx, request.GetType())
	return rebuildToProto(state), err
}

func (s *service) SeekSubscriptions(ctx context.Context, request *adminv1.SeekSubscriptionsRequest) (*adminv1.ActionResult, error) {
	if s.Quarantine == nil {
		return nil, errNoQuarantine
	}
	asked := admin.SeekRequest{Request: actionOf(request, admin.Filter{ID: request.GetSubscription()}), From: request.GetStartTime().AsTime()}
	result, err := s.Seek(ctx, asked)
	return report(result.Result, inAPI(err))
}

func (s *service) ListQuarantinedMessages(ctx context.Context, request *adminv1.ListQuarantinedMessagesRequest) (*adminv1.ListQuarantinedMessagesResponse, error) {
	if s.Quarantine == nil {
		return nil, errNoQuarantine
	}
	page, next, err := list(s.seal, request, quarantinedToProto,
		func(after int64, maxRows int) ([]admin.Quarantined, error) {
			return s.Quarantine.ListQuarantine(ctx, filterOf(request.GetFilter()), after, maxRows)
		}, func(m admin.Quarantined) int64 { return m.ID })
	return &adminv1.ListQuarantinedMessagesResponse{QuarantinedMessages: page, NextPageToken: next}, err
}

func (s *service) GroupQuarantinedMessages(ctx context.Context, _ *adminv1.GroupQuarantinedMessagesRequest) (*adminv1.GroupQuarantinedMessagesResponse, error) {
	if s.Quarantine == nil {
		return nil, errNoQuarantine
	}
	groups, err := s.Quarantine.GroupQuarantine(ctx, maxGroups)
	return &adminv1.GroupQuarantinedMessagesResponse{Groups: mapSlice(groups, groupToProto)}, err
}

func (s *service) ReplayQuarantinedMessages(ctx context.Context, request *adminv1.ReplayQuarantinedMessagesRequest) (*adminv1.ActionResult, error) {
	if s.Quarantine == nil {
		return nil, errNoQuarantine
	}
	return report(admin.Replay(ctx, s.Quarantine, s.Apply, requestOf(request)))
}

func (s *service) PurgeQuarantinedMessages(ctx context.Context, request *adminv1.PurgeQuarantinedMessagesRequest) (*adminv1.ActionResult, error) {
	if s.Quarantine == nil {
		return nil, errNoQuarantine
	}
	return report(admin.Delete(ctx, s.Quarantine, requestOf(request)))
}

func (s *service) ListAuditEntries(ctx context.Context, request *adminv1.ListAuditEntriesRequest) (*adminv1.ListAuditEntriesResponse, error) {
	p, err := aip.NewPager[[]int64](s.seal, request)
	if err != nil {
		return nil, err
	}
	var sides []admin.Auditor
	if s.Outbox != nil {
		sides = append(sides, s.Outbox)
	}
	if s.Quarantine != nil {
		sides = append(sides, s.Quarantine)
	}
	var after []int64
	if p.After != nil {
		after = *p.After
	}
	entries, next, err := admin.ListAuditPage(ctx, after, p.Size, sides...)
	if err != nil {
		return nil, err
	}
	page, token, err := aip.PageOf(p, entries, next != nil, entryToProto, func(admin.Entry) []int64 { return next })
	return &adminv1.ListAuditEntriesResponse{AuditEntries: page, NextPageToken: token}, err
}

// list reads a page of items of type T, which follow each other by cursors of type C. It ends
// at aip.MaxPageBytes, too.
func list[C, T any, M proto.Message](seal cipher.AEAD, request aip.ListRequest, toProto func(T) M,
	read func(after C, maxRows int) ([]T, error), cursor func(T) C,
) (page []M, next string, err error) {
	p, err := aip.NewPager[C](seal, request)
	if err != nil {
		return nil, "", err
	}
	var items []T
	var after C
	if p.After != nil {
		after = *p.After
	}
	for bytes := 0; ; {
		maxRows := min(readRows, p.Size-len(items)+1) // one more says whether more follow
		rows, err := read(after, maxRows)
		if err != nil {
			return nil, "", err
		}
		for _, row := range rows {
			if len(items) == p.Size || bytes > aip.MaxPageBytes {
				return aip.PageOf(p, items, true, toProto, cursor)
			}
			items, after = append(items, row), cursor(row)
			bytes += proto.Size(toProto(row))
		}
		if len(rows) < maxRows {
			return aip.PageOf(p, items, false, toProto, cursor)
		}
	}
}

// report returns the result of an action. An error after which some is done says how much.
func report(result admin.Result, err error) (*adminv1.ActionResult, error) {
	return reportFrom(result, err, "call again")
}

// reportRepeat is report for what goes on at a cursor.
func reportRepeat(result admin.RepeatResult, err error) (*adminv1.ActionResult, error) {
	return reportFrom(result.Result, inAPI(err), "call again with the cursor "+result.Last.String())
}

// inAPI returns an error with the name that its field has in the API.
func inAPI(err error) error {
	names := map[string]string{"from": "start_time", "to": "end_time"}
	if known, ok := errors.AsType[*problem.Error](err); ok && names[known.Field] != "" {
		renamed := *known
		renamed.Field = names[known.Field]
		return &renamed
	}
	return err
}

func reportFrom(result admin.Result, err error, next string) (*adminv1.ActionResult, error) {
	if err != nil && result.Done > 0 {
		return nil, &problem.Error{
			Kind: problem.Unavailable, Err: err,
			Message: fmt.Sprintf("it failed after %d of %d items, which stay done: see action %s in the audit, and %s for the rest", result.Done, result.Matched, result.ActionID, next),
		}
	}
	return resultToProto(result), err
}
