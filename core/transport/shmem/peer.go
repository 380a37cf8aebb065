package shmem

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// peer is what an endpoint has mapped of the one at the other end. Nothing that is read
// from there is believed. A value out of bounds ends the endpoint; one within bounds can
// at worst make this process write garbage into memory that the peer has handed out
// itself.
type peer struct {
	bellMemory *sys.Mapping
	bell       bell
	slot       uint32 // of its endpoint, for the bell
	table      *sys.Mapping
	lane       *sys.Mapping
	window     uint64 // of its ring of receives

	state, touching, starved, posted, ended *atomic.Uint64 // in its lane
	version, holder                         *atomic.Uint64 // in its table
	seen                                    uint64         // version at the last look for memories that are gone

	memories [MaxMemories]*remoteMemory
	asked    uint64        // the memory that it was asked for; 0 none
	arrived  *remoteMemory // the answer, until update
	gone     bool          // its process has ended, or closed the endpoint
}

// remoteMemory is memory of the peer.
type remoteMemory struct {
	id      uint64
	mapping *sys.Mapping // nil: the peer has none under that number
}

// mapRemote maps memory that another process has made. Its size is checked, and
// that it can never shrink nor lose pages: touching it cannot raise SIGBUS.
func mapRemote(fd *sys.FD, least int64, write bool) (*sys.Mapping, error) {
	fixed, err := sys.CannotShrink(fd)
	if err != nil {
		return nil, err
	}
	huge, err := sys.InHugePages(fd)
	if err != nil {
		return nil, err
	}
	size, err := sys.Size(fd)
	if err != nil {
		return nil, err
	}
	if !fixed || huge || size < least || size > MaxMemoryBytes {
		return nil, fmt.Errorf("memory of %d bytes, cannot shrink: %v, huge pages: %v; at least %d are needed, "+
			"that cannot shrink, in ordinary pages", size, fixed, huge, least)
	}
	if least == 0 {
		least = size
	}
	if write {
		return sys.Map(fd, 0, least)
	}
	return sys.MapReadOnly(fd, 0, least)
}

// newPeer maps what came with a hello or a welcome.
func newPeer(m message, fds []*sys.FD) (*peer, error) {
	if len(fds) != numHelloFDs {
		return nil, fmt.Errorf("%d descriptors, not %d", len(fds), numHelloFDs)
	}
	p := &peer{slot: m.slot}
	var errs [3]error
	p.bellMemory, errs[0] = mapRemote(fds[0], bellBytes, true)
	p.table, errs[1] = mapRemote(fds[1], tableBytes, false)
	p.lane, errs[2] = mapRemote(fds[2], laneBytes, false)
	err := errors.Join(errs[:]...)
	if err == nil {
		err = p.open()
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("shared memory of the peer: %w", err)
	}
	return p, nil
}

func (p *peer) open() error {
	lane, table := p.lane.Bytes(), p.table.Bytes()
	p.bell = newBell(p.bellMemory.Bytes())
	p.state, p.touching = sys.Word(lane, laneStateOff), sys.Word(lane, laneTouchingOff)
	p.starved, p.posted = sys.Word(lane, laneStarvedOff), sys.Word(lane, lanePostedOff)
	p.ended = sys.Word(lane, laneEndedOff)
	p.version, p.holder = sys.Word(table, tableVersionOff), sys.Word(table, tableHolderOff)
	p.seen = p.version.Load()
	p.window = sys.Word(lane, laneWindowOff).Load()
	if sys.Word(lane, laneMagicOff).Load() != laneMagic || sys.Word(table, tableMagicOff).Load() != tableMagic {
		return errors.New("of another version")
	}
	if p.window > MaxDepth || bits.OnesCount64(p.window) != 1 {
		return fmt.Errorf("a ring of %d receives; a power of two up to %d is allowed", p.window, MaxDepth)
	}
	return nil
}

// close unmaps everything. Idempotent; nil is closed.
func (p *peer) close() {
	if p == nil {
		return
	}
	for _, m := range []*sys.Mapping{p.bellMemory, p.table, p.lane} {
		if m != nil {
			_ = m.Unmap() // cannot fail: it is mapped
		}
	}
	p.arrived.unmap()
	for _, m := range p.memories {
		m.unmap()
	}
}

func (m *remoteMemory) unmap() {
	if m != nil && m.mapping != nil {
		_ = m.mapping.Unmap() // cannot fail: it is mapped
	}
}

// update takes in the memory that has arrived, and unmaps those that the peer does not
// show any more. Only for the goroutine that runs the endpoint: no copy is under way
// then.
func (p *peer) update() {
	if m := p.arrived; m != nil {
		p.arrived, p.asked = nil, 0
		p.memories[m.id%MaxMemories].unmap()
		p.memories[m.id%MaxMemories] = m
	}
	version := p.version.Load()
	if version == p.seen {
		return
	}
	p.seen = version
	for i, m := range p.memories {
		if m != nil && sys.Word(p.table.Bytes(), tableMemoriesOff+8*int64(i)).Load() != m.id {
			m.unmap()
			p.memories[i] = nil
		}
	}
}

// isReady tells whether the peer takes requests. A process that is ending does
// not, though its threads may still be copying.
func (p *peer) isReady() bool {
	return p.state.Load() == uint64(transport.StateReady) && !sys.OwnerDied(p.holder.Load())
}

// hasEnded tells whether it will never take any more.
func (p *peer) hasEnded() bool {
	return p.gone || p.state.Load() >= uint64(transport.StateError) || sys.OwnerDied(p.holder.Load())
}

// lookup is what became of looking something up at the peer.
type lookup uint8

const (
	found    lookup = iota
	unknown         // has to be asked for
	refused         // and the request with it
	nonsense        // the peer breaks the rules
)

// memory returns memory of the peer.
func (p *peer) memory(id uint64) ([]byte, lookup) {
	m := p.memories[id%MaxMemories]
	switch {
	case m == nil || m.id != id:
		return nil, unknown
	case m.mapping == nil:
		return nil, refused
	}
	return m.mapping.Bytes(), found
}

// answered notes what the peer has sent for a memory that it was asked for;
// nil if it has none.
func (p *peer) answered(id uint64, fd *sys.FD) error {
	if id == 0 || id != p.asked || p.arrived != nil {
		return errors.New("an answer to what was not asked")
	}
	m := &remoteMemory{id: id}
	if fd != nil {
		var err error
		if m.mapping, err = mapRemote(fd, 0, true); err != nil {
			return err
		}
	}
	p.arrived = m
	return nil
}

// isShown tells whether a region has not been closed.
func (p *peer) isShown(key uint64) bool {
	at := tableRegionsOff + regionBytes*int64(key%MaxRegions) + regionKeyOff
	return key > MaxRegions && sys.Word(p.table.Bytes(), at).Load() == key
}

// reach returns the memory of a region of the peer. The caller that copies checks isShown
// once more after having said so.
func (p *peer) reach(at transport.RemoteRegion, off uint64, n int64, need transport.Access) (mem []byte, id uint64, l lookup) {
	if !p.isShown(at.Key) {
		return nil, 0, refused
	}
	base, table := tableRegionsOff+regionBytes*int64(at.Key%MaxRegions), p.table.Bytes()
	id = sys.Word(table, base+regionMemoryOff).Load()
	begin, size := sys.Word(table, base+regionOff).Load(), sys.Word(table, base+regionSizeOff).Load()
	access := sys.Word(table, base+regionAccessOff).Load()
	// In offsets from the region's own address, so that sums that go round
	// are far outside.
	off += at.Addr - begin
	if access&uint64(need) == 0 || off > size || uint64(n) > size-off {
		return nil, id, refused
	}
	if mem, l = p.memory(id); l != found {
		return nil, id, l
	}
	if total := uint64(len(mem)); begin > total || size > total-begin {
		return nil, id, nonsense
	}
	return mem[begin+off : begin+off+uint64(n)], id, found
}

// span is a part of a memory of the peer.
type span struct {
	memory, off, bytes uint64
}

// receiveOf is a receive of the peer as it was read, once.
type receiveOf struct {
	spans    [MaxPieces]span
	num      int
	numBytes uint64
}

// read takes the receive of a sequence number out of the peer's ring. False:
// it makes no sense.
func (r *receiveOf) read(p *peer, sequence uint64) bool {
	lane := p.lane.Bytes()
	at := laneReceivesOff + receiveBytes*int64(sequence&(p.window-1))
	num := sys.Word(lane, at).Load()
	if num > MaxPieces {
		return false
	}
	r.num, r.numBytes = int(num), 0
	for i := range r.spans[:r.num] {
		piece := at + 8 + pieceBytes*int64(i)
		s := span{sys.Word(lane, piece).Load(), sys.Word(lane, piece+8).Load(), sys.Word(lane, piece+16).Load()}
		if s.bytes > MaxRequestBytes {
			return false
		}
		r.spans[i] = s
		r.numBytes += s.bytes
	}
	return r.numBytes <= MaxRequestBytes
}

// resolve returns the memory of the first n bytes of a receive.
func (r *receiveOf) resolve(p *peer, n uint64, list *spans) (id uint64, l lookup) {
	list.num = 0
	for _, s := range r.spans[:r.num] {
		if n == 0 {
			break
		}
		mem, l := p.memory(s.memory)
		if l != found {
			return s.memory, l
		}
		total, part := uint64(len(mem)), min(n, s.bytes)
		if s.off > total || s.bytes > total-s.off {
			return 0, nonsense
		}
		list.add(mem[s.off : s.off+part])
		n -= part
	}
	return 0, found
}

// spans is a list of memory, in order.
type spans struct {
	list [MaxPieces][]byte
	num  int
}

func (s *spans) add(mem []byte) {
	s.list[s.num] = mem
	s.num++
}

func (s *spans) one(mem []byte) {
	s.num = 0
	s.add(mem)
}

// at returns memory from off on, as far as it goes without a break.
func (s *spans) at(off int) []byte {
	for _, mem := range s.list[:s.num] {
		if off < len(mem) {
			return mem[off:]
		}
		off -= len(mem)
	}
	return nil
}

// move copies n bytes at off of one list to the same place of another.
func move(dst, src *spans, off, n int) {
	for n > 0 {
		from := src.at(off)
		moved := copy(dst.at(off), from[:min(n, len(from))])
		if moved == 0 {
			return // one list is shorter: the code that made it has checked that it is not
		}
		off, n = off+moved, n-moved
	}
}
