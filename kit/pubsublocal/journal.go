package pubsublocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	journalMagic = "pubsublocal journal "
	// journalHeader is the start of the file. Its number changes with the format.
	journalHeader = journalMagic + "1\n"

	journalFile, newJournalFile, lockFile = "journal", "journal.new", "lock"

	// syncInterval is the time between two calls of fsync. A call returns after its
	// change is written to the file: a crash of the process, even by SIGKILL, loses
	// nothing that a call has confirmed, and a crash of the machine up to that time.
	syncInterval = 10 * time.Millisecond
	// smallestCompaction is the smallest file in bytes that is rewritten.
	smallestCompaction = 64 << 20
	// idReserve is how far message ids jump at a start. Before a crash, a
	// subscriber may have received a message that the file does not have. Its id
	// must not be used again.
	idReserve = 1 << 20
)

// journal stores what survives a restart: topics, subscriptions, snapshots,
// schemas, and the messages that any of them needs. Leases and counts of attempts
// do not survive. A nil journal stores nothing.
//
// The journal is a file of records in the order of events. A record is added to a
// buffer, under the lock of the resource that it is about. The lock of the
// buffer, mu, comes after all other locks. One goroutine writes the buffer as a
// frame with a checksum, and then wakes everybody who waits. A crash
// during a write leaves either the whole frame or an incomplete one, which the
// next start drops.
//
// Publish waits for its frame, and so do changes of resources. Delivery does not
// wait: after a crash, a message may be lost that a subscriber has received but
// whose Publish has not returned. Acks are written within 10 ms, and nobody waits
// for them: after a crash, a message may be delivered again. The ack of an
// ordered message is written when all before it are acknowledged.
//
// After a failed write nothing more is written, and everybody who waits gets the
// error. The file still has everything that was confirmed.
//
// The file is rewritten with only the live data at every start, and when it has
// doubled since. This reads the file and not the server, so it needs no lock and
// delays nobody. It takes about 3 µs of CPU and up to 100 bytes of memory per
// message in the file.
type journal struct {
	log     *slog.Logger
	now     func() time.Time
	folder  *os.Root
	lock    *os.File
	minimum atomic.Int64 // size in bytes from which the file is rewritten

	wake      chan struct{} // somebody waits for a write
	stir      chan struct{} // there is something to write, within syncInterval
	quit      chan struct{}
	quitOnce  sync.Once
	ended     chan struct{}
	endErr    error // written before ended is closed
	compacted chan compaction

	mu      sync.Mutex
	buffer  []byte   // guarded by mu: the next frame, after room for its header
	spare   []byte   // guarded by mu: becomes the next buffer
	next    *commit  // guarded by mu: commit of buffer
	writing *commit  // guarded by mu: commit of the frame that is being written
	acks    ackBatch // guarded by mu: acks that come after buffer
	err     error    // guarded by mu: why nothing more is written; nil: no error

	// Owned by the goroutine that writes.
	file     *os.File
	unsynced bool
	live     int64 // size of the file when it was last rewritten

	size atomic.Int64 // size of the file; changed only by the goroutine that writes
}

// commit is a write that may not be finished. A nil commit is finished.
type commit struct {
	done chan struct{}
	err  error // written before done is closed
}

// wait waits until the records of the commit are written. An error
// is INTERNAL, which publishers retry: if the server restarts while they retry,
// nothing is lost.
func (c *commit) wait() error {
	if c == nil {
		return nil
	}
	<-c.done
	return c.err
}

func (c *commit) finish(err error) {
	if c == nil {
		return
	}
	if err != nil {
		c.err = status.Errorf(codes.Internal, "Nothing can be saved any more: %v. The server must be restarted.", err)
	}
	close(c.done)
}

func failedCommit(err error) *commit {
	c := &commit{done: make(chan struct{})}
	c.finish(err)
	return c
}

// ackBatch is consecutive acks of one subscription.
type ackBatch struct {
	mark     uint32
	retained bool
	last     uint64
	ids      []byte // the acks, encoded; empty: there are none
}

var errJournalClosed = errors.New("the server is closed")

// add appends a record to the buffer. It returns the commit to wait for.
func (j *journal) add(kind byte, body func([]byte) []byte) *commit {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sealAcks()
	if j.err != nil {
		return failedCommit(j.err)
	}
	j.buffer = appendRecord(j.buffer, kind, body)
	signal(j.wake)
	return j.promise()
}

// promise returns the commit of the buffer. It is called with mu held.
func (j *journal) promise() *commit {
	if j.next == nil {
		j.next = &commit{done: make(chan struct{})}
	}
	return j.next
}

// sealAcks appends the collected acks to the buffer as a record. It is called
// with mu held.
func (j *journal) sealAcks() {
	if len(j.acks.ids) == 0 {
		return
	}
	j.buffer = appendRecord(j.buffer, recordAcknowledged, func(b []byte) []byte {
		b = appendNumber(b, uint64(j.acks.mark))
		b = appendFlag(b, j.acks.retained)
		return protowire.AppendBytes(b, j.acks.ids)
	})
	j.acks = ackBatch{ids: j.acks.ids[:0]}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// topic adds a record with the current state of a topic. It is called without the
// lock of the topic.
func (j *journal) topic(t *topic) *commit {
	if j == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return j.add(recordTopic, func(b []byte) []byte {
		retained := uint64(math.MaxUint64)
		if t.log.len() > 0 {
			retained = t.log.at(0).id
		}
		return appendTopic(b, t.server.lastID.Load(), t.number, t.gone.Load(), t.lastTime, retained, t.cfg)
	})
}

func appendTopic(b []byte, lastID, number uint64, gone bool, lastTime int64, retained uint64, cfg *pubsubpb.Topic) []byte {
	b = appendNumber(b, lastID)
	b = appendNumber(b, number)
	b = appendFlag(b, gone)
	b = appendNumber(b, uint64(lastTime)) //nolint:gosec // after 1970
	b = appendNumber(b, retained)
	return appendProto(b, cfg)
}

// subscription adds a record with the settings of a subscription. It is called
// without the lock of the subscription.
func (j *journal) subscription(s *subscription) *commit {
	if j == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server.subscriptions.get(s.name) != s {
		return nil // it was deleted meanwhile, and a record would restore it
	}
	return j.add(recordSubscription, func(b []byte) []byte {
		return appendSubscription(b, s.server.lastID.Load(), s.mark, s.topic.number, s.cfg)
	})
}

func appendSubscription(b []byte, lastID uint64, mark uint32, topicNumber uint64, cfg *pubsubpb.Subscription) []byte {
	b = appendNumber(b, lastID)
	b = appendNumber(b, uint64(mark))
	b = appendNumber(b, topicNumber)
	return appendProto(b, cfg)
}

// snapshot adds a record with the current state of a snapshot. It is called
// without the lock of its topic.
func (j *journal) snapshot(s *snapshot) *commit {
	if j == nil {
		return nil
	}
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return j.add(recordSnapshot, func(b []byte) []byte {
		return appendSnapshot(b, s.topic.server.lastID.Load(), s.topic.number, s.cfg, messageIDs(slices.Concat(s.unacked, s.later)))
	})
}

func appendSnapshot(b []byte, lastID, topicNumber uint64, cfg *pubsubpb.Snapshot, ids []uint64) []byte {
	b = appendNumber(b, lastID)
	b = appendNumber(b, topicNumber)
	b = appendProto(b, cfg)
	return appendIDs(b, ids)
}

func messageIDs(messages []*message) []uint64 {
	ids := make([]uint64, len(messages))
	for i, m := range messages {
		ids[i] = m.id
	}
	return ids
}

// schema adds a record with all revisions of a schema. It waits for the write,
// because its caller cannot.
func (j *journal) schema(name string, revisions []*pubsubpb.Schema) {
	if j == nil {
		return
	}
	// An error is logged by fail, and every later call returns it.
	_ = j.add(recordSchema, func(b []byte) []byte { return appendSchema(b, name, revisions) }).wait()
}

func appendSchema(b []byte, name string, revisions []*pubsubpb.Schema) []byte {
	b = protowire.AppendString(b, name)
	for _, revision := range revisions {
		b = appendProto(b, revision)
	}
	return b
}

// deleted adds a record of the deletion of a topic, a subscription or a snapshot.
func (j *journal) deleted(name string) *commit {
	if j == nil {
		return nil
	}
	return j.add(recordDeleted, func(b []byte) []byte { return protowire.AppendString(b, name) })
}

// published adds a record of new messages. It is called with the lock of the
// topic held, before any subscription has the messages.
func (j *journal) published(t *topic, messages []*message) *commit {
	if j == nil {
		return nil
	}
	return j.add(recordPublished, func(b []byte) []byte {
		b = appendNumber(b, t.number)
		for _, m := range messages {
			b = appendMessage(b, m.id, m.time, t.retention.Load() > 0, m.encoded)
		}
		return b
	})
}

// acknowledged records that a subscription is done with a message. It is called
// with the lock of the subscription held.
func (j *journal) acknowledged(s *subscription, d *delivery) {
	if j == nil {
		return
	}
	retained := s.cfg.GetRetainAckedMessages()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return
	}
	if j.acks.mark != s.mark || j.acks.retained != retained {
		j.sealAcks()
		j.acks.mark, j.acks.retained = s.mark, retained
	}
	j.acks.ids = appendID(j.acks.ids, j.acks.last, d.message.id)
	j.acks.last = d.message.id
	j.promise()
	signal(j.stir)
}

// reset adds a record of what a subscription has after a seek. It is called with
// the lock of the subscription held.
func (j *journal) reset(s *subscription) *commit {
	if j == nil {
		return nil
	}
	var unacked, acked []uint64
	for i := range s.backlog.len() {
		unacked = append(unacked, s.backlog.at(i).message.id)
	}
	for i := range s.acked.len() {
		acked = append(acked, s.acked.at(i).id)
	}
	var until int64
	if !s.retainedUntil.IsZero() {
		until = s.retainedUntil.UnixNano()
	}
	return j.add(recordReset, func(b []byte) []byte { return appendReset(b, s.mark, s.topic.number, until, unacked, acked) })
}

func appendReset(b []byte, mark uint32, topicNumber uint64, until int64, unacked, acked []uint64) []byte {
	b = appendNumber(b, uint64(mark))
	b = appendNumber(b, topicNumber)
	b = appendNumber(b, uint64(until)) //nolint:gosec // after 1970
	b = appendIDs(b, unacked)
	return appendIDs(b, acked)
}

// handedOver returns the commit of everything that was added so far.
func (j *journal) handedOver() *commit {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.err != nil:
		return failedCommit(j.err)
	case j.next != nil:
		signal(j.wake)
		return j.next
	}
	return j.writing
}

// close writes what was added, and unlocks the directory.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	j.quitOnce.Do(func() { close(j.quit) })
	<-j.ended
	return j.endErr
}

// run writes what is added, until close.
func (j *journal) run() {
	defer close(j.ended)
	ctx, cancel := context.WithCancel(context.Background())
	compacting := false
	var later <-chan time.Time
	for {
		select {
		case <-j.wake:
			j.write(false)
			if j.unsynced && later == nil {
				later = time.After(syncInterval)
			}
		case <-j.stir:
			if later == nil {
				later = time.After(syncInterval)
			}
		case <-later:
			later = nil
			j.write(true)
		case c := <-j.compacted:
			compacting = false
			j.adopt(c)
		case <-j.quit:
			cancel()
			if compacting {
				if c := <-j.compacted; c.err == nil {
					_ = c.file.Close() // the old file has everything
				}
				_ = j.folder.Remove(newJournalFile)
			}
			j.finish()
			return
		}
		if size := j.size.Load(); !compacting && size > max(j.minimum.Load(), 2*j.live) {
			compacting = true
			old := j.file
			go func() { j.compacted <- j.compact(ctx, old, size) }() // old and size are read here, in the goroutine that owns them
		}
	}
}

// write writes the buffer, and wakes everybody who waits for it.
func (j *journal) write(syncToo bool) {
	j.mu.Lock()
	j.sealAcks()
	frame, waiting, err := j.buffer, j.next, j.err
	j.buffer, j.spare = j.spare[:frameHeader], nil
	j.next, j.writing = nil, waiting
	j.mu.Unlock()
	if err == nil {
		err = j.writeFrame(frame, syncToo)
	}
	const largest = 8 << 20 // a larger buffer is rarely needed, and is not kept
	if cap(frame) > largest {
		frame = make([]byte, frameHeader)
	}
	if err != nil {
		j.fail(err)
	}
	j.mu.Lock()
	j.spare, j.writing = frame, nil
	j.mu.Unlock()
	waiting.finish(err)
}

// fail stops all writing. It keeps only the first error.
func (j *journal) fail(err error) {
	j.mu.Lock()
	first := j.err == nil
	j.err = cmp.Or(j.err, err)
	j.mu.Unlock()
	if first {
		j.log.Error("pubsublocal: the journal cannot be written, so nothing is accepted any more", "err", err)
	}
}

func (j *journal) writeFrame(frame []byte, syncToo bool) error {
	if len(frame) > frameHeader {
		sealFrame(frame)
		if _, err := j.file.Write(frame); err != nil {
			return fmt.Errorf("write journal: %w", err)
		}
		j.size.Add(int64(len(frame)))
		j.unsynced = true
	}
	if syncToo && j.unsynced {
		if err := j.file.Sync(); err != nil {
			return fmt.Errorf("sync journal: %w", err)
		}
		j.unsynced = false
	}
	return nil
}

// finish writes what is left and closes the files. It is the end of run.
func (j *journal) finish() {
	for open := true; open; {
		j.write(true)
		j.mu.Lock()
		if j.next == nil || j.err != nil { // later calls get an error
			open = false
			j.endErr = j.err
			j.err = cmp.Or(j.err, errJournalClosed)
			j.next.finish(j.err)
			j.next = nil
		}
		j.mu.Unlock()
	}
	j.endErr = errors.Join(j.endErr, j.file.Close(), j.lock.Close(), j.folder.Close())
}
