package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/servicekit/pubsublocal"
)

// seedVariable matches PUBSUB_PROJECT1=demo,topic1:sub1, as the docker image
// messagebird/gcloud-pubsub-emulator reads it. An empty value is an unset one.
var seedVariable = regexp.MustCompile(`^(PUBSUB_PROJECT\d+)=(.+)$`)

// seed creates the topics and subscriptions that the environment names. Those
// that exist are kept.
func seed(ctx context.Context, server *pubsublocal.Server, environ []string) error {
	for _, variable := range environ {
		match := seedVariable.FindStringSubmatch(variable)
		if match == nil {
			continue
		}
		if err := seedProject(ctx, server, match[2]); err != nil {
			return fmt.Errorf("%s is %q: it must be PROJECT,TOPIC:SUBSCRIPTION:...,TOPIC,...: %w", match[1], match[2], err)
		}
	}
	return nil
}

func seedProject(ctx context.Context, server *pubsublocal.Server, value string) error {
	project, topics, found := strings.Cut(value, ",")
	if !found {
		return fmt.Errorf("there is no topic after %q", project)
	}
	client, err := server.Client(ctx, project)
	if err != nil {
		return err
	}
	defer client.Close()
	for names := range strings.SplitSeq(topics, ",") {
		topic, subscriptions, found := strings.Cut(names, ":")
		topic = "projects/" + project + "/topics/" + topic
		_, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: topic})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("create %s: %s", topic, status.Convert(err).Message())
		}
		if !found {
			continue
		}
		for name := range strings.SplitSeq(subscriptions, ":") {
			if err := seedSubscription(ctx, client, topic, "projects/"+project+"/subscriptions/"+name); err != nil {
				return err
			}
		}
	}
	return nil
}

func seedSubscription(ctx context.Context, client *pubsub.Client, topic, name string) error {
	_, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{Name: name, Topic: topic})
	if status.Code(err) == codes.AlreadyExists {
		var existing *pubsubpb.Subscription
		existing, err = client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: name})
		if existing.GetTopic() != "" && existing.GetTopic() != topic {
			return fmt.Errorf("%s exists already, for %s", name, existing.GetTopic())
		}
	}
	if err != nil {
		return fmt.Errorf("create %s: %s", name, status.Convert(err).Message())
	}
	return nil
}
