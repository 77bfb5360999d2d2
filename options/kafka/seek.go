package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/operate"
)

// commandTimeout limits the requests of a command to the cluster.
const commandTimeout = time.Minute

// seek sets the offsets of a group to a time, so that its consumer applies the retained events since then once more.
// The group must have no members: they would set the offsets back. Kafka refuses the offsets if one joins meanwhile.
func (s *Settings) seek(ctx context.Context, process *app.Process, args []string, stdout io.Writer) error {
	o, err := operate.ParseSeek(args, process.QueryConsumers())
	if err != nil {
		return app.UsageError(fmt.Errorf("kafka %w", err))
	}
	admin, err := s.admin(process)
	if err != nil {
		return err
	}
	defer admin.Close()
	reading, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	offsets, err := offsetsOf(reading, admin, o.Subscription, o.Since)
	if err != nil {
		return err
	}
	if err := process.OpenQuerySide(ctx); err != nil {
		return err
	}
	return o.Run(ctx, process.QueryPool, stdout, func(ctx context.Context) error {
		committing, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		return admin.CommitAllOffsets(committing, o.Subscription, offsets)
	})
}

// offsetsOf returns the offsets at a time, for a group without members.
func offsetsOf(ctx context.Context, admin *kadm.Client, group string, since time.Time) (kadm.Offsets, error) {
	described, err := admin.DescribeGroups(ctx, group)
	if err = errors.Join(err, described.Error()); err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // no member has ever joined
		return nil, fmt.Errorf("group %s: %w", group, err)
	}
	var members []string
	for _, member := range described[group].Members {
		members = append(members, member.MemberID+" on "+member.ClientHost)
	}
	if len(members) > 0 {
		return nil, fmt.Errorf("group %s has members, which must be stopped first: %s; nothing was changed", group, strings.Join(members, ", "))
	}
	listed, err := admin.ListOffsetsAfterMilli(ctx, since.UnixMilli(), topicOf(group))
	if err = errors.Join(err, listed.Error()); err != nil {
		return nil, fmt.Errorf("topic %s: %w", topicOf(group), err)
	}
	return listed.Offsets(), nil
}
