package replay

import (
	"context"
	"fmt"
	"io"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/operate"
)

// seek makes Pub/Sub deliver the retained messages of a subscription since a time again.
func seek(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	if process.Broker != "pubsub" {
		return app.UsageError(fmt.Errorf("seek is for Pub/Sub: use the command of BROKER=%s, if it has one, such as `server kafka seek`", process.Broker))
	}
	s, err := operate.ParseSeek(args, process.QueryConsumers())
	if err != nil {
		return app.UsageError(err)
	}
	if err := process.OpenQuerySide(ctx); err != nil {
		return err
	}
	var client *pubsub.Client
	if !s.DryRun {
		if client, err = process.PubSub(ctx); err != nil { // leaves the inbox as it is
			return err
		}
	}
	return s.Run(ctx, process.QueryPool, stdout, func(ctx context.Context) error {
		_, err := client.SubscriptionAdminClient.Seek(ctx, &pubsubpb.SeekRequest{
			Subscription: fmt.Sprintf("projects/%s/subscriptions/%s", client.Project(), s.Subscription),
			Target:       &pubsubpb.SeekRequest_Time{Time: timestamppb.New(s.Since)},
		})
		return err
	})
}
