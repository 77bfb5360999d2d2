package transport

import (
	"net/url"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func parse(t *testing.T, message proto.Message, query string) error {
	t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	return new(strictQuery).Parse(message, values, utilities.NewDoubleArray([][]string{{"subscription", "name"}}))
}

// A parameter that is unknown or wrong is refused by its name and its rule.
func TestQueryNamesFieldAndRule(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"subscription.ackDeadlineSeconds=x":                                     `subscription.ackDeadlineSeconds: cannot be "x"`,
		"subscription.ackDeadlineSeconds=":                                      `subscription.ackDeadlineSeconds: cannot be ""`,
		"subscription.detached=maybe":                                           `subscription.detached: cannot be "maybe"`,
		"subscription.state=NONE":                                               `subscription.state: cannot be "NONE"`,
		"subscription.expirationPolicy.ttl=x":                                   `subscription.expirationPolicy.ttl: cannot be "x"`,
		"subscription.topic=%ff":                                                `subscription.topic: cannot be "\xff"`,
		"subscription.topic=a&subscription.topic=b":                             `subscription.topic: cannot be "a, b"`,
		"subscription.ackDeadlineSeconds=1&subscription.ack_deadline_seconds=2": `query: duplicate field "subscription.ack_deadline_seconds"`,
		"shade=1":                  "shade: unknown parameter",
		"%ff=1":                    "%FF: unknown parameter",
		"a%20b:=1":                 "a+b%3A: unknown parameter",
		"subscription.name=x":      "subscription.name: unknown parameter", // it is in the path
		"subscription=x":           "subscription: cannot be",
		"subscription.labels=1":    "subscription.labels: cannot be",
		"subscription.topic.x=1":   "subscription.topic.x: unknown parameter",
		"subscription.labels[a]=b": "subscription.labels%5Ba%5D: unknown parameter",
	} {
		if err := parse(t, new(pubsubpb.UpdateSubscriptionRequest), query); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s = %v, want %s", query, err, want)
		}
	}
}

// A query sets fields by their names in JSON and in the contract, and the paths of a mask get
// their names in the contract.
func TestQuerySetsFields(t *testing.T) {
	t.Parallel()
	got := new(pubsubpb.UpdateSubscriptionRequest)
	if err := parse(t, got, "subscription.ackDeadlineSeconds=7&subscription.retain_acked_messages=true&subscription.state=ACTIVE"+
		"&subscription.expirationPolicy.ttl=1.5s&updateMask=ackDeadlineSeconds,push_config.pushEndpoint,*"); err != nil {
		t.Fatal(err)
	}
	want := &pubsubpb.UpdateSubscriptionRequest{
		Subscription: &pubsubpb.Subscription{
			AckDeadlineSeconds: 7, RetainAckedMessages: true, State: pubsubpb.Subscription_ACTIVE,
			ExpirationPolicy: &pubsubpb.ExpirationPolicy{Ttl: &durationpb.Duration{Seconds: 1, Nanos: 500_000_000}},
		},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"ack_deadline_seconds", "push_config.push_endpoint", "*"}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	empty := new(pubsubpb.UpdateSubscriptionRequest)
	if err := parse(t, empty, "updateMask="); err != nil || len(empty.GetUpdateMask().GetPaths()) != 0 {
		t.Errorf("an empty mask = %v, %v, want no path", empty.GetUpdateMask(), err)
	}
}
