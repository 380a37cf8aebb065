package gpu

import (
	"fmt"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
)

// slot is what the host knows of one slot. A graph that is replayed is not seen
// here: the device compares the tickets of its calls.
type slot struct {
	handle   Handle // of the latest dispatch; 0: none
	live     bool   // the handle is valid
	received bool   // the second phase of the dispatch is launched
	combines int    // launched
	pending  bool   // the second phase of the latest is not
	slab     layout.Slab
	dispatch cuda.Dispatch
	combine  cuda.Combine
}

// pick chooses the slot of a dispatch: the one after the latest that no live
// handle holds, else that of the oldest handle.
func (b *Buffer) pick() int {
	oldest := 0
	for i := 1; i <= len(b.slots); i++ {
		j := (b.latest + i) % len(b.slots)
		if !b.slots[j].live {
			return j
		}
		if i == 1 || b.slots[j].handle < b.slots[oldest].handle {
			oldest = j
		}
	}
	return oldest
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

// sums remembers of the latest handles whether the sum of the latest combine was
// launched: whoever holds its second phase may come for it long after another
// dispatch has taken the slot, and launched it.
type sums [rememberedSums / 64]uint64

const rememberedSums = 1 << 12

func (s *sums) set(h Handle, launched bool) {
	word, bit := &s[h%rememberedSums/64], uint64(1)<<(h%64)
	if *word &^= bit; launched {
		*word |= bit
	}
}

func (s *sums) get(h Handle) bool { return s[h%rememberedSums/64]>>(h%64)&1 != 0 }

// summed is for a handle that is not live: nil if the sum of its latest combine
// was launched.
func (b *Buffer) summed(h Handle, stale error) error {
	switch {
	case h == 0 || h > b.handles:
		return stale
	case b.handles-h >= rememberedSums:
		return fmt.Errorf("%w: %d, which %d others have followed; what its combine launched is not known any more", ep.ErrStaleHandle, h, b.handles-h)
	case b.sums.get(h):
		return nil
	}
	return stale
}

// releaseCombined forgets handles that were combined, as the device does at its
// next launch for another one. A combine of which the second phase is not
// launched stays.
func (b *Buffer) releaseCombined(except *slot) {
	for j := range b.slots {
		if s := &b.slots[j]; s != except && s.combines > 0 && !s.pending {
			s.live = false
		}
	}
}
