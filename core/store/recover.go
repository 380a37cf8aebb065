package store

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// recovery is a Store that is being opened.
type recovery struct {
	*Store
	outdated []index.Block // records that are to be made none: of two of a key the earlier one, and what is not whole
	said     map[int]bool  // segments of which a line says that a part cannot be read
	again    int           // reads that were tried again
	homeless int           // blocks of namespaces beyond the bound
}

// run finds the blocks of a medium that lasts. Segments with a footer are believed; in others, which were
// open when the store ended, every record is read and compared with its tag.
func (s *recovery) run() error {
	began := time.Now()
	for at := range s.segments {
		s.recoverSegment(at)
	}
	for _, at := range s.toSeal { // behind the others: they are the newest
		s.scan(at)
	}
	s.counts.scanned.Add(uint64(len(s.toSeal)))
	if err := s.eraseOutdated(); err != nil {
		return err
	}
	s.report(began)
	s.shrink()
	return nil
}

// report says what was found; nothing of a new store.
func (s *recovery) report(began time.Time) {
	n, dropped := s.index.Len(), s.counts.spoiled.Load()
	unsealed, damaged := s.counts.scanned.Load(), s.counts.damaged.Load()
	if n == 0 && unsealed == 0 && damaged == 0 {
		return
	}
	line := fmt.Sprintf("%d blocks with %d MiB were found again in %v", n, s.live.Load()>>20, time.Since(began).Round(time.Millisecond))
	if unsealed > 0 {
		line += fmt.Sprintf("; %d segments had not been sealed and were read as a whole", unsealed)
	}
	if dropped > 0 {
		line += fmt.Sprintf("; %d blocks were not whole and are dropped", dropped)
	}
	if damaged > 0 {
		line += fmt.Sprintf("; the first pages of %d segments were damaged, and their blocks are lost", damaged)
	}
	if s.homeless > 0 {
		line += fmt.Sprintf("; %d blocks of more than %d namespaces are dropped", s.homeless, MaxNamespaces)
	}
	s.cfg.Log(line)
}

// eraseOutdated makes records none, once those that stay in their place are on the disk: a kill may have left them to the
// kernel, and then a power cut could lose both.
func (s *recovery) eraseOutdated() error {
	if len(s.outdated) == 0 {
		return nil
	}
	if err := s.sync(0); err != nil {
		return err
	}
	for i := range s.outdated {
		s.segments[s.outdated[i].Segment].refs.Add(1)
		_ = s.erase(&s.outdated[i]) // the next flush tries again
	}
	return nil
}

// neverWritten reports whether a read failed because the medium has nothing there. Any other error it counts, and says
// the first one of a segment.
func (s *recovery) neverWritten(at int, off int64, err error) bool {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	s.counts.readErrors.Add(1)
	if !s.said[at] {
		s.said[at] = true
		s.cfg.Log(fmt.Sprintf("segment %d cannot be read at byte %d: what cannot be read is given up, and counted: %v", at, off, err))
	}
	return false
}

// How often a start tries to read what it would lose, what it waits in between, and how often in all: a disk that is broken for good
// must not hold it up.
const (
	startTries = 3
	startPause = 10 * time.Millisecond
	maxAgain   = 100
)

// insist reads again where the medium fails: what cannot be read is lost for good.
func (s *recovery) insist(read func() error) error {
	err := read()
	for try := 1; try < startTries && err != nil && !isNothing(err) && s.again < maxAgain; try++ {
		s.again++
		time.Sleep(startPause)
		err = read()
	}
	return err
}

// isNothing reports whether a read has found that there is nothing.
func isNothing(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, record.ErrNone)
}

func (s *recovery) read(at int, off int64, p []byte) error {
	return s.insist(func() error { return s.medium.Read(at, off, p) })
}

// giveUp makes none what cannot be read at a page: it must not be found by a later start that can read it, when its key has
// been written again, or deleted, in between.
func (s *recovery) giveUp(at int, off int64) {
	b := index.Block{Segment: uint16(at), Off: uint32(off / record.PageBytes)}
	s.segments[at].refs.Add(1)
	if s.writeTo(at, off, make([]byte, record.PageBytes)) == nil {
		s.dirty.Add(record.PageBytes)
		s.letGo(&b)
		return
	}
	_ = s.erase(&b) // the next flush tries again
}

// recoverSegment takes a segment's footer, or leaves the segment to scan.
func (s *recovery) recoverSegment(at int) {
	page := make([]byte, record.PageBytes)
	if err := s.read(at, 0, page); err != nil {
		if !s.neverWritten(at, 0, err) {
			s.segments[at].state = stateEmptied
			s.giveUp(at, 0)
		}
		return
	}
	head, err := s.secret.GetSegment(page, s.medium.SegmentBytes())
	if err != nil {
		s.noSegment(page)
		return
	}
	g := &s.segments[at]
	g.life.Store(head.Life)
	g.next, g.namespaces = record.PageBytes, map[uint16]struct{}{}
	switch found, err := s.recoverFooter(at); {
	case errors.Is(err, errFooter):
		g.state = stateEmptied
		s.giveUp(at, 0)
	case found:
		g.state = stateSealed
	default:
		g.state = stateFull
		s.toSeal = append(s.toSeal, at)
	}
}

// noSegment counts a first page that is none and was not made none: its segment begins anew, without its blocks.
func (s *recovery) noSegment(page []byte) {
	if !record.IsNone(page) {
		s.counts.damaged.Add(1)
	}
}

// errFooter means that a segment's footer cannot be read. It may have hidden records, where a power cut has kept the mark of a deleted
// block and lost what its header was overwritten with. So none of the segment's is believed.
var errFooter = errors.New("a footer that cannot be read")

// recoverFooter adds what a segment's footer names. It reports whether there is one; errFooter.
func (s *recovery) recoverFooter(at int) (bool, error) {
	g, end := &s.segments[at], s.medium.SegmentBytes()
	page := make([]byte, record.PageBytes)
	if err := s.read(at, end-record.PageBytes, page); err != nil {
		return false, s.noFooter(at, end-record.PageBytes, err)
	}
	tail, err := record.GetTail(page, g.life.Load(), end)
	if err != nil {
		return false, nil
	}
	whole := make([]byte, tail.Bytes())
	if err := s.read(at, end-tail.Bytes(), whole); err != nil {
		return false, s.noFooter(at, end-tail.Bytes(), err)
	}
	f, err := s.secret.GetFooter(whole, tail)
	if err != nil {
		return false, nil // the power was cut while it was written: it has hidden nothing yet
	}
	s.counts.spoiled.Add(uint64(f.NumDamaged))
	for i := range f.Entries {
		s.recoverEntry(at, &f.Entries[i], f.Namespaces)
	}
	s.seq = max(s.seq, f.Seq)
	g.footer, g.next = tail, end-tail.Bytes()
	return true, nil
}

// noFooter is errFooter, unless there is nothing to be read.
func (s *recovery) noFooter(at int, off int64, err error) error {
	if s.neverWritten(at, off, err) {
		return nil
	}
	return errFooter
}

func (s *recovery) recoverEntry(at int, e *record.Entry, namespaces []record.Digest) {
	g := &s.segments[at]
	g.placed = append(g.placed, e.Hash)
	off, n := int64(e.Off)*record.PageBytes, record.Bytes(int(e.KeyBytes), int64(e.PayloadBytes))
	if off < record.PageBytes || off+n > s.medium.SegmentBytes() || e.KeyBytes > record.MaxKeyBytes {
		return // it was deleted, or moved
	}
	s.addTo(namespaces[e.Namespace], index.Block{
		Hash: e.Hash, Parent: e.Parent, Stamp: e.Stamp, Off: e.Off, PayloadBytes: e.PayloadBytes,
		Segment: uint16(at), KeyBytes: e.KeyBytes,
	})
}

// addTo enters a block that was found, of a namespace. One of a namespace more than there may be is given up: what was evicted
// just before a kill is found again, and may have left room for others.
func (s *recovery) addTo(digest record.Digest, b index.Block) {
	ns, err := s.names.hold(digest)
	if err != nil {
		s.homeless++
		s.outdated = append(s.outdated, b)
		return
	}
	defer s.names.leave(ns)
	b.Namespace = uint16(ns)
	s.add(b)
}

// add enters a block that was found. Of two of the same key the one that was written later counts; the other one is
// made none, or it would be found once this one is deleted.
func (s *recovery) add(b index.Block) {
	s.stamps.Store(max(s.stamps.Load(), b.Stamp))
	there, added := s.index.Put(b)
	switch {
	case there.Segment == b.Segment && there.Off == b.Off && !added:
	case added:
		s.accountFound(&b)
	default:
		s.choose(b, there)
	}
}

// choose keeps the later one of two records of a key, or none of them if one cannot be read.
func (s *recovery) choose(b, there index.Block) {
	seq, err := s.seqOf(&b)
	than, thereErr := s.seqOf(&there)
	if err != nil || thereErr != nil {
		s.drop(b.Hash, anyBlock)
		s.outdated = append(s.outdated, b, there)
		return
	}
	if seq <= than {
		s.outdated = append(s.outdated, b)
		return
	}
	s.accountFound(&b)
	s.account(&there, -1)
	s.index.Change(b.Hash, func(now *index.Block) bool { *now = b; return true })
	s.outdated = append(s.outdated, there)
}

// seqOf reads the number of a record; 0 if it is none.
func (s *recovery) seqOf(b *index.Block) (seq uint64, err error) {
	err = s.insist(func() error { return s.header(b, func(h record.Header) { seq = h.Seq }) })
	if errors.Is(err, record.ErrNone) {
		err = nil
	}
	return seq, err
}

// scan looks for records at every page of a segment. A bad one is passed by: what follows it may have been
// flushed. It is counted if another one follows: the last one may be what an earlier life of the segment has left.
func (s *recovery) scan(at int) {
	end := s.medium.SegmentBytes()
	head := make([]byte, record.HeaderBytes+record.MaxKeyBytes)
	begins, gap := true, uint64(0) // a record ends here; one is missing between two others
	for off := int64(record.PageBytes); off+record.PageBytes <= end; {
		if err := s.read(at, off, head); err != nil {
			if s.neverWritten(at, off, err) {
				break
			}
			s.giveUp(at, off)
			begins, off = false, off+record.PageBytes
			continue
		}
		h, err := s.secret.Get(head, record.Place{Life: s.segments[at].life.Load(), Off: off})
		n := record.Bytes(len(h.Key), int64(h.PayloadBytes))
		if err != nil || off+n > end {
			if begins && !record.IsNone(head[:record.HeaderBytes]) {
				gap = 1
			}
			begins, off = false, off+record.PageBytes
			continue
		}
		s.counts.spoiled.Add(gap)
		s.found(at, off, &h)
		begins, gap, off = true, 0, off+n
	}
}

// found enters a record of a scan, if its payload is whole.
func (s *recovery) found(at int, off int64, h *record.Header) {
	g := &s.segments[at]
	b := index.Block{
		Hash: s.secret.Hash(&h.Namespace, h.Key), Parent: h.Parent, Stamp: s.stampBehind(h.Parent), Off: uint32(off / record.PageBytes),
		PayloadBytes: h.PayloadBytes, Segment: uint16(at), KeyBytes: uint16(len(h.Key)),
	}
	g.placed = append(g.placed, b.Hash)
	g.next = off + b.RecordBytes()
	s.seq = max(s.seq, h.Seq+1)
	whole, err := s.isWhole(&b, h)
	if err != nil {
		s.neverWritten(at, off, err)
	}
	if err != nil || !whole {
		s.counts.spoiled.Add(1)
		s.outdated = append(s.outdated, b)
		return
	}
	s.addTo(h.Namespace, b)
}

// isWhole compares a payload with its tag.
func (s *recovery) isWhole(b *index.Block, h *record.Header) (bool, error) {
	tagger := tag.New(s.names.key, h.Namespace)
	tagger.Begin(h.Key, int(h.PayloadBytes))
	chunk := make([]byte, min(1<<20, int(h.PayloadBytes)))
	at, left := int64(b.Off)*record.PageBytes+record.PayloadOff(len(h.Key)), int64(h.PayloadBytes)
	for left > 0 {
		part := chunk[:min(left, int64(len(chunk)))]
		if err := s.read(int(b.Segment), at, part); err != nil {
			return false, err
		}
		tagger.Write(part)
		at, left = at+int64(len(part)), left-int64(len(part))
	}
	return tagger.Tag() == h.Tag, nil
}
