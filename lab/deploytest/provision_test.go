package deploytest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	pubsubapi "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/servicekit/localbroker"
	"example.com/videocatalog/internal/localtopics"
	"example.com/videocatalog/internal/names"
)

// stand is a project in which provision.sh runs, with clients that read the created resources.
type stand struct {
	control *controlPlane
	env     []string
	client  *pubsub.Client
	schemas *pubsubapi.SchemaClient
}

func newStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{control: newControlPlane(project, region)}
	s.control.enabled = nil // a new project
	broker, err := localbroker.Start()
	must(t, err)
	t.Cleanup(func() { broker.Close() })
	must(t, s.control.withPubSub(broker.Addr()))
	s.env = gcloud(t, s.control)
	s.client, err = broker.Client(t.Context(), project)
	must(t, err)
	t.Cleanup(func() { s.client.Close() })
	s.schemas, err = pubsubapi.NewSchemaClient(t.Context(), broker.Options()...)
	must(t, err)
	t.Cleanup(func() { s.schemas.Close() })
	return s
}

// The resources of one topic and of its consumer.
var (
	videoTopic       = names.VideoTopic
	topicName        = "projects/" + project + "/topics/" + videoTopic.Name
	deadTopicName    = "projects/" + project + "/topics/" + videoTopic.Subscription("catalog") + ".dead"
	subscriptionName = "projects/" + project + "/subscriptions/" + videoTopic.Subscription("catalog")
	deadName         = "projects/" + project + "/subscriptions/" + videoTopic.Subscription("catalog") + ".dead"
	schemaName       = "projects/" + project + "/schemas/" + videoTopic.Name
)

func account(name string) string {
	return "serviceAccount:" + name + "@" + project + ".iam.gserviceaccount.com"
}

const pubsubAgent = "serviceAccount:service-123456789012@gcp-sa-pubsub.iam.gserviceaccount.com"

// This is the whole life of a project. A dry run shows every command of the next run. That run creates everything
// correctly, and another one changes nothing. Manual changes are corrected. A failure stops the script with a remedy.
// In the end nothing is left. It is one test because gcloud takes half a second for each of more than a hundred
// commands.
func TestProvisionAndDestroy(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	plan := commands(mustScript(t, s.env, "provision.sh", "--dry-run", project, region))
	if changes := s.control.changed(); len(changes) != 0 {
		t.Errorf("a dry run changed %v, want nothing", changes)
	}
	done := commands(mustScript(t, s.env, "provision.sh", project, region))
	same(t, "what the dry run showed", done, plan)
	t.Run("Pub/Sub is as it should be", s.checkPubSub)
	t.Run("every account has what it needs, and no more", s.checkGrants)
	t.Run("the topic refuses what is no event", s.checkSchema)

	s.control.changed()
	mustScript(t, s.env, "provision.sh", project, region)
	if changes := s.control.changed(); len(changes) != 0 {
		t.Errorf("a second run changed %v, want nothing", changes)
	}

	t.Run("drift is set right, and a failure stops", s.checkDriftAndFailure)

	if out, err := script(t, s.env, "destroy.sh", project, region); err == nil || !strings.Contains(out, "--yes") {
		t.Errorf("destroy.sh without --yes: error %v, output %q, want it to refuse and to name --yes", err, out)
	}
	mustScript(t, s.env, "destroy.sh", "--yes", project, region)
	t.Run("nothing is left", s.checkNothingLeft)
}

// A topic of another project is only subscribed to, by its full name. A subscription to the topic
// of that name in the project itself stops the script.
func TestProvisionSubscribesToAnotherProject(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	deploy := t.TempDir()
	for _, name := range []string{"provision.sh", "lib.sh"} {
		text, err := os.ReadFile(filepath.Join("../../deploy", name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(deploy, name), text, 0o700))
	}
	const theirs = "projects/other-project/topics/parcel.events"
	script := "SERVICE=" + service + "\nTOPICS=()\nSUBSCRIPTIONS=(parcel.events.billing)\nSCHEMA_FILES=()\nREMOTE_TOPICS=(" + theirs + ")\n"
	must(t, os.WriteFile(filepath.Join(deploy, "names.sh"), []byte(script), 0o600))
	_, err := s.client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: theirs})
	must(t, err)
	provision := func() (string, error) {
		return command(t, s.env, filepath.Join(deploy, "provision.sh"), project, region)
	}
	if out, err := provision(); err != nil {
		t.Fatalf("provision.sh: %v\n%s", err, out)
	}
	name := "projects/" + project + "/subscriptions/parcel.events.billing"
	got, err := s.client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: name})
	if err != nil || got.GetTopic() != theirs {
		t.Errorf("subscription = %v, %v, want one of %s", got, err, theirs)
	}
	s.control.changed()
	if out, err := provision(); err != nil || len(s.control.changed()) != 0 {
		t.Errorf("a second run: %v, want that it changes nothing:\n%s", err, out)
	}

	ours := "projects/" + project + "/topics/parcel.events"
	must(t, s.client.SubscriptionAdminClient.DeleteSubscription(t.Context(), &pubsubpb.DeleteSubscriptionRequest{Subscription: name}))
	_, err = s.client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: ours})
	must(t, err)
	_, err = s.client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: name, Topic: ours, EnableMessageOrdering: true})
	must(t, err)
	if out, err := provision(); err == nil || !strings.Contains(out, "has topic "+ours) {
		t.Errorf("provision.sh with a subscription to %s: %v, want it to stop:\n%s", ours, err, out)
	}
}

// commands returns the commands that a script showed.
func commands(out string) []string {
	var shown []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "+ ") {
			shown = append(shown, line)
		}
	}
	return shown
}

func (s *stand) checkPubSub(t *testing.T) {
	topic, err := s.client.TopicAdminClient.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: topicName})
	must(t, err)
	week := durationpb.New(7 * 24 * time.Hour)
	inRegion := &pubsubpb.MessageStoragePolicy{AllowedPersistenceRegions: []string{region}}
	if diff := cmp.Diff(&pubsubpb.Topic{
		Name: topicName, MessageRetentionDuration: week, MessageStoragePolicy: inRegion, State: pubsubpb.Topic_ACTIVE,
		SchemaSettings: &pubsubpb.SchemaSettings{Schema: schemaName, Encoding: pubsubpb.Encoding_BINARY},
	}, topic, protocmp.Transform()); diff != "" {
		t.Errorf("topic (-want +got):\n%s", diff)
	}
	dead, err := s.client.TopicAdminClient.GetTopic(t.Context(), &pubsubpb.GetTopicRequest{Topic: deadTopicName})
	must(t, err)
	if diff := cmp.Diff(&pubsubpb.Topic{Name: deadTopicName, MessageStoragePolicy: inRegion, State: pubsubpb.Topic_ACTIVE},
		dead, protocmp.Transform()); diff != "" {
		t.Errorf("dead-letter topic (-want +got):\n%s", diff)
	}

	// Tests use the same resources as production, except for retention, which costs money.
	_, client := localtopics.Start(t, project, localbroker.Resources{})
	for _, name := range []string{subscriptionName, deadName} {
		request := &pubsubpb.GetSubscriptionRequest{Subscription: name}
		want, err := client.SubscriptionAdminClient.GetSubscription(t.Context(), request)
		must(t, err)
		got, err := s.client.SubscriptionAdminClient.GetSubscription(t.Context(), request)
		must(t, err)
		if name == subscriptionName {
			want.RetainAckedMessages = true
			want.TopicMessageRetentionDuration = week
		}
		want.MessageRetentionDuration = week
		same(t, fmt.Sprintf("subscription %s", name), want, got, protocmp.Transform())
		if ttl := got.GetExpirationPolicy().GetTtl(); got.GetExpirationPolicy() == nil || ttl != nil {
			t.Errorf("subscription %s expires after %v, want never", name, ttl)
		}
	}
}

func (s *stand) checkGrants(t *testing.T) {
	var accounts []string
	for _, name := range s.control.names() {
		if _, email, ok := strings.Cut(name, "/serviceAccounts/"); ok {
			accounts = append(accounts, email)
		}
	}
	var wantAccounts []string
	for _, role := range []string{"-api", "-migrate", "-projector", "-publisher", "-release", ""} {
		wantAccounts = append(wantAccounts, service+role+"@"+project+".iam.gserviceaccount.com")
	}
	same(t, "accounts", wantAccounts, accounts)

	release := account(service + "-release")
	const reads, actAs = "roles/secretmanager.secretAccessor ", "roles/iam.serviceAccountUser "
	lists := "roles/secretmanager.viewer " + release
	inIAM := "projects/" + project + "/serviceAccounts/"
	want := map[string][]string{
		topicName:        {"roles/pubsub.publisher " + account(service), "roles/pubsub.publisher " + account(service+"-publisher")},
		deadTopicName:    {"roles/pubsub.publisher " + pubsubAgent},
		subscriptionName: {"roles/pubsub.subscriber " + pubsubAgent, "roles/pubsub.subscriber " + account(service), "roles/pubsub.subscriber " + account(service+"-projector")},
		deadName:         nil,

		"projects/" + project + "/secrets/" + service + "-database-url":         {reads + account(service), reads + account(service+"-api"), reads + account(service+"-publisher"), lists},
		"projects/" + project + "/secrets/" + service + "-read-database-url":    {reads + account(service), reads + account(service+"-api"), reads + account(service+"-projector"), lists},
		"projects/" + project + "/secrets/" + service + "-migrate-database-url": {reads + account(service+"-migrate"), lists},

		"projects/" + project: {"roles/logging.logWriter " + release, "roles/run.developer " + release, "roles/run.invoker " + release},
		"projects/" + project + "/locations/" + region + "/repositories/" + service: {"roles/artifactregistry.writer " + release},
		inIAM + wantAccounts[4]: {"roles/iam.serviceAccountTokenCreator " + release},
	}
	for _, i := range []int{0, 1, 2, 3, 5} {
		want[inIAM+wantAccounts[i]] = []string{actAs + release}
	}
	for _, role := range []string{"", "-api", "-projector", "-publisher"} {
		observed := account(service + role)
		want["projects/"+project] = append(want["projects/"+project], "roles/telemetry.tracesWriter "+observed, "roles/telemetry.metricsWriter "+observed)
	}
	for resource, grants := range want {
		slices.Sort(grants)
		same(t, fmt.Sprintf("policy of %s", resource), grants, s.control.grants(resource))
	}
	for resource := range s.control.policies { // and on no other resource
		if _, ok := want[resource]; !ok {
			t.Errorf("%s has a policy, want none", resource)
		}
	}
}

func (s *stand) checkSchema(t *testing.T) {
	event, err := os.ReadFile("../../internal/event/testdata/video_published.1.binpb")
	must(t, err)
	for _, test := range []struct {
		name string
		data []byte
		want codes.Code
	}{
		{"an event", event, codes.OK},
		{"no event", []byte{0xff, 0xff}, codes.InvalidArgument},
	} {
		_, err := s.client.TopicAdminClient.Publish(t.Context(), &pubsubpb.PublishRequest{
			Topic: topicName, Messages: []*pubsubpb.PubsubMessage{{Data: test.data}},
		})
		if got := status.Code(err); got != test.want {
			t.Errorf("publish %s: %v, want %v", test.name, err, test.want)
		}
	}
}

// The topic, the subscription and the schema were changed, and IAM refuses a request. The script corrects the first
// three, turns on exactly-once delivery everywhere, and stops at the failure.
func (s *stand) checkDriftAndFailure(t *testing.T) {
	_, err := s.client.TopicAdminClient.UpdateTopic(t.Context(), &pubsubpb.UpdateTopicRequest{
		Topic:      &pubsubpb.Topic{Name: topicName, MessageRetentionDuration: durationpb.New(time.Hour)},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"message_retention_duration"}},
	})
	must(t, err)
	_, err = s.client.SubscriptionAdminClient.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
		Subscription: &pubsubpb.Subscription{Name: subscriptionName, AckDeadlineSeconds: 10},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"ack_deadline_seconds", "retry_policy"}},
	})
	must(t, err)
	schema, err := s.schemas.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: schemaName, View: pubsubpb.SchemaView_FULL})
	must(t, err)
	want := schema.GetDefinition()
	ours := schema.GetRevisionId()
	schema.Definition = strings.Replace(want, "  string event_id = 1;", "  string event_id = 1;\n  string note = 99;", 1)
	_, err = s.schemas.CommitSchema(t.Context(), &pubsubpb.CommitSchemaRequest{Name: schemaName, Schema: schema})
	must(t, err)
	// Pub/Sub accepts each definition only once. So our revision, which is now an earlier one, must be deleted first.
	_, err = s.schemas.DeleteSchemaRevision(t.Context(), &pubsubpb.DeleteSchemaRevisionRequest{Name: schemaName + "@" + ours})
	must(t, err)
	s.control.broken = "projects/" + project + "/serviceAccounts"
	defer func() { s.control.broken = "" }()
	s.control.changed()

	out, err := script(t, s.env, "provision.sh", "--dry-run", "--exactly-once", project, region)
	if changes := s.control.changed(); err == nil || len(changes) != 0 || !strings.Contains(out, "+ gcloud pubsub topics update "+videoTopic.Name) {
		t.Errorf("a dry run: error %v, changes %v, want it to show the update of the topic, and the failure, and to change nothing; output:\n%s", err, changes, out)
	}
	out, err = script(t, s.env, "provision.sh", "--exactly-once", project, region)
	if err == nil || !strings.Contains(out, "remedy: you need roles/iam.serviceAccountAdmin") {
		t.Errorf("provision.sh without permission: error %v, want a failure with its remedy; output:\n%s", err, out)
	}
	var got []string
	for _, change := range s.control.changed() {
		got = append(got, change.String())
	}
	wantChanges := []string{"POST /v1/" + schemaName + ":commit", "PATCH /v1/" + topicName}
	for _, topic := range names.Topics() { // exactly-once delivery is new for all subscriptions
		for _, consumer := range topic.Consumers {
			wantChanges = append(wantChanges, "PATCH /v1/projects/"+project+"/subscriptions/"+topic.Subscription(consumer))
		}
	}
	same(t, "changes", wantChanges, got)
	subscription, err := s.client.SubscriptionAdminClient.GetSubscription(t.Context(), &pubsubpb.GetSubscriptionRequest{Subscription: subscriptionName})
	must(t, err)
	retry := &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(10 * time.Second), MaximumBackoff: durationpb.New(10 * time.Minute)}
	if !subscription.GetEnableExactlyOnceDelivery() || subscription.GetAckDeadlineSeconds() != 60 || !proto.Equal(subscription.GetRetryPolicy(), retry) {
		t.Errorf("subscription = %v, want exactly-once delivery, an ack deadline of 60 s and the retry policy %v", subscription, retry)
	}
	schema, err = s.schemas.GetSchema(t.Context(), &pubsubpb.GetSchemaRequest{Name: schemaName, View: pubsubpb.SchemaView_FULL})
	must(t, err)
	same(t, "schema", want, schema.GetDefinition())
}

func (s *stand) checkNothingLeft(t *testing.T) {
	if names := s.control.names(); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
	if grants := s.control.grants("projects/" + project); len(grants) != 0 {
		t.Errorf("left in the project's policy: %q", grants)
	}
	inProject := "projects/" + project
	for topic, err := range s.client.TopicAdminClient.ListTopics(t.Context(), &pubsubpb.ListTopicsRequest{Project: inProject}).All() {
		t.Errorf("left: topic %v, error %v", topic, err)
	}
	for subscription, err := range s.client.SubscriptionAdminClient.ListSubscriptions(t.Context(), &pubsubpb.ListSubscriptionsRequest{Project: inProject}).All() {
		t.Errorf("left: subscription %v, error %v", subscription, err)
	}
	for schema, err := range s.schemas.ListSchemas(t.Context(), &pubsubpb.ListSchemasRequest{Parent: inProject}).All() {
		t.Errorf("left: schema %v, error %v", schema, err)
	}
}

// Bad arguments are refused before any request.
func TestScriptsRefuseBadArguments(t *testing.T) {
	t.Parallel()
	control, env := newProject(t)
	for _, test := range []struct{ name, script, args, want string }{
		{"no region", "provision.sh", project, "PROJECT REGION"},
		{"a zone", "provision.sh", project + " europe-west1-b", "REGION is"},
		{"a project's name", "destroy.sh", "--yes My_Project " + region, "PROJECT is"},
		{"an unknown option", "provision.sh", "--force " + project + " " + region, "--dry-run"},
		{"an image by tag", "release.sh", "all image:latest " + project + " " + region, "by digest"},
		{"an unknown shape", "release.sh", "some image " + project + " " + region, "SHAPE"},
		{"a version that is no name", "release.sh", "--rollback V_1 all " + project + " " + region, "VERSION is"},
	} {
		out, err := script(t, env, test.script, strings.Fields(test.args)...)
		if err == nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: error %v, want one with %q; output:\n%s", test.name, err, test.want, out)
		}
	}
	if changes := control.changed(); len(changes) != 0 {
		t.Errorf("changed %v, want nothing", changes)
	}
}
