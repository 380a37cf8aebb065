package cuda

import "github.com/moewire/moewire/core/internal/libcuda"

// filled is what memory of rows holds that nobody has written: NaN in every
// dtype, and -1 as an id.
const filled = 0xff

// fillRows overwrites what a slot's earlier operation has left of rows, before the
// plan opens the slot for others: so nobody writes there yet.
func (e *Engine) fillRows(c *common, stream uint64) error {
	return e.fill(c, c.Slab.SrcInfo, c.Slab.Y, stream)
}

// fillOutputs does the same to expert outputs. It comes behind the plan, which
// waits until nobody reads the earlier ones.
func (e *Engine) fillOutputs(c *common, stream uint64) error {
	rows := int64(c.NumRanks*c.MaxTokens) * int64(c.LocalExperts)
	return e.fill(c, c.Slab.Y, c.Slab.Y+rows*c.Slab.OutputBytes, stream)
}

// fill is a node of its own in a graph: it allocates nothing and waits for nobody.
func (e *Engine) fill(c *common, from, end int64, stream uint64) error {
	if !e.cfg.DebugFill {
		return nil
	}
	at := libcuda.DevicePtr(e.Slab(int(c.Slot)) + uint64(from))
	return e.d.lib.MemsetAsync(at, filled, uint64(end-from), libcuda.Stream(stream))
}
