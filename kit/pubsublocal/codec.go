package pubsublocal

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec is the protobuf codec, and also sends messages that are encoded
// already. So a delivery builds no PubsubMessage, and a million stored messages
// need no maps.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// encoded is a response in its wire format.
type encoded []byte

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(e)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// parcel is a message that is sent to a subscriber.
type parcel struct {
	ackID   string
	message *message
	attempt int32
}

// encodeParcels encodes a StreamingPullResponse with these parcels. rest is its
// other fields, encoded already.
func encodeParcels(parcels []parcel, rest []byte) encoded {
	const receivedMessages, ackID, messageField, deliveryAttempt = 1, 1, 2, 3
	size := len(rest)
	for _, p := range parcels {
		size += len(p.message.encoded) + len(p.ackID) + 24
	}
	b := make([]byte, 0, size)
	for _, p := range parcels {
		length := protowire.SizeTag(ackID) + protowire.SizeBytes(len(p.ackID)) +
			protowire.SizeTag(messageField) + protowire.SizeBytes(len(p.message.encoded))
		if p.attempt > 0 {
			length += protowire.SizeTag(deliveryAttempt) + protowire.SizeVarint(uint64(p.attempt))
		}
		b = protowire.AppendTag(b, receivedMessages, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(length)) //nolint:gosec // positive
		b = protowire.AppendTag(b, ackID, protowire.BytesType)
		b = protowire.AppendString(b, p.ackID)
		b = protowire.AppendTag(b, messageField, protowire.BytesType)
		b = protowire.AppendBytes(b, p.message.encoded)
		if p.attempt > 0 {
			b = protowire.AppendTag(b, deliveryAttempt, protowire.VarintType)
			b = protowire.AppendVarint(b, uint64(p.attempt))
		}
	}
	return append(b, rest...)
}
