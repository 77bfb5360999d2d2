package pubsublocal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The kinds of records. Numbers are varints. Texts and bytes follow their
// length. Each id is stored as the difference from the id before it.
const (
	recordCounters     = iota + 1 // last id, last mark, number of starts
	recordTopic                   // last id, number, gone, last time, first retained id, Topic
	recordSubscription            // last id, mark, number of topic, Subscription
	recordSnapshot                // last id, number of topic, Snapshot, ids
	recordSchema                  // name, Schema of each revision; none: deleted
	recordDeleted                 // name
	recordPublished               // number of topic, then of each message: id, 2·time + retained, encoded
	recordAcknowledged            // mark, retained, ids
	recordReset                   // mark, number of topic, retained until, ids, acknowledged ids
)

const recordHeader = 5 // kind and length of the body

// appendRecord appends a record. body appends the body.
func appendRecord(b []byte, kind byte, body func([]byte) []byte) []byte {
	b = append(b, kind, 0, 0, 0, 0)
	start := len(b)
	b = body(b)
	binary.LittleEndian.PutUint32(b[start-4:], uint32(len(b)-start)) //nolint:gosec // no record has 4 GB
	return b
}

func appendNumber(b []byte, v uint64) []byte { return protowire.AppendVarint(b, v) }

func appendFlag(b []byte, v bool) []byte { return protowire.AppendVarint(b, protowire.EncodeBool(v)) }

func appendID(b []byte, last, id uint64) []byte {
	return protowire.AppendVarint(b, protowire.EncodeZigZag(int64(id-last))) //nolint:gosec // overflow is undone when it is read
}

func appendIDs(b []byte, ids []uint64) []byte {
	var packed []byte
	var last uint64
	for _, id := range ids {
		packed = appendID(packed, last, id)
		last = id
	}
	return protowire.AppendBytes(b, packed)
}

func appendMessage(b []byte, id uint64, publishTime int64, retained bool, encoded []byte) []byte {
	b = appendNumber(b, id)
	b = appendNumber(b, uint64(publishTime)<<1|protowire.EncodeBool(retained)) //nolint:gosec // after 1970
	return protowire.AppendBytes(b, encoded)
}

func appendProto(b []byte, m proto.Message) []byte {
	encoded, _ := proto.Marshal(m) // it cannot fail: all texts were checked to be valid UTF-8
	return protowire.AppendBytes(b, encoded)
}

// frameHeader is the size of the header of a frame: the length and the checksum
// of its records.
const frameHeader = 8

var checksums = crc32.MakeTable(crc32.Castagnoli)

// sealFrame writes the header at the start of b.
func sealFrame(b []byte) {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-frameHeader)) //nolint:gosec // no frame has 4 GB
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[frameHeader:], checksums))
}

// fields reads the body of a record. After an error, all values are zero.
type fields struct {
	b   []byte
	err error
}

var errBadRecord = errors.New("a record that this program did not write")

func (f *fields) take(n int) bool {
	if n < 0 {
		f.b, f.err = nil, errBadRecord
		return false
	}
	f.b = f.b[n:]
	return true
}

func (f *fields) number() uint64 {
	v, n := protowire.ConsumeVarint(f.b)
	if !f.take(n) {
		return 0
	}
	return v
}

func (f *fields) time() int64  { return int64(f.number()) }  //nolint:gosec // as it was written
func (f *fields) mark() uint32 { return uint32(f.number()) } //nolint:gosec // as it was written
func (f *fields) flag() bool   { return protowire.DecodeBool(f.number()) }
func (f *fields) text() string { return string(f.bytes()) }
func (f *fields) more() bool   { return len(f.b) > 0 }
func (f *fields) bytes() []byte {
	v, n := protowire.ConsumeBytes(f.b)
	if !f.take(n) {
		return nil
	}
	return v
}

func (f *fields) ids() []uint64 {
	packed := fields{b: f.bytes()}
	var ids []uint64
	var last uint64
	for packed.more() {
		last += uint64(protowire.DecodeZigZag(packed.number())) //nolint:gosec // undoes the overflow of appendID
		ids = append(ids, last)
	}
	f.err = cmp.Or(f.err, packed.err)
	return ids
}

func (f *fields) message(m proto.Message) {
	if err := proto.Unmarshal(f.bytes(), m); err != nil {
		f.b, f.err = nil, errBadRecord
	}
}

// next reads the next message of a recordPublished.
func (f *fields) next() (m messageImage, encoded []byte) {
	m.id = f.number()
	stamp := f.number()
	m.time, m.retained = int64(stamp>>1), stamp&1 == 1
	return m, f.bytes()
}

// eachRecord calls f with each record of a frame.
func eachRecord(records []byte, f func(kind byte, body *fields) error) error {
	for len(records) > 0 {
		if len(records) < recordHeader {
			return errBadRecord
		}
		kind, length := records[0], int64(binary.LittleEndian.Uint32(records[1:]))
		if length > int64(len(records)-recordHeader) {
			return errBadRecord
		}
		body := &fields{b: records[recordHeader:][:length]}
		if err := f(kind, body); err != nil {
			return err
		}
		if body.err != nil {
			return body.err
		}
		records = records[recordHeader+length:]
	}
	return nil
}
