package cuda

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/protocol"
)

// Wild is a word of another rank that it cannot have stored.
type Wild struct{ kind, held uint64 }

// Why says it in words, of the rank that owns the word.
func (w Wild) Why() string {
	const room = "its memory was overwritten: %s holds %#x, which leaves no room for the rows of this rank"
	switch w.kind {
	case protocol.WildCounter:
		return fmt.Sprintf(room, "a counter", w.held)
	case protocol.WildLayout:
		return fmt.Sprintf(room, "the first row in a layout", w.held)
	case protocol.WildCounts:
		return fmt.Sprintf("a message of it cannot be: it counts %d rows for an expert, more than num_max_tokens_per_rank", w.held)
	}
	return fmt.Sprintf("a message of it cannot be: its kind, rows or bytes are %#x", w.held)
}

// Wild returns a word of another rank that the device has found, and that this rank cannot
// have stored, until Restart; false: there is none.
func (e *Engine) Wild(rank int) (w Wild, found bool) {
	r := e.report()
	w.kind = atomic.LoadUint64(&r.Wild[rank])
	if w.kind != 0 {
		w.held = atomic.LoadUint64(&r.Held[rank])
	}
	return w, w.kind != 0
}

// ownWild says in words which one of this rank's own the device has found.
func ownWild(d [4]uint64) string {
	name, where := "a word", ""
	if d[1] != math.MaxUint64 {
		where = fmt.Sprintf("[%d]", d[1])
	}
	switch d[0] {
	case protocol.WildCounter:
		name = "counter" + where
	case protocol.WildLayout:
		name = "layout" + where
	case protocol.WildOpen:
		name = fmt.Sprintf("the slab of open, of rank %d,", d[1])
	case protocol.WildID:
		name = "topk_idx of flat rows" + where
	}
	return fmt.Sprintf("its memory was overwritten: %s holds %#x, allowed: at most %d", name, d[2], d[3])
}
