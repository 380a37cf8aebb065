package cuda

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
)

var errNoDevice = ep.Invalid("Device is nil, allowed the addresses of the call's memory")

// checkDispatch refuses what the device would not notice.
func (b *Buffer) checkDispatch(a *ep.DispatchArgs) (layout.Slab, error) {
	if a.Device == nil {
		return layout.Slab{}, errNoDevice
	}
	slab, err := layout.Of(layout.Shape{
		MaxTokens: int64(a.MaxTokens), Hidden: int64(a.Hidden), NumExperts: int64(a.NumExperts), NumRanks: int64(b.ranks),
		RowType: a.RowType, OutputType: a.OutputType,
		Flat: a.Flat, Columns: layout.Widths(a.Flat && !a.NoRouting, a.TopK, a.ExtraRowBytes),
	})
	if err != nil {
		return slab, ep.Invalid("%s", err)
	}
	if err := b.checkSizes(a, slab.SizeBytes); err != nil {
		return slab, err
	}
	if err := checkInputs(a); err != nil {
		return slab, err
	}
	if err := checkColumns(a); err != nil {
		return slab, err
	}
	if err := b.engine.CheckRemote(&slab, a.TopK); err != nil {
		return slab, ep.Invalid("%s", err)
	}
	return slab, checkOptional(a.Device)
}

// checkSizes holds a dispatch to what the buffer was made for.
func (b *Buffer) checkSizes(a *ep.DispatchArgs, slabBytes int64) error {
	room := b.cfg.engine(b.self, b.ranks).SlabBytes
	switch {
	case a.NumTokens < 0 || a.NumTokens > a.MaxTokens && !a.Use.OneWay():
		return ep.Invalid("x has %d tokens, allowed 0 to num_max_tokens_per_rank %d", a.NumTokens, a.MaxTokens)
	case !limits.TopK.Has(int64(a.TopK)):
		return ep.Invalid("%s", limits.TopK.Check(int64(a.TopK)))
	case slabBytes > room:
		return ep.Invalid("num_max_tokens_per_rank %d, hidden %d and num_experts %d with %s outputs need %d bytes per slot, num_ep_buffer_bytes gives %d",
			a.MaxTokens, a.Hidden, a.NumExperts, a.OutputType, slabBytes, room)
	case a.NumTokens*a.TopK > b.cfg.MaxSelections:
		return ep.Invalid("topk_idx is [%d, %d], allowed at most max_selections %d", a.NumTokens, a.TopK, b.cfg.MaxSelections)
	case a.NumExperts > b.cfg.MaxExperts:
		return ep.Invalid("num_experts is %d, allowed at most max_experts %d", a.NumExperts, b.cfg.MaxExperts)
	}
	return nil
}

func checkInputs(a *ep.DispatchArgs) error {
	if a.NumTokens == 0 {
		return nil
	}
	if err := needs("x", a.Device.X, 16); err != nil {
		return err
	}
	return needs("topk_idx", a.Device.TopkIdx, 8)
}

// checkColumns checks which of weights and columns belong to which form.
func checkColumns(a *ep.DispatchArgs) error {
	switch {
	case a.NoRouting && !a.Flat:
		return ep.Invalid("topk_idx and topk_weights are not to be sent along, allowed with flat rows only")
	case a.PreReduce && a.Flat:
		return ep.Invalid("pre_reduce is set with flat rows, allowed with rows per expert only")
	case !a.Flat && !a.PreReduce && a.Device.TopkWeights != 0:
		return ep.Invalid("topk_weights are given, allowed with flat rows only, or with pre_reduce")
	}
	if a.NumTokens == 0 {
		return nil
	}
	if a.PreReduce || a.Flat && !a.NoRouting {
		if err := needs("topk_weights", a.Device.TopkWeights, 4); err != nil {
			return err
		}
	}
	for i, n := range a.ExtraRowBytes {
		if n > 0 && a.Device.Extra[i] == 0 {
			return ep.Invalid("extra[%d] is a null pointer, [%d, %d] bytes are needed", i, a.NumTokens, n)
		}
	}
	return nil
}

// checkOptional looks at the memory that a dispatch can do without.
func checkOptional(d *ep.DeviceDispatch) error {
	for _, m := range [...]struct {
		name           string
		address, align uint64
	}{
		{"recv_count", d.RecvCount, 4},
		{"layout_range", d.LayoutRange, 8},
		{"stats", d.Stats, 8},
		{"peers_have_more", d.PeersHaveMore, 4},
		{"wait_ns", d.WaitNs, 8},
		{"active_ranks", d.ActiveRanks, 4},
	} {
		if err := aligned(m.name, m.address, m.align); err != nil {
			return err
		}
	}
	return nil
}

func (b *Buffer) checkCombine(s *slot, a *ep.CombineArgs) error {
	d := &s.dispatch
	switch {
	case a.Device == nil:
		return errNoDevice
	case a.Flat != s.slab.Flat:
		return ep.Invalid("a combine with flat %v of a handle whose dispatch had flat %v", a.Flat, s.slab.Flat)
	case a.NumTokens != d.NumTokens || !a.Flat && a.TopK != d.TopK:
		return ep.Invalid("topk_idx is [%d, %d], the dispatch had [%d, %d]", a.NumTokens, a.TopK, d.NumTokens, d.TopK)
	}
	if s.combines >= protocol.MaxCombines {
		return ep.Invalid("handle was combined %d times, allowed %d", s.combines, protocol.MaxCombines)
	}
	if a.NumTokens > 0 {
		if err := needs("out", a.Device.Out, 16); err != nil {
			return err
		}
	}
	if a.NumTokens > 0 && !a.Flat {
		if err := needs("topk_idx", a.Device.TopkIdx, 8); err != nil {
			return err
		}
		if err := needs("topk_weights", a.Device.TopkWeights, 4); err != nil {
			return err
		}
	}
	if err := aligned("x", a.Device.X, 16); err != nil {
		return err
	}
	if err := aligned("wait_ns", a.Device.WaitNs, 8); err != nil {
		return err
	}
	return aligned("active_ranks", a.Device.ActiveRanks, 4)
}

func needs(name string, address, align uint64) error {
	if address == 0 {
		return ep.Invalid("%s is a null pointer", name)
	}
	return aligned(name, address, align)
}

func aligned(name string, address, align uint64) error {
	if address%align != 0 {
		return ep.Invalid("%s is at %#x, which is not a multiple of %d", name, address, align)
	}
	return nil
}
