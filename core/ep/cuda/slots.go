package cuda

import (
	"fmt"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
)

// slot is what the host knows of one slot. The host does not see that a graph is
// replayed: the device compares the tickets of its calls.
type slot struct {
	handle   Handle       // of the latest dispatch; 0: none
	live     bool         // the handle is valid
	received bool         // the second phase of the dispatch is launched
	combines int          // launched
	ticket   ReduceTicket // of the latest
	pending  bool         // the second phase of the latest is not launched
	left     bool         // of a graph, and its owner has left it to the graph
	recorded bool         // the latest first phase with a second one launched apart went into a graph
	slab     layout.Slab
	dispatch device.Dispatch
	combine  device.Combine
}

// combined reports whether the next call for another handle releases this one.
func (s *slot) combined() bool { return s.combines > 0 && !s.pending }

// held reports whether rows of the slot's dispatch may still be read.
func (s *slot) held() bool { return s.live && s.combines == 0 && !s.left }

// pick chooses the slot of a dispatch: the one after the latest that no live handle
// holds. A handle that the dispatch releases itself does not count. If all are held, it
// chooses that of the oldest handle, and, if keep, of the oldest that is not held, if
// there is one.
func (b *Buffer) pick(keep bool) int {
	oldest := -1
	for i := 1; i <= len(b.slots); i++ {
		j := (b.latest + i) % len(b.slots)
		s := &b.slots[j]
		if !s.live || s.combined() {
			return j
		}
		if oldest < 0 || s.before(&b.slots[oldest], keep) {
			oldest = j
		}
	}
	return oldest
}

// before reports whether a dispatch takes this slot rather than the other one.
func (s *slot) before(other *slot, keep bool) bool {
	if keep && s.held() != other.held() {
		return other.held()
	}
	return s.handle < other.handle
}

// find returns the slot of a live handle.
func (b *Buffer) find(h Handle) (*slot, error) {
	if h == 0 || h > b.handles {
		return nil, fmt.Errorf("%w: %d, the buffer has given out 1 to %d", ep.ErrNoHandle, h, b.handles)
	}
	for j := range b.slots {
		if s := &b.slots[j]; s.handle == h && s.live {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w: %d was released", ep.ErrStaleHandle, h)
}

// live is find, for a buffer that can be used.
func (b *Buffer) live(h Handle) (*slot, error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	return b.find(h)
}

// pendingReduce returns the slot in which a sum is still to be launched; nil: there is
// none.
func (b *Buffer) pendingReduce(n ReduceTicket) *slot {
	for j := range b.slots {
		if s := &b.slots[j]; s.live && s.pending && s.ticket == n {
			return s
		}
	}
	return nil
}

// launches remembers, for the latest dispatches or combines, whether their second phase
// was launched. A caller may ask for it long after another call, or another dispatch
// that took the slot, has launched it.
type launches [rememberedLaunches / 64]uint64

const rememberedLaunches = 1 << 12

func (l *launches) set(n uint64, launched bool) {
	word, bit := &l[n%rememberedLaunches/64], uint64(1)<<(n%64)
	if *word &^= bit; launched {
		*word |= bit
	}
}

func (l *launches) get(n uint64) bool { return l[n%rememberedLaunches/64]>>(n%64)&1 != 0 }

// receipt is for a dispatch without a live handle: err says why there is none. It
// returns nil if the second phase was launched.
func (b *Buffer) receipt(h Handle, err error) error {
	if err != nil && h != 0 && h <= b.handles && b.handles-h < rememberedLaunches && b.receipts.get(uint64(h)) {
		return nil
	}
	return err
}

// summed is for a sum that is not pending: nil if it was launched.
func (b *Buffer) summed(n ReduceTicket) error {
	switch {
	case n == 0 || n > b.latestTicket:
		return fmt.Errorf("%w: combine %d, the buffer has begun 1 to %d", ep.ErrNoHandle, n, b.latestTicket)
	case b.latestTicket-n >= rememberedLaunches:
		return fmt.Errorf("%w: combine %d, which %d others have followed; what it launched is not known any more", ep.ErrStaleHandle, n, b.latestTicket-n)
	case b.reduces.get(uint64(n)):
		return nil
	}
	return fmt.Errorf("%w: the handle of combine %d was released before its sum", ep.ErrStaleHandle, n)
}

// releaseCombined forgets handles that were combined, as the device does at its next
// launch for another one. A combine stays if its second phase is not launched.
func (b *Buffer) releaseCombined(except *slot) {
	for j := range b.slots {
		if s := &b.slots[j]; s != except && s.combined() {
			s.live = false
		}
	}
}
