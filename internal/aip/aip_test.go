package aip

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"example.com/videocatalog/internal/problem"
)

// A name has its collection and one canonical id, and nothing else.
func TestParseName(t *testing.T) {
	t.Parallel()
	const id = "01890a5d-ac96-7f00-8b02-0c0d0e0f1003"
	if got, err := ParseName("name", "books/", "books/"+id); err != nil || got.String() != id {
		t.Errorf("ParseName() = %s, %v, want %s", got, err, id)
	}
	for _, name := range []string{
		"", "books/", id, "shelves/" + id, "books/" + id + "/", "books/urn:uuid:" + id, "books/{" + id + "}", "books/01890A5D-AC96-7F00-8B02-0C0D0E0F1003",
	} {
		if _, err := ParseName("name", "books/", name); !isInvalid(err, "name") {
			t.Errorf("ParseName(%q) = %v, want Invalid about name", name, err)
		}
	}
}

// An etag is read as it was written. An empty etag matches any version, and any other text none.
func TestParseEtag(t *testing.T) {
	t.Parallel()
	for etag, want := range map[string]int64{"": 0, Etag(1): 1, Etag(12345): 12345, "1": -1, `"0"`: -1, `"-1"`: -1, `"01"`: -1, `W/"1"`: -1, `"x"`: -1, `"*"`: -1} {
		if got := ParseEtag(etag); got != want {
			t.Errorf("ParseEtag(%s) = %d, want %d", etag, got, want)
		}
	}
}

// Ids and times keep their values. An invalid id and an unset time are empty.
func TestValues(t *testing.T) {
	t.Parallel()
	ids := []uuid.UUID{uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003"), uuid.Nil}
	if got := Each([]string{ids[0].String(), ids[1].String()}, ID); !slices.Equal(got, ids) {
		t.Errorf("Each() = %v, want %v", got, ids)
	}
	if got := ID("no id"); got != uuid.Nil {
		t.Errorf("ID() = %s, want uuid.Nil", got)
	}
	for _, at := range []time.Time{{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} {
		if got := IfSet(Timestamp(at), (*timestamppb.Timestamp).AsTime); !got.Equal(at) {
			t.Errorf("IfSet() = %s, want %s", got, at)
		}
	}
}

// subscription has messages in messages, a map, a duration and fields of the server.
func subscription() *pubsubpb.Subscription {
	return &pubsubpb.Subscription{
		Name: "new", AckDeadlineSeconds: 20, Labels: map[string]string{"a": "new"}, State: pubsubpb.Subscription_ACTIVE,
		DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{MaxDeliveryAttempts: 7},
		PushConfig: &pubsubpb.PushConfig{
			PushEndpoint: "new", AuthenticationMethod: &pubsubpb.PushConfig_OidcToken_{OidcToken: &pubsubpb.PushConfig_OidcToken{Audience: "new"}},
		},
		ExpirationPolicy: &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(time.Hour)},
	}
}

// A mask changes fields inside a message and leaves the others. Without a mask, the
// fields that are not empty change.
func TestMaskGoesIntoMessages(t *testing.T) {
	t.Parallel()
	old := func() *pubsubpb.Subscription {
		return &pubsubpb.Subscription{
			Name: "old", AckDeadlineSeconds: 10, Labels: map[string]string{"b": "old"},
			DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "old", MaxDeliveryAttempts: 5},
			PushConfig: &pubsubpb.PushConfig{
				PushEndpoint: "old", AuthenticationMethod: &pubsubpb.PushConfig_OidcToken_{OidcToken: &pubsubpb.PushConfig_OidcToken{Audience: "old", ServiceAccountEmail: "old"}},
			},
		}
	}
	for name, test := range map[string]struct {
		mask []string
		want func(*pubsubpb.Subscription)
	}{
		"inside": {[]string{"push_config.push_endpoint"}, func(s *pubsubpb.Subscription) { s.PushConfig.PushEndpoint = "new" }},
		"deeper": {[]string{"push_config.oidc_token.audience"}, func(s *pubsubpb.Subscription) { s.GetPushConfig().GetOidcToken().Audience = "new" }},
		"to nothing": {[]string{"dead_letter_policy.dead_letter_topic", "push_config.oidc_token.service_account_email"}, func(s *pubsubpb.Subscription) {
			s.DeadLetterPolicy.DeadLetterTopic, s.GetPushConfig().GetOidcToken().ServiceAccountEmail = "", ""
		}},
		"of one that is not set": {[]string{"expiration_policy.ttl"}, func(s *pubsubpb.Subscription) { s.ExpirationPolicy = subscription().GetExpirationPolicy() }},
		"whole":                  {[]string{"dead_letter_policy"}, func(s *pubsubpb.Subscription) { s.DeadLetterPolicy.Reset(); s.DeadLetterPolicy.MaxDeliveryAttempts = 7 }},
		"whole and inside":       {[]string{"dead_letter_policy.max_delivery_attempts", "dead_letter_policy"}, func(s *pubsubpb.Subscription) { s.DeadLetterPolicy.Reset(); s.DeadLetterPolicy.MaxDeliveryAttempts = 7 }},
		"of the server":          {[]string{"name", "state", "labels"}, func(s *pubsubpb.Subscription) { s.Labels = map[string]string{"a": "new"} }},
		"no mask": {nil, func(s *pubsubpb.Subscription) {
			s.AckDeadlineSeconds, s.Labels, s.ExpirationPolicy = 20, map[string]string{"a": "new"}, subscription().GetExpirationPolicy()
			s.DeadLetterPolicy.MaxDeliveryAttempts, s.PushConfig.PushEndpoint, s.GetPushConfig().GetOidcToken().Audience = 7, "new", "new"
		}},
		"all": {[]string{"*"}, func(s *pubsubpb.Subscription) { s.Reset(); proto.Merge(s, subscription()); s.Name, s.State = "old", 0 }},
	} {
		mask := &fieldmaskpb.FieldMask{Paths: test.mask}
		if err := CheckMask(mask, subscription()); err != nil {
			t.Errorf("%s: CheckMask() = %v, want nil", name, err)
		}
		want := old()
		test.want(want)
		if got := Merged(mask, old(), subscription()); !proto.Equal(got, want) {
			t.Errorf("%s: Merged() = %v, want %v", name, got, want)
		}
	}
}

// A field that only the server sets is dropped from a request, at any depth. No mask changes or empties it.
func TestOutputOnly(t *testing.T) {
	t.Parallel()
	of := func(table string, state pubsubpb.BigQueryConfig_State) *pubsubpb.Subscription {
		return &pubsubpb.Subscription{State: pubsubpb.Subscription_State(state), BigqueryConfig: &pubsubpb.BigQueryConfig{Table: table, State: state}}
	}
	current, update := of("old", pubsubpb.BigQueryConfig_ACTIVE), of("new", pubsubpb.BigQueryConfig_NOT_FOUND)
	for _, test := range []struct {
		mask   []string
		update *pubsubpb.Subscription
		table  string
	}{
		{[]string{"*"}, update, "new"},
		{[]string{"*"}, &pubsubpb.Subscription{}, ""},
		{[]string{"bigquery_config"}, update, "new"},
		{[]string{"bigquery_config.table", "bigquery_config.state", "state"}, update, "new"},
		{nil, update, "new"},
	} {
		mask := &fieldmaskpb.FieldMask{Paths: test.mask}
		if err := CheckMask(mask, test.update); err != nil {
			t.Errorf("CheckMask(%q) = %v, want nil", test.mask, err)
		}
		if got, want := Merged(mask, current, test.update), of(test.table, pubsubpb.BigQueryConfig_ACTIVE); !proto.Equal(got, want) {
			t.Errorf("Merged(%q) = %v, want %v", test.mask, got, want)
		}
	}
	got := &pubsubpb.ListSubscriptionsResponse{Subscriptions: []*pubsubpb.Subscription{update, {}}}
	DropOutputOnly(got.ProtoReflect())
	if want := (&pubsubpb.ListSubscriptionsResponse{Subscriptions: []*pubsubpb.Subscription{of("new", 0), {}}}); !proto.Equal(got, want) {
		t.Errorf("DropOutputOnly() = %v, want %v", got, want)
	}
}

// A path into a field that is changed as a whole is refused. The error names the path and the field.
func TestMaskEndsAtValues(t *testing.T) {
	t.Parallel()
	for path, rule := range map[string]string{
		"labels.a":                          `"labels.a" goes into "labels", which can only be changed as a whole`,
		"push_config.attributes.a":          `goes into "push_config.attributes", which`,
		"ack_deadline_seconds.x":            `goes into "ack_deadline_seconds", which`,
		"message_retention_duration.nanos":  `goes into "message_retention_duration", which`,
		"message_transforms.disabled":       `goes into "message_transforms", which`,
		"push_config.push_endpoint.x":       `goes into "push_config.push_endpoint", which`,
		"nothing":                           `"nothing" is no field: "Subscription" has no "nothing"`,
		"":                                  `is no field: "Subscription" has no ""`,
		"push_config.shade":                 `is no field: "push_config" has no "shade"`,
		"push_config.":                      `is no field: "push_config" has no ""`,
		"push_config.*":                     `is no field: "push_config" has no "*"`,
		"topic_message_retention_duration.": `goes into "topic_message_retention_duration", which`, // of the server
	} {
		err := CheckMask(&fieldmaskpb.FieldMask{Paths: []string{path}}, subscription())
		if !isInvalid(err, "update_mask") || !strings.Contains(err.Error(), rule) {
			t.Errorf("CheckMask(%q) = %v, want it to contain %q", path, err, rule)
		}
	}
}

// The rules of a field inside a message apply if the update changes the field.
func TestRulesApplyToChangedFields(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mask, message, field string
		want                 bool
	}{
		{"push_config.push_endpoint", "", "push_config", true},
		{"push_config.push_endpoint", "", "labels", false},
		{"push_config.push_endpoint", "", "", false}, // a rule of the whole resource
		{"push_config.push_endpoint", "push_config", "push_endpoint", true},
		{"push_config.push_endpoint", "push_config", "attributes", false},
		{"push_config.push_endpoint", "push_config", "", false},
		{"push_config.push_endpoint,push_config", "push_config", "attributes", true},
		{"push_config", "push_config", "attributes", true},
		{"push_config", "push_config", "", true},
		{"", "push_config", "attributes", false}, // it is empty
		{"", "push_config", "push_endpoint", true},
		{"*", "", "topic", true},
		{"*", "push_config", "attributes", true},
	} {
		request := &pubsubpb.UpdateSubscriptionRequest{Subscription: subscription()}
		if test.mask != "" {
			request.UpdateMask = &fieldmaskpb.FieldMask{Paths: strings.Split(test.mask, ",")}
		}
		message := request.GetSubscription().ProtoReflect()
		if test.message != "" {
			message = message.Get(message.Descriptor().Fields().ByTextName(test.message)).Message()
		}
		var rulesOf protoreflect.Descriptor = message.Descriptor()
		if test.field != "" {
			rulesOf = message.Descriptor().Fields().ByTextName(test.field)
		}
		if got := RulesFor(request).ShouldValidate(message, rulesOf); got != test.want {
			t.Errorf("mask %q: rules of %q in %q apply = %t, want %t", test.mask, test.field, test.message, got, test.want)
		}
	}
}

// pageSize returns the size of the page that List asks for.
func pageSize(given int32) (size int, err error) {
	_, _, err = List(&pubsubpb.ListTopicsRequest{PageSize: given}, func(int) *pubsubpb.Topic { return nil }, func(int) int { return 0 },
		func(_ *int, asked int) ([]int, bool, error) { size = asked; return nil, false, nil })
	return size, err
}

// A page has 50 items unless the caller says how many, and at most 1000.
func TestPageSize(t *testing.T) {
	t.Parallel()
	for size, want := range map[int32]int{0: 50, 1: 1, 1000: 1000, 1001: 1000, math.MaxInt32: 1000} {
		if got, err := pageSize(size); err != nil || got != want {
			t.Errorf("size of page_size %d = %d, %v, want %d", size, got, err, want)
		}
	}
	if _, err := pageSize(-1); !isInvalid(err, "page_size") {
		t.Errorf("List() with the size -1 = %v, want Invalid about page_size", err)
	}
}

func isInvalid(err error, field string) bool {
	known, ok := errors.AsType[*problem.Error](err)
	return ok && known.Kind == problem.Invalid && known.Field == field
}

// A token is refused if it is of another request, is not whole, or has a character that PostgreSQL cannot store.
func TestTokens(t *testing.T) {
	t.Parallel()
	tokens := NewTokens(&pubsubpb.ListTopicsRequest{Project: "one"}, "page_token")
	other := NewTokens(&pubsubpb.ListTopicsRequest{Project: "two"}, "page_token")
	for title, isValid := range map[string]bool{"Ran": true, `\u0000`: true, "愛": true, "a\x00b": false, "\\\x00": false} {
		token, err := tokens.Encode(title)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := tokens.Decode(token, &got); (err == nil) != isValid || isValid && got != title {
			t.Errorf("the token of %q has %q, %v, want valid: %t", title, got, err, isValid)
		}
		for name, wrong := range map[string]string{"cut": token[:len(token)-4], "short": "AAAA", "changed": "B" + token[1:], "no base64": token + "!"} {
			if err := tokens.Decode(wrong, &got); !isInvalid(err, "page_token") {
				t.Errorf("a token that is %s: %v, want Invalid about page_token", name, err)
			}
		}
		if err := other.Decode(token, &got); !isInvalid(err, "page_token") {
			t.Errorf("a token of another request: %v, want Invalid about page_token", err)
		}
	}
}
