package adminserver

import (
	"encoding/json"
	"strings"

	adminv1 "example.com/videocatalog/api/proto/admin/v1"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/reconcile"
)

// actionRequest is the request of any action.
type actionRequest interface {
	GetDryRun() bool
	GetConfirmed() int64
	GetReason() string
	GetActor() string
}

func actionOf(r actionRequest, filter admin.Filter) admin.Request {
	return admin.Request{
		Filter: filter, DryRun: r.GetDryRun(), Confirmed: r.GetConfirmed(), Reason: r.GetReason(), Actor: admin.Actor{Name: r.GetActor(), Via: via},
	}
}

// requestOf reads the request of an action that has a filter.
func requestOf(r interface {
	actionRequest
	GetFilter() *adminv1.Filter
	GetAll() bool
}) admin.Request {
	made := actionOf(r, filterOf(r.GetFilter()))
	made.All = r.GetAll()
	return made
}

// repeatOf reads what all requests to publish again have.
func repeatOf(asked admin.Request, r interface {
	GetCursor() string
	GetPending() int32
}) admin.RepeatRequest {
	return admin.RepeatRequest{Request: asked, After: aip.ID(r.GetCursor()), Pending: int(r.GetPending())}
}

func filterOf(f *adminv1.Filter) admin.Filter {
	return admin.Filter{Type: f.GetType(), ID: f.GetId(), Cause: f.GetCause(), Age: f.GetAge().AsDuration()}
}

func filterToProto(f admin.Filter) *adminv1.Filter {
	return &adminv1.Filter{Type: f.Type, Id: f.ID, Cause: f.Cause, Age: aip.Duration(f.Age)}
}

func resultToProto(r admin.Result) *adminv1.ActionResult {
	return &adminv1.ActionResult{
		ActionId: aip.IDText(r.ActionID), Matched: r.Matched, Done: r.Done, Failures: r.Failures,
		Failed: mapSlice(r.Failed, func(f admin.Failure) *adminv1.Failure { return &adminv1.Failure{Id: f.ID, Error: text(f.Cause)} }),
	}
}

func groupToProto(g admin.Group) *adminv1.Group {
	return &adminv1.Group{
		Cause: g.Cause, Sample: text(g.Sample), Items: g.Items, Waiting: g.Waiting, FirstTime: aip.Timestamp(g.First), LastTime: aip.Timestamp(g.Last),
	}
}

func blockedToProto(b admin.Blocked) *adminv1.BlockedAggregate {
	return &adminv1.BlockedAggregate{
		AggregateType: b.Type, AggregateId: b.ID, EventId: aip.IDText(b.EventID), Version: b.Version, Attempts: int32(b.Attempts), //nolint:gosec // an integer of the database
		LastError: text(b.LastError), Cause: b.Cause, RetryTime: aip.Timestamp(b.NextRetry), ParkTime: aip.Timestamp(b.ParkedAt),
	}
}

func quarantinedToProto(m admin.Quarantined) *adminv1.QuarantinedMessage {
	attributes := make(map[string]string, len(m.Attributes))
	for name, value := range m.Attributes {
		attributes[text(name)] = text(value)
	}
	return &adminv1.QuarantinedMessage{
		Id: m.ID, Consumer: m.Consumer, MessageId: text(m.MessageID), OrderingKey: text(m.OrderingKey), Attributes: attributes,
		Reason: text(m.Reason), Cause: m.Cause, PublishTime: aip.Timestamp(m.PublishTime), ReceiveTime: aip.Timestamp(m.ReceivedAt),
		PayloadSize: m.PayloadSize, PayloadSha256: m.PayloadSHA256,
	}
}

var kindsToProto = map[reconcile.Kind]adminv1.ProjectionDifference_Kind{
	reconcile.Missing: adminv1.ProjectionDifference_KIND_MISSING, reconcile.Behind: adminv1.ProjectionDifference_KIND_BEHIND,
	reconcile.Ahead: adminv1.ProjectionDifference_KIND_AHEAD, reconcile.Different: adminv1.ProjectionDifference_KIND_DIFFERENT,
	reconcile.Extra: adminv1.ProjectionDifference_KIND_EXTRA,
}

func differenceToProto(d reconcile.Difference) *adminv1.ProjectionDifference {
	return &adminv1.ProjectionDifference{
		AggregateId: d.ID.String(), Kind: kindsToProto[d.Kind], OwnerVersion: d.OwnerVersion, Version: d.Version, Fields: d.Fields,
	}
}

func rebuiltToProto(r admin.RebuildResult) *adminv1.RebuildProjectionsResponse {
	return &adminv1.RebuildProjectionsResponse{
		ActionId: aip.IDText(r.ActionID), Entries: r.Entries, Compared: r.Compared,
		Missing: r.Missing, Behind: r.Behind, Different: r.Different, Ahead: r.Ahead, Extra: r.Extra,
	}
}

func rebuildToProto(s admin.RebuildState) *adminv1.InspectProjectionRebuildsResponse {
	return &adminv1.InspectProjectionRebuildsResponse{
		Phase:   adminv1.InspectProjectionRebuildsResponse_Phase(adminv1.InspectProjectionRebuildsResponse_Phase_value["PHASE_"+strings.ToUpper(s.Phase)]),
		Running: s.Running, Entries: s.Entries, Generation: s.Generation, StartTime: aip.Timestamp(s.Start), EndTime: aip.Timestamp(s.End),
	}
}

func entryToProto(e admin.Entry) *adminv1.AuditEntry {
	var filter admin.Filter
	_ = json.Unmarshal(e.Filter, &filter) // internal/admin wrote it; what another build wrote may have more
	return &adminv1.AuditEntry{
		ActionId: e.ActionID.String(), CreateTime: aip.Timestamp(e.CreateTime), Actor: e.Name, Via: e.Via, DatabaseUser: e.DatabaseUser,
		Action: e.Action, Filter: filterToProto(filter), Reason: e.Reason, Items: e.Items,
	}
}

func mapSlice[T, M any](items []T, convert func(T) M) []M {
	made := make([]M, len(items))
	for i, item := range items {
		made[i] = convert(item)
	}
	return made
}

// text returns a text that a message can hold: a sender may have sent what is not UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
