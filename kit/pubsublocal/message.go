package pubsublocal

import (
	"fmt"
	"strconv"
	"time"
	"unique"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// message is a published message. It never changes, and all subscriptions share
// it.
type message struct {
	id      uint64 // increases in the order of publishing, over the whole server
	time    int64  // publish_time in milliseconds since 1970; never decreases from one message of a topic to the next
	key     unique.Handle[string]
	encoded []byte // the PubsubMessage as it is delivered
}

var noKey = unique.Make("")

func (m *message) publishTime() time.Time { return time.UnixMilli(m.time).UTC() }

// decode returns the message in the form of the API.
func (m *message) decode() (*pubsubpb.PubsubMessage, error) {
	decoded := new(pubsubpb.PubsubMessage)
	if err := proto.Unmarshal(m.encoded, decoded); err != nil {
		return nil, fmt.Errorf("decode message %d: %w", m.id, err)
	}
	return decoded, nil
}

// draft is a message without id and publish time.
type draft struct {
	key     string
	encoded []byte // without id and time, with capacity for them
}

// maxStampSize is an upper bound of the bytes that stamp appends.
const maxStampSize = 2 + 20 + 2 + 6 + 1 + 5 + 1

// newDraft encodes a message of a publisher. It drops an id and a publish time
// in it.
func newDraft(m *pubsubpb.PubsubMessage) (draft, error) {
	m.MessageId, m.PublishTime = "", nil
	buffer := make([]byte, 0, proto.Size(m)+maxStampSize)
	encoded, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buffer, m)
	if err != nil {
		return draft{}, fmt.Errorf("encode message: %w", err)
	}
	return draft{key: m.GetOrderingKey(), encoded: encoded}, nil
}

// stamp makes a message of a draft. It appends id and time, because the fields
// of an encoded message may be in any order.
func (d *draft) stamp(id uint64, publishTime int64) *message {
	const messageID, publishTimeField, seconds, nanos = 3, 4, 1, 2
	b := protowire.AppendTag(d.encoded, messageID, protowire.BytesType)
	b = protowire.AppendString(b, strconv.FormatUint(id, 10))
	var timestamp [16]byte
	ts := protowire.AppendTag(timestamp[:0], seconds, protowire.VarintType)
	ts = protowire.AppendVarint(ts, uint64(publishTime/1000)) //nolint:gosec // after 1970
	if ms := publishTime % 1000; ms != 0 {
		ts = protowire.AppendTag(ts, nanos, protowire.VarintType)
		ts = protowire.AppendVarint(ts, uint64(ms*1_000_000)) //nolint:gosec // positive
	}
	b = protowire.AppendTag(b, publishTimeField, protowire.BytesType)
	b = protowire.AppendBytes(b, ts)
	return &message{id: id, time: publishTime, key: unique.Make(d.key), encoded: b}
}
