package store

import (
	"errors"
	"slices"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// sealAll seals the segments that are full and have all their records written.
func (s *Store) sealAll() error {
	var errs []error
	for {
		at := s.nextToSeal()
		if at == none {
			return errors.Join(errs...)
		}
		errs = append(errs, s.seal(at))
	}
}

func (s *Store) nextToSeal() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.toSeal, func(at int) bool { return s.segments[at].pending == 0 })
	if i < 0 {
		return none
	}
	at := s.toSeal[i]
	s.toSeal = slices.Delete(s.toSeal, i, i+1)
	return at
}

// seal writes a segment's footer: what it has, and none of which is written any more. If it cannot, the segment
// serves all the same, and the next Open reads its records.
func (s *Store) seal(at int) (err error) {
	g := &s.segments[at]
	g.disk.Lock()
	content := s.footerOf(at)
	footer := s.secret.PutFooter(g.life.Load(), content)
	end, tail := s.medium.SegmentBytes(), len(footer)-record.PageBytes
	// No check covers marks: all of the footer is on the disk before the tail makes it one.
	if err = s.writeTo(at, end-int64(len(footer)), footer[:tail]); err == nil {
		err = s.sync(at)
	}
	if err == nil {
		g.footer = content.Tail() // the tail may be there though its write fails: deletes have to mark their blocks
		err = s.writeTo(at, end-record.PageBytes, footer[tail:])
	}
	if err == nil {
		err = s.sync(at)
	}
	g.disk.Unlock()
	s.mu.Lock()
	g.state = stateSealed
	s.turn()
	s.mu.Unlock()
	wake(s.ahead)
	return err
}

// footerOf lists a segment's records in order. One that is deleted or moved has an offset of 0. If a key was
// written again in the same segment, the first of its records stands for the block.
func (s *Store) footerOf(at int) *record.Footer {
	g := &s.segments[at]
	s.mu.Lock()
	f := &record.Footer{Seq: s.seq, Entries: make([]record.Entry, len(g.placed))}
	s.mu.Unlock()
	numbers, listed := map[uint16]uint16{}, make(map[record.Hash]bool, len(g.placed))
	for i, h := range g.placed {
		b, digest, found := s.named(h)
		if !found || int(b.Segment) != at || listed[h] {
			continue
		}
		listed[h] = true
		number, known := numbers[b.Namespace]
		if !known {
			number = uint16(len(numbers))
			numbers[b.Namespace] = number
			f.Namespaces = append(f.Namespaces, digest)
		}
		f.Entries[i] = entryOf(&b, number)
	}
	if len(f.Namespaces) == 0 {
		f.Namespaces = []record.Digest{{}} // what the entries of no blocks name
	}
	return f
}

// named is a block with the digest of its namespace. It may be deleted meanwhile, and then its namespace be forgotten: not while
// names.mu is held.
func (s *Store) named(h record.Hash) (b index.Block, digest record.Digest, found bool) {
	s.names.mu.RLock()
	defer s.names.mu.RUnlock()
	if b, found = s.index.Get(h); found {
		digest = s.names.at(NS(b.Namespace)).digest
	}
	return b, digest, found
}

func entryOf(b *index.Block, namespace uint16) record.Entry {
	return record.Entry{
		Hash: b.Hash, Parent: b.Parent, Stamp: b.Stamp, Off: b.Off,
		PayloadBytes: b.PayloadBytes, Namespace: namespace, KeyBytes: b.KeyBytes,
	}
}
