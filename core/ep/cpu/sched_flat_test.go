package cpu_test

import (
	"bytes"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
)

// flatAct makes the dispatches of an act flat.
type flatAct struct {
	flat  bool
	extra [][protocol.NumExtras][]byte // by rank
}

// flattenSome draws which acts are flat; the inputs are there.
func (sc *scene) flattenSome(a *sceneAct) {
	if a.flat = sc.rng.IntN(3) == 0; !a.flat {
		return
	}
	for _, in := range a.ins {
		extra := bytes.Repeat([]byte{byte(sc.rng.Uint32())}, in.tokens*sc.flat.extra[0])
		a.extra = append(a.extra, [protocol.NumExtras][]byte{extra})
	}
}

// flatten completes the arguments of a dispatch.
func (act *sceneAct) flatten(a *actor, args *ep.DispatchArgs) {
	if act.flat {
		args.Flat, args.TopkWeights = true, act.ins[a.rank].weights
		args.Extra, args.ExtraRowBytes = act.extra[a.rank], a.scene.flat.extra
	}
}

// checkFlatRows finds the rows of a flat dispatch. A rank that cancels may have
// taken places that it never filled.
func (h *held) checkFlatRows(a *actor) (rows []flatRow, err error) {
	ins := make([]flatInput, len(h.ins))
	for r := range ins {
		ins[r] = flatInput{h.ins[r], h.act.extra[r]}
	}
	lost := func(r int) bool { return h.from[r] == 0 }
	h.rows, err = h.checkFlatHoles(a.rank, a.scene.flat, ins, lost, h.act.cancels != 0 || anyLost(a.scene.flat, lost))
	return h.rows, err
}

// wantFlatOutputs is the definition of a flat combine.
func (h *held) wantFlatOutputs(a *actor) []byte {
	a.scene.stats.flat++
	in := flatInput{input: h.act.ins[a.rank]}
	return wantFlat(&in, a.scene.flat, func(r int) bool { return h.mask[r] == 0 })
}
