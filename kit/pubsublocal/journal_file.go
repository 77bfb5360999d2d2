package pubsublocal

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
)

// compaction is a new journal file. It has the content of the old file up to
// upTo.
type compaction struct {
	file           *os.File
	upTo           int64 // offset in the old file
	rewritten, all int64 // sizes of the rewritten part and of the whole file
	err            error
}

// compact writes a new file: it rewrites the first size bytes of the old file,
// and copies the rest unchanged. It takes no lock, and the old file may grow
// meanwhile.
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

// copyRest copies what was written to the old file after upTo.
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

// adopt replaces the old file by the new one. A crash before the rename leaves
// the old file, and a crash after it the new one. Both files have everything.
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
		j.live = j.size.Load() // the next attempt is when the file has doubled
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

// openJournal opens the journal of a directory, and rewrites it. It returns
// what the journal has, and the live messages.
func openJournal(path string, log *slog.Logger, now func() time.Time) (_ *journal, _ *image, _ map[uint64]*message, err error) {
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
		log: log, now: now, folder: folder, lock: lock,
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

// lockFolder locks the directory against other servers, until the file is
// closed or the process ends.
func lockFolder(folder *os.Root) (*os.File, error) {
	f, err := folder.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock folder: %w", err), f.Close())
	}
	return f, nil
}

// openOld opens the journal, and returns the size of its valid part. Without a
// journal it returns no file.
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
		return 0, fmt.Errorf("stat journal: %w", err)
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
		return 0, fmt.Errorf("the journal has the format %q, and this program supports only 1: use the program that wrote it, or another folder",
			strings.TrimSpace(format))
	}
	good, err := readFrames(f, info.Size(), func([]byte) error { return nil })
	if !errors.Is(err, errBadFrame) {
		return good, err
	}
	// A crash may leave the last frame incomplete, which is normal. A bad frame
	// before a good one was damaged later.
	next, err := nextFrame(f, good, info.Size())
	if err != nil {
		return 0, err
	}
	if next > 0 {
		return 0, fmt.Errorf("the journal is damaged at byte %d, and goes on at byte %d: "+
			"restore it from a copy, or cut it there to lose everything that follows", good, next)
	}
	log.Warn("pubsublocal: the end of the journal is incomplete, was never confirmed, and is dropped",
		"offset", good, "bytes", info.Size()-good)
	return good, nil
}

var errBadFrame = errors.New("incomplete or damaged frame")

// readFrames calls f with the records of each frame. They are valid until f
// returns. readFrames returns the offset behind the last good frame.
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

// nextFrame returns the offset of the next good frame after a bad one, or 0 if
// there is none.
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

// rewrite writes the live content of an old file to a new one. If size is 0,
// there is no old file. change may change the content. keep, if not nil, is
// called with each live message.
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
	err     error // the first error
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
