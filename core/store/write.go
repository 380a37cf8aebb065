package store

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// Allocation asks for room for a block.
type Allocation struct {
	NS          NS
	Key, Parent []byte // Parent: the block before it in its chain, if any
	Bytes       int64
	Tag         tag.Tag
}

// Writing is room for a block that no reader sees until Commit. The holder ends it by Commit or Abort. For one goroutine at a
// time.
type Writing struct {
	store  *Store
	tenant *tenant
	header record.Header
	block  index.Block
	at     spot // memory: where it lies; else it is placed by Commit
	placed bool
	buf    []byte
	staged *staging // the record, if it is not written where it stays
	ended  bool
	result error

	key    [record.MaxKeyBytes]byte
	head   [record.MaxPayloadOff]byte
	pieces [2][]byte
}

var errGivenUp = errors.New("the block was given up")

// Allocate reserves room. Errors: ErrExists, ErrConflict, ErrUnreadable, ErrFull, ErrQuota, ErrTooLarge (with both numbers),
// ErrWouldBlock, ErrClosed, or one that names the argument; nothing has happened then.
func (s *Store) Allocate(a Allocation) (*Writing, error) {
	ns := s.names.again(a.NS)
	if ns == nil {
		return nil, fmt.Errorf("namespace: %d given; allowed: what Namespace returned", a.NS)
	}
	w, err := s.allocate(ns, a)
	if err != nil {
		s.names.leave(a.NS)
		return nil, err
	}
	return w, nil
}

func (s *Store) allocate(ns *namespace, a Allocation) (*Writing, error) {
	w, err := s.prepare(ns, a)
	if err != nil {
		return nil, err
	}
	if err = s.refuseKnown(w); err == nil {
		err = s.room(ns, w)
	}
	if err != nil {
		s.writings.put(w)
		return nil, err
	}
	s.reserved.Add(w.block.RecordBytes())
	return w, nil
}

// room lends a Writing room, and claims its bytes of the quota. Where it is staged that is first, as it may have to be tried again:
// no block is evicted for what was refused.
func (s *Store) room(ns *namespace, w *Writing) error {
	if !s.memory {
		if err := s.stage(w); err != nil {
			return err
		}
		err := s.claimFor(ns, w)
		if err != nil {
			s.unstage(w)
		}
		return err
	}
	if err := s.claimFor(ns, w); err != nil {
		return err
	}
	err := s.reserve(w)
	if err != nil {
		ns.tenant.add(-w.block.RecordBytes())
	}
	return err
}

// claimFor claims a Writing's bytes of the quota.
func (s *Store) claimFor(ns *namespace, w *Writing) error {
	evicted, err := s.claim(ns.tenant, w.block.RecordBytes())
	ns.evictedFor.Add(evicted)
	if err != nil {
		ns.overQuota.Add(1)
		s.counts.overQuota.Add(1)
	}
	return err
}

func (s *Store) prepare(ns *namespace, a Allocation) (*Writing, error) {
	if err := record.CheckKey(a.Key); err != nil {
		return nil, err
	}
	if most := s.MaxBlockBytes(len(a.Key)); a.Bytes < 0 || a.Bytes > most {
		return nil, fmt.Errorf("%w: %d bytes given; allowed: 0 to %d, what a segment has room for", ErrTooLarge, a.Bytes, most)
	}
	w := s.writings.get(s)
	w.tenant = ns.tenant
	w.block = index.Block{
		Hash: ns.hashes.Of(a.Key), Namespace: uint16(a.NS),
		PayloadBytes: uint32(a.Bytes), KeyBytes: uint16(len(a.Key)),
	}
	if len(a.Parent) > 0 {
		if err := record.CheckKey(a.Parent); err != nil {
			s.writings.put(w)
			return nil, fmt.Errorf("parent %w", err)
		}
		w.block.Parent = ns.hashes.Of(a.Parent)
	}
	w.header = record.Header{
		Namespace: ns.digest, Parent: w.block.Parent, Tag: a.Tag,
		PayloadBytes: uint32(a.Bytes), Key: append(w.key[:0], a.Key...),
	}
	return w, nil
}

// reserve places a block.
func (s *Store) reserve(w *Writing) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if w.at, err = s.place(w.block.Hash, w.block.Namespace, w.block.RecordBytes(), forPut); err != nil {
		s.counts.full.Add(1)
		return err
	}
	w.placed = true
	w.buf = s.medium.Bytes(w.at.segment, w.at.off+w.payloadOff(), int64(w.block.PayloadBytes))
	return nil
}

func (w *Writing) payloadOff() int64 { return record.PayloadOff(len(w.header.Key)) }

// Buffer is where the payload goes, all of it.
func (w *Writing) Buffer() []byte { return w.buf }

// Commit makes the block visible. ErrExists or ErrConflict if another block of the key was first, or what Allocate
// says; then there is no block. Idempotent.
func (w *Writing) Commit() error {
	if w.ended {
		return w.result
	}
	w.ended = true
	defer w.giveBack()
	w.result = w.store.commit(w)
	return w.result
}

func (s *Store) commit(w *Writing) error {
	if !w.placed {
		// Of two puts of a key the second one's record must not be found in the place of the first one's block.
		s.busy.lock(w.block.Hash)
		defer s.busy.unlock(w.block.Hash)
		defer s.unstage(w)
		if err := s.refuseKnown(w); err != nil {
			return err
		}
		if err := s.placeStaged(w); err != nil {
			return err
		}
	}
	err := s.write(w)
	if err == nil {
		s.wrote(w.block.RecordBytes()) // before the block is visible: a flush that finds it there has to flush it
		err = s.show(w)
	}
	s.settle(w, err)
	return err
}

func (s *Store) placeStaged(w *Writing) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if w.at, err = s.place(w.block.Hash, w.block.Namespace, w.block.RecordBytes(), forPut); err != nil {
		s.counts.full.Add(1)
		return err
	}
	w.placed = true
	return nil
}

// write puts the record where it was placed.
func (s *Store) write(w *Writing) error {
	err := s.writeRecord(w)
	if err == nil && s.cfg.Durability == FlushEach {
		err = s.syncWritten(w.at.segment)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return nil
}

// writeRecord writes the header for the place, and the rest unless it lies there already.
func (s *Store) writeRecord(w *Writing) error {
	w.header.Seq = w.at.seq
	head := w.head[:w.payloadOff()]
	s.secret.Put(head, record.Place{Life: w.at.life, Off: w.at.off}, &w.header)
	pieces := append(w.pieces[:0], head)
	switch {
	case !s.memory:
		pieces = append(pieces, w.rest())
	case !w.placed: // it is moved
		pieces = append(pieces, w.buf)
	}
	return s.writeTo(w.at.segment, w.at.off, pieces...)
}

// wrote counts bytes that have to be flushed.
func (s *Store) wrote(n int64) {
	if s.dirty.Add(n) >= s.cfg.FlushBytes {
		wake(s.wakeup)
	}
}

// show adds the block to the index.
func (s *Store) show(w *Writing) error {
	w.block.Segment, w.block.Off = uint16(w.at.segment), uint32(w.at.off/record.PageBytes)
	w.block.Stamp = s.stampBehind(w.block.Parent)
	for {
		if s.over.Load() {
			return ErrClosed
		}
		if _, added := s.index.Put(w.block); added {
			break
		}
		if err := s.refuseKnown(w); err != nil {
			return err
		}
	}
	s.account(&w.block, 1)
	w.tenant.note(s.index, age{w.block.Hash, w.block.Stamp})
	s.counts.puts.Add(1)
	return nil
}

// settle ends what place has begun. A record that is no block is made none on the disk, too: it must not be found
// when the store is opened next.
func (s *Store) settle(w *Writing, err error) {
	if err != nil {
		b := w.block
		b.Segment, b.Off = uint16(w.at.segment), uint32(w.at.off/record.PageBytes)
		s.segments[b.Segment].refs.Add(1)
		_ = s.erase(&b) // the next flush tries again
	}
	s.mu.Lock()
	if errors.Is(err, ErrFull) && s.open == w.at.segment {
		s.retire() // the medium could not write there
		s.counts.writeErrors.Add(1)
	}
	s.noLongerPending(w.at.segment)
	s.mu.Unlock()
	if s.memory && s.over.Load() {
		s.note(s.giveBack())
	}
}

// Abort gives the room back. Idempotent; after Commit it does nothing.
func (w *Writing) Abort() {
	if w.ended {
		return
	}
	w.ended, w.result = true, errGivenUp
	defer w.giveBack()
	if w.placed {
		w.store.settle(w, w.result)
		return
	}
	w.store.unstage(w)
}

// giveBack ends what Allocate has begun. What was claimed of the quota is the block's, if there is one.
func (w *Writing) giveBack() {
	if w.result != nil {
		w.tenant.add(-w.block.RecordBytes())
	}
	w.store.reserved.Add(-w.block.RecordBytes())
	w.store.names.leave(NS(w.block.Namespace))
}

// Release ends the Writing as Abort does, unless it has ended, and lets its memory be used for another one. It is the last call.
// A Writing without it is left to the garbage collector.
func (w *Writing) Release() {
	w.Abort()
	w.store.writings.put(w)
}

// refuseKnown is ErrExists or ErrConflict if the key has a block, and ErrUnreadable if that cannot be told now. One that is damaged
// is removed: then nil.
func (s *Store) refuseKnown(w *Writing) error {
	there, found := s.hold(w.block.Hash, 0)
	if !found {
		return nil
	}
	defer s.letGo(&there)
	h, err := s.headerOf(&there, w.header.Key)
	switch {
	case err != nil && s.doubted(&there, err):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	case h.PayloadBytes == w.header.PayloadBytes && h.Tag == w.header.Tag:
		s.counts.exists.Add(1)
		s.index.Touch(there.Hash, s.stampBehind(w.block.Parent))
		return ErrExists
	}
	s.counts.conflicts.Add(1)
	return ErrConflict
}
