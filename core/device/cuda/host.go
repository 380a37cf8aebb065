package cuda

import (
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

// Host memory: orders, report, and room for copies.
const (
	reportOff  = uintptr(unsafe.Sizeof(orders{}))
	stagingOff = reportOff + uintptr(unsafe.Sizeof(report{}))
	hostBytes  = uint64(stagingOff) + 64
)

func bytesAt(addr uintptr, n uint64) []byte { return unsafe.Slice(dl.At[byte](addr), n) }

func (e *Engine) orders() *orders { return dl.At[orders](e.host.host) }

func (e *Engine) report() *report { return dl.At[report](e.host.host + reportOff) }

// SetMembers says who is a member: epoch in the upper 16 bits, one bit per
// rank. Kernels that wait see it within microseconds.
func (e *Engine) SetMembers(word uint64) { atomic.StoreUint64(&e.orders().Members, word) }

// SetSilent says which ranks are known to write nothing more.
func (e *Engine) SetSilent(ranks uint64) { atomic.StoreUint64(&e.orders().Silent, ranks) }

// Join says which epoch this rank has joined.
func (e *Engine) Join(epoch uint16) { atomic.StoreUint64(&e.orders().Epoch, uint64(epoch)) }

// TakeLate returns the ranks for which waits are past their deadline, and
// forgets them.
func (e *Engine) TakeLate() (ranks uint64) {
	for r := range e.cfg.NumRanks {
		if atomic.SwapUint64(&e.report().Late[r], 0) != 0 {
			ranks |= 1 << r
		}
	}
	return ranks
}
