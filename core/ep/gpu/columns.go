package gpu

import "github.com/moewire/moewire/core/ep"

// checkColumns checks which of weights and columns belong to which form.
func checkColumns(a *ep.DispatchArgs) error {
	switch {
	case a.NoRouting && !a.Flat:
		return invalid("topk_idx and topk_weights are not to be sent along, allowed with flat rows only")
	case a.PreReduce && a.Flat:
		return invalid("pre_reduce is set with flat rows, allowed with rows per expert only")
	case !a.Flat && !a.PreReduce && a.Device.TopkWeights != 0:
		return invalid("topk_weights are given, allowed with flat rows only, or with pre_reduce")
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
			return invalid("extra[%d] is a null pointer, [%d, %d] bytes are needed", i, a.NumTokens, n)
		}
	}
	return nil
}
