package pubsublocal

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unique"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Sync says when what is written is safe.
type Sync string

// When what is written to Config.DataDir is safe. What was answered survives
// the end of the process in any case, also by SIGKILL.
const (
	SyncBatch    Sync = "batch"    // fsync before an answer: nothing that was answered is lost by a crash of the machine
	SyncInterval Sync = "interval" // fsync every 10 ms: a crash of the machine loses that much
	SyncNever    Sync = "never"    // no fsync, except when the file is rewritten: the operating system decides
)

const (
	journalMagic = "pubsublocal journal "
	// journalHeader begins the file. Its number changes with the format.
	journalHeader = journalMagic + "1\n"

	journalFile, newJournalFile, lockFile = "journal", "journal.new", "lock"

	syncInterval = 10 * time.Millisecond
	// smallestCompaction is the size from which the file is rewritten.
	smallestCompaction = 64 << 20
	// idReserve is how far ids jump with a start: a message may have reached a
	// subscriber before a crash, and the file not. Its id must not come again.
	idReserve = 1 << 20
)

// journal keeps what must survive a restart: topics, subscriptions, snapshots,
// schemas, and the messages that any of them retains. Leases, counts of
// attempts and IAM policies do not survive. A nil journal keeps nothing.
//
// It is a file of events in the order in which they happened: they are handed
// over under the locks of what they concern, to a buffer under mu, which comes
// after all other locks. One goroutine writes the buffer as a frame, with a
// checksum, and syncs; then it answers all who wait. So a frame is there whole
// or, if the process or the machine ended while it was written, not at all.
//
// Publish waits for its frame, and so do changes of resources. Subscribers do
// not: a crash may take back a message that one of them has already seen. Acks
// are written within 10 ms and nobody waits for them: a crash may let a message
// come again. That of an ordered message counts when all before it have theirs.
//
// When a write fails nothing is written any more, and all who wait get the error.
// The file still has all that was answered.
//
// At every start, and whenever the file has doubled since, it is rewritten with
// what is live only. That reads the file, not the server, so it holds no lock and
// nobody waits for it; per message in the file it costs some 3 µs of a processor
// and up to 100 bytes of memory for as long as it takes.
type journal struct {
	sync    Sync
	log     *slog.Logger
	now     func() time.Time
	folder  *os.Root
	lock    *os.File
	minimum atomic.Int64 // the size from which the file is rewritten

	wake      chan struct{} // somebody waits for a write
	stir      chan struct{} // there is something to write, at leisure
	quit      chan struct{}
	quitOnce  sync.Once
	ended     chan struct{}
	endErr    error // written before ended is closed
	compacted chan compaction

	mu      sync.Mutex
	buffer  []byte   // guarded by mu: a frame, with room for its header
	spare   []byte   // guarded by mu: becomes the next buffer
	next    *commit  // guarded by mu: of buffer
	writing *commit  // guarded by mu: of the frame before that
	acks    ackBatch // guarded by mu: follow buffer
	err     error    // guarded by mu: why nothing is written any more

	// Owned by the goroutine that writes.
	file     *os.File
	unsynced bool
	live     int64 // the size of the file when it was rewritten

	size atomic.Int64 // of the file; changed by the goroutine that writes
}

// commit is a write under way. A nil commit is done.
type commit struct {
	done chan struct{}
	err  error // written before done is closed
}

// wait waits until what was handed over is as safe as [Sync] says. An error is
// INTERNAL, which publishers repeat: a restart within their patience loses nothing.
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

// ackBatch is acks of a subscription that follow each other.
type ackBatch struct {
	mark     uint32
	retained bool
	last     uint64
	ids      []byte // empty: there are none
}

var errJournalClosed = errors.New("the server is closed")

// What a frame consists of. Numbers are varints; texts and bytes have their
// length before them; ids are differences.
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

const recordHeader = 5 // kind, length of body

// appendRecord appends a record whose body is appended by a function.
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
	return protowire.AppendVarint(b, protowire.EncodeZigZag(int64(id-last))) //nolint:gosec // wraps, and back
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
	encoded, _ := proto.Marshal(m) // what was accepted has valid UTF-8, and nothing else can fail
	return protowire.AppendBytes(b, encoded)
}

// A frame is its length and its checksum, and then records.
const frameHeader = 8

var checksums = crc32.MakeTable(crc32.Castagnoli)

// sealFrame fills in the header that b begins with.
func sealFrame(b []byte) {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-frameHeader)) //nolint:gosec // no frame has 4 GB
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[frameHeader:], checksums))
}

// add hands a record over.
func (j *journal) add(kind byte, body func([]byte) []byte) *commit {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sealAcks()
	if j.err != nil {
		return failedCommit(j.err)
	}
	j.buffer = appendRecord(j.buffer, kind, body)
	nudge(j.wake)
	return j.promise()
}

// promise answers the commit of the buffer. It is called with mu held.
func (j *journal) promise() *commit {
	if j.next == nil {
		j.next = &commit{done: make(chan struct{})}
	}
	return j.next
}

// sealAcks makes a record of the acks. It is called with mu held.
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

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// topic notes a topic as it is now. It is called without its lock.
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

// subscription notes the settings of a subscription. It is called without its lock.
func (j *journal) subscription(s *subscription) *commit {
	if j == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server.subscriptions.get(s.name) != s {
		return nil // deleted meanwhile, which must not be undone
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

// snapshot notes a snapshot as it is now. It is called without the lock of its topic.
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

// schema notes all revisions of a schema, and waits, because its caller cannot.
func (j *journal) schema(name string, revisions []*pubsubpb.Schema) {
	if j == nil {
		return
	}
	// An error is logged, and whatever comes next gets it, too.
	_ = j.add(recordSchema, func(b []byte) []byte { return appendSchema(b, name, revisions) }).wait()
}

func appendSchema(b []byte, name string, revisions []*pubsubpb.Schema) []byte {
	b = protowire.AppendString(b, name)
	for _, revision := range revisions {
		b = appendProto(b, revision)
	}
	return b
}

// deleted notes the end of a topic, a subscription or a snapshot.
func (j *journal) deleted(name string) *commit {
	if j == nil {
		return nil
	}
	return j.add(recordDeleted, func(b []byte) []byte { return protowire.AppendString(b, name) })
}

// published notes messages. It is called with the lock of the topic held, before any subscription has them.
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

// acknowledged notes that a subscription is done with a message. It is called with its lock held.
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
	nudge(j.stir)
}

// reset notes what a subscription has after a seek. It is called with its lock held.
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

// handedOver answers the commit of all that was handed over so far.
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
		nudge(j.wake)
		return j.next
	}
	return j.writing
}

// close writes what was handed over, and gives the folder free.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	j.quitOnce.Do(func() { close(j.quit) })
	<-j.ended
	return j.endErr
}

// run writes what is handed over, until close.
func (j *journal) run() {
	defer close(j.ended)
	ctx, cancel := context.WithCancel(context.Background())
	compacting := false
	var later <-chan time.Time
	for {
		select {
		case <-j.wake:
			j.write(j.sync == SyncBatch)
			if j.unsynced && j.sync == SyncInterval && later == nil {
				later = time.After(syncInterval)
			}
		case <-j.stir:
			if later == nil {
				later = time.After(syncInterval)
			}
		case <-later:
			later = nil
			j.write(j.sync != SyncNever)
		case c := <-j.compacted:
			compacting = false
			j.adopt(c)
		case <-j.quit:
			cancel()
			if compacting {
				if c := <-j.compacted; c.err == nil {
					_ = c.file.Close() // the old one has everything
				}
				_ = j.folder.Remove(newJournalFile)
			}
			j.finish()
			return
		}
		if size := j.size.Load(); !compacting && size > max(j.minimum.Load(), 2*j.live) {
			compacting = true
			old := j.file
			go func() { j.compacted <- j.compact(ctx, old, size) }() // read above, in any case
		}
	}
}

// write writes the buffer, and answers all who wait for it.
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
	const largest = 8 << 20 // rarely needed, and not to be kept
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

// fail ends all writing. The first error is the one that counts.
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

// finish is the end of run.
func (j *journal) finish() {
	for open := true; open; {
		j.write(j.sync != SyncNever)
		j.mu.Lock()
		if j.next == nil || j.err != nil { // whoever comes later is refused
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

// compaction is a new file that has all of the old one up to a place.
type compaction struct {
	file           *os.File
	upTo           int64 // in the old file
	rewritten, all int64 // sizes
	err            error
}

// compact makes a new file of the first bytes of the old one, and copies the
// rest as it is. It runs beside everything else, also beside writes.
func (j *journal) compact(ctx context.Context, old io.ReaderAt, size int64) compaction {
	c := compaction{upTo: size}
	c.file, c.rewritten, c.err = rewrite(ctx, j.folder, old, size, func(img *image) error {
		img.prune(j.now())
		return nil
	}, nil)
	if c.err != nil {
		return c
	}
	c.all = c.rewritten
	if c.err = c.copyRest(old, j.size.Load()); c.err != nil {
		_ = c.file.Close()
	}
	return c
}

// copyRest copies what was written to the old file since.
func (c *compaction) copyRest(old io.ReaderAt, size int64) error {
	n, err := io.Copy(c.file, io.NewSectionReader(old, c.upTo, size-c.upTo))
	if err != nil {
		return fmt.Errorf("copy journal: %w", err)
	}
	c.upTo += n
	c.all += n
	if err := c.file.Sync(); err != nil {
		return fmt.Errorf("sync new journal: %w", err)
	}
	return nil
}

// adopt goes on with a new file. A crash before the name is changed leaves the
// old file, and a crash after it the new one: both have everything.
func (j *journal) adopt(c compaction) {
	err := c.err
	if err == nil {
		err = c.copyRest(j.file, j.size.Load())
		if err == nil {
			err = j.folder.Rename(newJournalFile, journalFile)
		}
		if err != nil {
			_ = c.file.Close()
		}
	}
	if err != nil {
		j.log.Warn("pubsublocal: the journal cannot be rewritten, and goes on growing", "err", err)
		_ = j.folder.Remove(newJournalFile)
		j.live = j.size.Load() // the next attempt when it has doubled
		return
	}
	_ = j.file.Close()
	j.file, j.live = c.file, c.rewritten
	j.size.Store(c.all)
	j.unsynced = false
	if err := syncFolder(j.folder); err != nil {
		j.fail(err)
	}
}

func syncFolder(folder *os.Root) error {
	f, err := folder.Open(".")
	if err != nil {
		return fmt.Errorf("open data folder: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync data folder: %w", err)
	}
	return nil
}

// openJournal reads a folder, rewrites its journal, and answers what is in it.
func openJournal(path string, policy Sync, log *slog.Logger, now func() time.Time) (_ *journal, _ *image, _ map[uint64]*message, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, nil, nil, fmt.Errorf("make folder: %w", err)
	}
	folder, err := os.OpenRoot(path)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open folder: %w", err)
	}
	lock, err := lockFolder(folder)
	if err != nil {
		return nil, nil, nil, errors.Join(err, folder.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close(), folder.Close())
		}
	}()
	old, size, err := openOld(folder, log)
	if err != nil {
		return nil, nil, nil, err
	}
	if old != nil {
		defer old.Close()
	}
	var restored *image
	messages := map[uint64]*message{}
	file, written, err := rewrite(context.Background(), folder, old, size, func(img *image) error {
		restored = img
		img.dropUnfinished()
		img.prune(now())
		img.lastID += idReserve
		img.starts++
		return nil
	}, func(m *message) { messages[m.id] = m })
	if err != nil {
		return nil, nil, nil, err
	}
	if err = folder.Rename(newJournalFile, journalFile); err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("rename journal: %w", err), file.Close())
	}
	if err = syncFolder(folder); err != nil {
		return nil, nil, nil, errors.Join(err, file.Close())
	}
	j := &journal{
		sync: policy, log: log, now: now, folder: folder, lock: lock,
		wake: make(chan struct{}, 1), stir: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}),
		compacted: make(chan compaction, 1),
		buffer:    make([]byte, frameHeader), spare: make([]byte, frameHeader),
		file: file, live: written,
	}
	j.size.Store(written)
	j.minimum.Store(smallestCompaction)
	go j.run()
	return j, restored, messages, nil
}

// lockFolder keeps other servers out, until the file is closed or the process ends.
func lockFolder(folder *os.Root) (*os.File, error) {
	f, err := folder.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another server uses it: stop that one, or give this one a folder of its own")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock folder: %w", err), f.Close())
	}
	return f, nil
}

// openOld opens the journal, and answers how much of it is good. No file: there is none yet.
func openOld(folder *os.Root, log *slog.Logger) (*os.File, int64, error) {
	f, err := folder.Open(journalFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open journal: %w", err)
	}
	good, err := goodSize(f, log)
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, good, nil
}

func goodSize(f *os.File, log *slog.Logger) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at journal: %w", err)
	}
	header := make([]byte, len(journalHeader))
	n, err := f.ReadAt(header, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read journal: %w", err)
	}
	switch format, ours := strings.CutPrefix(string(header[:n]), journalMagic); {
	case !ours:
		return 0, errors.New("the file journal is not one of this program: give the server a folder of its own")
	case string(header) != journalHeader:
		return 0, fmt.Errorf("the journal has the format %q, and this program knows only 1: use the program that wrote it, or another folder",
			strings.TrimSpace(format))
	}
	good, err := readFrames(f, info.Size(), func([]byte) error { return nil })
	if !errors.Is(err, errBadFrame) {
		return good, err
	}
	// The last frame may be there in part. One that something follows had been
	// written, so it is damaged.
	next, err := nextFrame(f, good, info.Size())
	if err != nil {
		return 0, err
	}
	if next > 0 {
		return 0, fmt.Errorf("the journal is damaged at byte %d, and goes on at byte %d: "+
			"restore it from a copy, or cut it there to lose everything that follows", good, next)
	}
	log.Warn("pubsublocal: the end of the journal, which nobody was told to be safe, is incomplete and is dropped",
		"offset", good, "bytes", info.Size()-good)
	return good, nil
}

var errBadFrame = errors.New("incomplete or damaged frame")

// readFrames calls f with each frame, whose bytes it may use until it returns.
// It answers where the good frames end.
func readFrames(file io.ReaderAt, size int64, f func(records []byte) error) (int64, error) {
	at := int64(len(journalHeader))
	r := bufio.NewReaderSize(io.NewSectionReader(file, at, size-at), 1<<20)
	var header [frameHeader]byte
	var records []byte
	for at < size {
		if size-at < frameHeader {
			return at, errBadFrame
		}
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return at, fmt.Errorf("read journal: %w", err)
		}
		length := int64(binary.LittleEndian.Uint32(header[:]))
		if length == 0 || length > size-at-frameHeader {
			return at, errBadFrame
		}
		records = slices.Grow(records[:0], int(length))[:length]
		if _, err := io.ReadFull(r, records); err != nil {
			return at, fmt.Errorf("read journal: %w", err)
		}
		if crc32.Checksum(records, checksums) != binary.LittleEndian.Uint32(header[4:]) {
			return at, errBadFrame
		}
		if err := f(records); err != nil {
			return at, fmt.Errorf("frame at byte %d: %w", at, err)
		}
		at += frameHeader + length
	}
	return at, nil
}

// nextFrame answers where, after a bad frame, a good one begins; 0: nowhere.
func nextFrame(file io.ReaderAt, bad, size int64) (int64, error) {
	rest := make([]byte, size-bad)
	if _, err := file.ReadAt(rest, bad); err != nil {
		return 0, fmt.Errorf("read journal: %w", err)
	}
	for i := 1; i+frameHeader+recordHeader <= len(rest); i++ {
		length := int64(binary.LittleEndian.Uint32(rest[i:]))
		kind := rest[i+frameHeader]
		if length < recordHeader || length > int64(len(rest)-i-frameHeader) || kind < recordCounters || kind > recordReset {
			continue
		}
		records := rest[i+frameHeader:][:length]
		if crc32.Checksum(records, checksums) == binary.LittleEndian.Uint32(rest[i+4:]) {
			return bad + int64(i), nil
		}
	}
	return 0, nil
}

// rewrite makes a new file of what is live in an old one; no old file is an
// empty one. change may change what it says. Each live message goes to keep, if there is one.
func rewrite(
	ctx context.Context, folder *os.Root, old io.ReaderAt, size int64, change func(*image) error, keep func(*message),
) (_ *os.File, _ int64, err error) {
	img := newImage()
	frames := func(f func([]byte) error) error {
		if size == 0 {
			return nil
		}
		_, err := readFrames(old, size, func(records []byte) error { return cmp.Or(ctx.Err(), f(records)) })
		return err
	}
	if err := frames(img.apply); err != nil {
		return nil, 0, err
	}
	if err := change(img); err != nil {
		return nil, 0, err
	}
	file, err := folder.OpenFile(newJournalFile, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("make new journal: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	w := &frameWriter{w: file, frame: make([]byte, frameHeader)}
	if _, err = io.WriteString(file, journalHeader); err != nil {
		return nil, 0, fmt.Errorf("write new journal: %w", err)
	}
	w.size = int64(len(journalHeader))
	img.writeResources(w)
	if err = frames(func(records []byte) error { return img.copyLive(w, records, keep) }); err != nil {
		return nil, 0, err
	}
	img.writeBacklogs(w)
	w.flush()
	if w.err != nil {
		return nil, 0, fmt.Errorf("write new journal: %w", w.err)
	}
	if err = file.Sync(); err != nil {
		return nil, 0, fmt.Errorf("sync new journal: %w", err)
	}
	return file, w.size, nil
}

// frameWriter writes records in frames of about 1 MB.
type frameWriter struct {
	w       io.Writer
	frame   []byte
	scratch []byte
	size    int64
	err     error // the first one
}

func (w *frameWriter) add(kind byte, body func([]byte) []byte) {
	const enough = 1 << 20
	w.frame = appendRecord(w.frame, kind, body)
	if len(w.frame) > enough {
		w.flush()
	}
}

func (w *frameWriter) flush() {
	if len(w.frame) == frameHeader || w.err != nil {
		return
	}
	sealFrame(w.frame)
	_, w.err = w.w.Write(w.frame)
	w.size += int64(len(w.frame))
	w.frame = w.frame[:frameHeader]
}

// image is what a journal says, without the messages themselves.
type image struct {
	lastID        uint64
	lastMark      uint32
	starts        uint64
	schemas       map[string][]*pubsubpb.Schema
	topics        map[uint64]*topicImage
	subscriptions map[uint32]*subscriptionImage
	snapshots     map[string]*snapshotImage
	topicNames    map[string]*topicImage        // those that are not deleted
	names         map[string]*subscriptionImage // of subscriptions
}

// A resource may be concerned by a record before the one that makes it, if both
// happened at once; then cfg is nil until that comes.
type (
	topicImage struct {
		number        uint64
		cfg           *pubsubpb.Topic
		gone          bool
		lastTime      int64
		messages      []messageImage // all of the file, in the order of ids
		subscriptions []*subscriptionImage
		snapshots     []*snapshotImage
	}
	messageImage struct {
		id       uint64
		time     int64
		retained bool // by the topic
		released bool // in this file; a seek may have read it just before, and use it after
		live     bool // set by prune
	}
	subscriptionImage struct {
		mark     uint32
		topic    *topicImage
		cfg      *pubsubpb.Subscription
		filter   filter
		until    int64 // retainedUntil
		unacked  idSet
		retained idSet // acknowledged ones
	}
	snapshotImage struct {
		topic *topicImage
		cfg   *pubsubpb.Snapshot
		ids   []uint64
	}
	idSet map[uint64]struct{}
)

func newIDSet(ids []uint64) idSet {
	set := idSet{}
	for _, id := range ids {
		set[id] = struct{}{}
	}
	return set
}

func (s idSet) sorted() []uint64 { return slices.Sorted(maps.Keys(s)) }

func newImage() *image {
	return &image{
		schemas: map[string][]*pubsubpb.Schema{}, topics: map[uint64]*topicImage{},
		subscriptions: map[uint32]*subscriptionImage{}, snapshots: map[string]*snapshotImage{},
		topicNames: map[string]*topicImage{}, names: map[string]*subscriptionImage{},
	}
}

func (t *topicImage) find(id uint64) *messageImage {
	i, ok := slices.BinarySearchFunc(t.messages, id, func(m messageImage, id uint64) int { return cmp.Compare(m.id, id) })
	if !ok {
		return nil
	}
	return &t.messages[i]
}

// release ends the retention by the topic.
func (m *messageImage) release() {
	m.released = m.released || m.retained
	m.retained = false
}

func (img *image) topic(number uint64) *topicImage {
	t := img.topics[number]
	if t == nil {
		t = &topicImage{number: number}
		img.topics[number] = t
	}
	return t
}

func (img *image) subscription(mark uint32) *subscriptionImage {
	s := img.subscriptions[mark]
	if s == nil {
		s = &subscriptionImage{mark: mark, unacked: idSet{}, retained: idSet{}}
		img.subscriptions[mark] = s
	}
	return s
}

// fields reads the body of a record. After an error everything is zero.
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
		last += uint64(protowire.DecodeZigZag(packed.number())) //nolint:gosec // wraps, and back
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

// next answers the next message of a published record.
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

// apply does what a frame says.
func (img *image) apply(records []byte) error {
	return eachRecord(records, func(kind byte, f *fields) error {
		switch kind {
		case recordCounters:
			img.noteID(f.number())
			img.lastMark = max(img.lastMark, f.mark())
			img.starts = f.number()
		case recordTopic:
			img.applyTopic(f)
		case recordSubscription:
			return img.applySubscription(f)
		case recordSnapshot:
			img.applySnapshot(f)
		case recordSchema:
			img.applySchema(f)
		case recordDeleted:
			img.applyDeleted(f.text())
		case recordPublished:
			return img.applyPublished(f)
		case recordAcknowledged:
			img.applyAcknowledged(f)
		case recordReset:
			s := img.subscription(f.mark())
			s.topic, s.until = img.topic(f.number()), f.time()
			s.unacked, s.retained = newIDSet(f.ids()), newIDSet(f.ids())
		default:
			return errBadRecord
		}
		return nil
	})
}

func (img *image) noteID(id uint64) { img.lastID = max(img.lastID, id) }

func (img *image) applyTopic(f *fields) {
	img.noteID(f.number())
	t := img.topic(f.number())
	t.gone, t.lastTime = f.flag(), max(t.lastTime, f.time())
	retained := f.number()
	t.cfg = &pubsubpb.Topic{}
	f.message(t.cfg)
	for i := range t.messages {
		if t.messages[i].id < retained {
			t.messages[i].release()
		}
	}
	if !t.gone {
		img.topicNames[t.cfg.GetName()] = t
	}
}

func (img *image) applySubscription(f *fields) error {
	img.noteID(f.number())
	s := img.subscription(f.mark())
	img.lastMark = max(img.lastMark, s.mark)
	t, first := img.topic(f.number()), s.cfg == nil
	s.cfg = &pubsubpb.Subscription{}
	f.message(s.cfg)
	if first {
		s.topic = t
		img.names[s.cfg.GetName()] = s
		if !t.gone {
			t.subscriptions = append(t.subscriptions, s)
		}
		var err error
		if s.filter, err = parseFilter(s.cfg.GetFilter()); err != nil {
			return fmt.Errorf("filter of %s: %w", s.cfg.GetName(), err)
		}
	}
	if s.cfg.GetDetached() {
		s.unacked, s.retained = idSet{}, idSet{}
		t.subscriptions = slices.DeleteFunc(t.subscriptions, func(other *subscriptionImage) bool { return other == s })
	}
	if !s.cfg.GetRetainAckedMessages() {
		s.retained = idSet{}
	}
	return nil
}

func (img *image) applySnapshot(f *fields) {
	img.noteID(f.number())
	s := &snapshotImage{topic: img.topic(f.number()), cfg: &pubsubpb.Snapshot{}}
	f.message(s.cfg)
	s.ids = f.ids()
	img.dropSnapshot(s.cfg.GetName())
	img.snapshots[s.cfg.GetName()] = s
	if !s.topic.gone {
		s.topic.snapshots = append(s.topic.snapshots, s)
	}
}

func (img *image) dropSnapshot(name string) {
	if s := img.snapshots[name]; s != nil {
		delete(img.snapshots, name)
		for _, id := range s.ids {
			if m := s.topic.find(id); m != nil {
				m.released = true
			}
		}
		s.topic.snapshots = slices.DeleteFunc(s.topic.snapshots, func(other *snapshotImage) bool { return other == s })
	}
}

func (img *image) applySchema(f *fields) {
	name := f.text()
	delete(img.schemas, name)
	for f.more() {
		s := &pubsubpb.Schema{}
		f.message(s)
		img.schemas[name] = append(img.schemas[name], s)
	}
	if len(img.schemas[name]) > 0 {
		return
	}
	for _, t := range img.topicNames { // as topic.forgetSchema
		if t.cfg.GetSchemaSettings().GetSchema() == name {
			t.cfg.SchemaSettings.Schema = deletedSchema
		}
	}
}

func (img *image) applyDeleted(name string) {
	if t := img.topicNames[name]; t != nil {
		delete(img.topicNames, name)
		t.gone, t.subscriptions, t.snapshots = true, nil, nil
		for i := range t.messages {
			t.messages[i].release()
		}
	}
	if s := img.names[name]; s != nil {
		delete(img.names, name)
		delete(img.subscriptions, s.mark)
		s.topic.subscriptions = slices.DeleteFunc(s.topic.subscriptions, func(other *subscriptionImage) bool { return other == s })
	}
	img.dropSnapshot(name)
}

func (img *image) applyPublished(f *fields) error {
	t := img.topic(f.number())
	filtered := slices.ContainsFunc(t.subscriptions, func(s *subscriptionImage) bool { return s.filter != nil })
	for f.more() {
		m, encoded := f.next()
		if n := len(t.messages); n > 0 && t.messages[n-1].id >= m.id {
			return errBadRecord
		}
		var decoded pubsubpb.PubsubMessage
		if filtered {
			if err := proto.Unmarshal(encoded, &decoded); err != nil {
				return fmt.Errorf("message %d: %w", m.id, err)
			}
		}
		img.noteID(m.id)
		t.lastTime = max(t.lastTime, m.time)
		t.messages = append(t.messages, m)
		for _, s := range t.subscriptions {
			if s.filter.match(decoded.GetAttributes()) {
				s.unacked[m.id] = struct{}{}
			}
		}
		for _, s := range t.snapshots {
			s.ids = append(s.ids, m.id)
		}
	}
	return nil
}

func (img *image) applyAcknowledged(f *fields) {
	s, retained := img.subscriptions[f.mark()], f.flag()
	for _, id := range f.ids() {
		if s == nil {
			continue // deleted
		}
		if _, ok := s.unacked[id]; ok && retained {
			s.retained[id] = struct{}{}
		}
		delete(s.unacked, id)
	}
}

// dropUnfinished drops what was about to be made when the file ended.
func (img *image) dropUnfinished() {
	maps.DeleteFunc(img.topics, func(_ uint64, t *topicImage) bool { return t.cfg == nil })
	maps.DeleteFunc(img.subscriptions, func(_ uint32, s *subscriptionImage) bool { return s.cfg == nil })
}

// prune drops what nothing retains any more, and marks the messages that are live.
func (img *image) prune(now time.Time) {
	for _, t := range img.topics {
		oldest := now.Add(-t.cfg.GetMessageRetentionDuration().AsDuration()).UnixMilli()
		for i := range t.messages {
			m := &t.messages[i]
			m.retained = m.retained && (t.cfg == nil || m.time >= oldest)
			m.live = m.retained || m.released
		}
	}
	needed := map[*topicImage]bool{}
	for _, s := range img.subscriptions {
		needed[s.topic] = true
		forgotten := now.Add(-s.cfg.GetMessageRetentionDuration().AsDuration()).UnixMilli()
		maps.DeleteFunc(s.retained, func(id uint64, _ struct{}) bool {
			m := s.topic.find(id)
			return m == nil || s.cfg != nil && m.time < forgotten
		})
		for _, set := range []idSet{s.unacked, s.retained} {
			for id := range set {
				s.topic.need(id)
			}
		}
	}
	for _, s := range img.snapshots {
		needed[s.topic] = true
		for _, id := range s.ids {
			s.topic.need(id)
		}
	}
	maps.DeleteFunc(img.topics, func(_ uint64, t *topicImage) bool { return t.gone && !needed[t] })
}

func (t *topicImage) need(id uint64) {
	if m := t.find(id); m != nil {
		m.live = true
	}
}

// writeResources writes what comes before messages, so that nothing takes them for new ones.
func (img *image) writeResources(w *frameWriter) {
	w.add(recordCounters, func(b []byte) []byte {
		b = appendNumber(b, img.lastID)
		b = appendNumber(b, uint64(img.lastMark))
		return appendNumber(b, img.starts)
	})
	for _, name := range slices.Sorted(maps.Keys(img.schemas)) {
		if revisions := img.schemas[name]; len(revisions) > 0 {
			w.add(recordSchema, func(b []byte) []byte { return appendSchema(b, name, revisions) })
		}
	}
	for _, number := range slices.Sorted(maps.Keys(img.topics)) {
		if t := img.topics[number]; t.cfg != nil {
			w.add(recordTopic, func(b []byte) []byte {
				return appendTopic(b, img.lastID, t.number, t.gone, t.lastTime, 0, t.cfg)
			})
		}
	}
}

// copyLive copies the live messages of a frame.
func (img *image) copyLive(w *frameWriter, records []byte, keep func(*message)) error {
	return eachRecord(records, func(kind byte, f *fields) error {
		if kind != recordPublished {
			return nil
		}
		t := img.topics[f.number()]
		if t == nil {
			return nil
		}
		body := appendNumber(w.scratch[:0], t.number)
		none := len(body)
		for f.more() {
			m, encoded := f.next()
			known := t.find(m.id)
			if known == nil || !known.live {
				continue
			}
			body = appendMessage(body, m.id, m.time, known.retained, encoded)
			if keep != nil {
				keep(&message{id: m.id, time: m.time, key: unique.Make(orderingKey(encoded)), encoded: bytes.Clone(encoded)})
			}
		}
		w.scratch = body
		if len(body) > none {
			w.add(recordPublished, func(b []byte) []byte { return append(b, body...) })
		}
		return w.err
	})
}

// orderingKey answers the key in an encoded message.
func orderingKey(encoded []byte) string {
	const field = 5
	var key []byte
	for len(encoded) > 0 {
		number, kind, n := protowire.ConsumeTag(encoded)
		if n < 0 {
			break
		}
		size := protowire.ConsumeFieldValue(number, kind, encoded[n:])
		if size < 0 {
			break
		}
		if number == field && kind == protowire.BytesType {
			key, _ = protowire.ConsumeBytes(encoded[n:])
		}
		encoded = encoded[n+size:]
	}
	return string(key)
}

// writeBacklogs writes what refers to messages.
func (img *image) writeBacklogs(w *frameWriter) {
	for _, mark := range slices.Sorted(maps.Keys(img.subscriptions)) {
		s := img.subscriptions[mark]
		if s.cfg != nil {
			w.add(recordSubscription, func(b []byte) []byte {
				return appendSubscription(b, img.lastID, s.mark, s.topic.number, s.cfg)
			})
		}
		w.add(recordReset, func(b []byte) []byte {
			return appendReset(b, s.mark, s.topic.number, s.until, s.unacked.sorted(), s.retained.sorted())
		})
	}
	for _, name := range slices.Sorted(maps.Keys(img.snapshots)) {
		s := img.snapshots[name]
		w.add(recordSnapshot, func(b []byte) []byte { return appendSnapshot(b, img.lastID, s.topic.number, s.cfg, s.ids) })
	}
}

// open brings back what Config.DataDir has, and keeps what happens from now on.
// It is called before anybody uses the server.
func (s *Server) open(cfg Config) error {
	policy := cmp.Or(cfg.Sync, SyncBatch)
	switch policy {
	case SyncBatch, SyncInterval, SyncNever:
	default:
		return fmt.Errorf("sync is %q, but must be %s, %s or %s", policy, SyncBatch, SyncInterval, SyncNever)
	}
	if cfg.DataDir == "" {
		return nil
	}
	j, img, messages, err := openJournal(cfg.DataDir, policy, s.log, s.clock.Now)
	if err != nil {
		return fmt.Errorf("data folder %s: %w", cfg.DataDir, err)
	}
	s.journal = j // what timers do meanwhile happens after what is restored
	if err := s.restore(img, messages); err != nil {
		s.clock.stop()
		return errors.Join(fmt.Errorf("data folder %s: %w", cfg.DataDir, err), j.close())
	}
	return nil
}

// restore makes the resources of an image, of which the messages are live.
func (s *Server) restore(img *image, messages map[uint64]*message) error {
	s.lastID.Store(img.lastID)
	s.lastMark.Store(img.lastMark)
	for _, name := range slices.Sorted(maps.Keys(img.schemas)) {
		for _, revision := range img.schemas[name] {
			if err := s.schemas.restore(revision); err != nil {
				return fmt.Errorf("restore schema %s: %w", name, err)
			}
		}
	}
	restored := map[*topicImage]*topic{}
	for _, t := range img.topics {
		restored[t] = s.restoreTopic(t, messages)
	}
	for _, mark := range slices.Sorted(maps.Keys(img.subscriptions)) {
		sub := img.subscriptions[mark]
		if err := s.restoreSubscription(sub, restored[sub.topic], img.starts, messages); err != nil {
			return fmt.Errorf("restore subscription %s: %w", sub.cfg.GetName(), err)
		}
	}
	for name, snap := range img.snapshots {
		s.restoreSnapshot(name, snap, restored[snap.topic], messages)
	}
	return nil
}

func (s *Server) restoreTopic(from *topicImage, messages map[uint64]*message) *topic {
	t := newTopic(s, from.cfg)
	t.number = from.number
	if from.gone {
		t.close()
		return t
	}
	if schema := from.cfg.GetSchemaSettings().GetSchema(); schema != "" && !s.schemas.exists(schema) {
		t.forgetSchema(schema) // deleted while the settings were written
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastTime = from.lastTime
	for _, m := range from.messages {
		if m.retained {
			t.log.pushBack(messages[m.id])
		}
	}
	t.trim(s.clock.Now())
	s.topics.set(t.name, t)
	return t
}

func (s *Server) restoreSubscription(from *subscriptionImage, t *topic, starts uint64, messages map[uint64]*message) error {
	f, err := parseFilter(from.cfg.GetFilter())
	if err != nil {
		return err
	}
	sub := newSubscription(t, from.cfg, f)
	sub.mark = from.mark // so ack ids of before are out of date, and not malformed
	if from.cfg.GetDetached() {
		sub.detach()
		s.subscriptions.set(sub.name, sub)
		return nil
	}
	sub.mu.Lock()
	// Above the first leases of all that were made in one run and this, which are microseconds. So no ack id of
	// before is that of another lease, whatever the clock does.
	sub.lastLease = starts << 52
	if from.until > 0 {
		sub.retainedUntil = time.Unix(0, from.until)
	}
	for _, m := range pick(from.retained.sorted(), messages) {
		sub.acked.pushBack(m)
	}
	for _, m := range pick(from.unacked.sorted(), messages) {
		sub.push(m)
	}
	s.subscriptions.set(sub.name, sub)
	sub.unlock()
	if !t.gone.Load() {
		t.attach(sub)
	}
	return nil
}

func (s *Server) restoreSnapshot(name string, from *snapshotImage, t *topic, messages map[uint64]*message) {
	snap := &snapshot{
		name: name, topic: t, cfg: from.cfg, expires: from.cfg.GetExpireTime().AsTime(), unacked: pick(from.ids, messages),
	}
	snap.timer = s.clock.newTimer(func() { s.expireSnapshot(snap) })
	t.mu.Lock()
	if !t.gone.Load() {
		t.snapshots = append(t.snapshots, snap)
	}
	t.mu.Unlock()
	s.snapshots.set(name, snap)
	snap.timer.set(snap.expires)
}

func pick(ids []uint64, messages map[uint64]*message) []*message {
	picked := make([]*message, 0, len(ids))
	for _, id := range ids {
		if m := messages[id]; m != nil {
			picked = append(picked, m)
		}
	}
	return picked
}
