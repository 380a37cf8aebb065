package cpu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/moewire/moewire/core/ep"
)

// part is what an actor plays.
type part struct {
	rng        *rand.Rand
	acts       []sceneAct
	last       bool // no rendezvous after these acts
	quits      int  // plays only so many of them
	fenced     bool
	leaving    bool          // it takes itself out
	began      time.Duration // of the current call
	stolen     time.Duration // stage.frozen at that time
	orders     *orders       // of the rendezvous that it waits for
	rendezvous ep.Standing
}

// sceneAct is one step of a script that all members play.
type sceneAct struct {
	act
	flatAct
	groups  []int32 // nil, or one number per rank: others are left out
	cancels uint64  // ranks that cancel the first dispatch
	timeout []time.Duration
}

func (sc *scene) script() []sceneAct {
	acts := make([]sceneAct, 1+sc.rng.IntN(4))
	for i := range acts {
		a := &acts[i]
		a.ins = inputs(sc.rng, sc.shape, routings[sc.rng.IntN(len(routings))])
		a.pattern = sc.rng.IntN(numPatterns)
		if sc.slots == 1 && a.pattern == patternDDCC {
			a.pattern = patternDCC
		}
		sc.flattenSome(a)
		a.timeout = sc.timeouts()
		if !sc.single && sc.rng.IntN(5) == 0 {
			a.cancels = 1 << sc.rng.IntN(sc.shape.ranks)
		}
		if !sc.single && sc.ahead >= 0 {
			a.cancels |= 1 << sc.ahead
		}
		if sc.rng.IntN(5) == 0 {
			a.groups = make([]int32, sc.shape.ranks)
			for r := range a.groups {
				a.groups[r] = int32(sc.rng.IntN(2))
			}
		}
	}
	return acts
}

func (sc *scene) timeouts() []time.Duration {
	all := slices.Repeat([]time.Duration{deadline}, sc.shape.ranks)
	if sc.single || sc.rng.IntN(2) == 0 {
		return all
	}
	for r := range all {
		all[r] = []time.Duration{deadline / 2, deadline, 2 * deadline, -1}[sc.rng.IntN(4)]
	}
	return all
}

// playAll is an actor's life: acts, a rendezvous, acts again.
func (a *actor) playAll() {
	for {
		err := a.install()
		for i := 0; err == nil && i < min(len(a.acts), a.quits); i++ {
			if err = a.playAct(&a.acts[i]); err != nil {
				err = fmt.Errorf("%s, epoch %d, act %d of pattern %d: %w", a.name, a.scene.epoch(), i, a.acts[i].pattern, err)
			}
		}
		switch {
		case errors.Is(err, ep.ErrFenced):
			a.lost(err)
		case err != nil:
			a.st.failed(err)
		}
		if a.last || !a.meet() {
			break
		}
	}
	a.close()
}

// lost plays a rank that the others have taken out.
func (a *actor) lost(err error) {
	sc := a.scene
	a.fenced = true
	sc.stats.fenced++
	if sc.single && !a.hit {
		a.st.failed(fmt.Errorf("without a fault: %w", err))
	}
	d := new(dispatched)
	in := inputs(a.rng, sc.shape, uniform)
	_, again := a.buf.Dispatch(a.args(&in[a.rank], d, nil, -1), &d.res, ep.PhaseDone, -1)
	if !errors.Is(again, ep.ErrFenced) {
		a.st.failed(fmt.Errorf("%s: fenced, and then %w", a.name, again))
	}
}

func (a *actor) close() {
	a.scene.left[a.scene.epoch()], a.leaving = true, true
	if err := a.buf.Close(); err != nil {
		a.st.failed(err)
	}
	if err := a.buf.Release(0); !errors.Is(err, ep.ErrClosed) {
		a.st.failed(fmt.Errorf("%s: closed, and then %w", a.name, err))
	}
}

// held is a dispatch that has ended.
type held struct {
	*dispatched
	act  *sceneAct
	mask []int32
	ins  []input // as counted here
	from []int32 // the mask after the dispatch
	rows []flatRow
}

func (a *actor) args(in *input, d *dispatched, mask []int32, timeout time.Duration) *ep.DispatchArgs {
	s := a.scene.shape
	l := s.experts / s.ranks
	d.counts, d.layout = make([]int32, l), make([]int64, l*s.ranks)
	return &ep.DispatchArgs{
		X: in.x, TopkIdx: in.topk, NumTokens: in.tokens, Hidden: s.hidden, TopK: s.topk,
		MaxTokens: s.maxTokens, NumExperts: s.experts, ActiveRanks: mask,
		RecvCount: d.counts, LayoutRange: d.layout, Timeout: timeout,
	}
}

// mask leaves out the other group.
func (a *actor) mask(act *sceneAct) []int32 {
	mask := ones(a.scene.shape.ranks)
	for r := range act.groups {
		if act.groups[r] != act.groups[a.rank] {
			mask[r] = 0
		}
	}
	return mask
}

// begin and within bound a call in time: what others lose by faults is theirs.
func (a *actor) begin(call string) {
	a.st.yield(atCall)
	a.st.note(a, atCall, call)
	a.began, a.stolen = a.st.now, a.st.frozen
}

func (a *actor) inTime() error {
	took := a.st.now - a.began - (a.st.frozen - a.stolen)
	if most := time.Duration(40+20*a.scene.shape.ranks) * deadline; took > most {
		return fmt.Errorf("a call took %v, at most %v are possible", took, most)
	}
	return nil
}

// dispatch dispatches and checks. A nil result without an error: cancelled.
func (a *actor) dispatch(act *sceneAct, cancel bool) (*held, error) {
	h := &held{dispatched: new(dispatched), act: act, mask: a.mask(act)}
	args := a.args(&act.ins[a.rank], h.dispatched, h.mask, act.timeout[a.rank])
	act.flatten(a, args)
	slice := time.Duration(-1)
	if cancel || a.sliced() {
		slice = time.Duration(a.rng.Int64N(int64(deadline))) * time.Duration(a.rng.IntN(2))
	}
	a.begin(" dispatch")
	p, err := a.buf.Dispatch(args, &h.res, ep.PhaseDone, slice)
	for ; err == ep.ErrInProgress && p == nil; a.st.yield(atCall) {
		p, err = a.buf.Dispatch(args, &h.res, ep.PhaseDone, slice)
	}
	if err == ep.ErrInProgress && cancel {
		p.Cancel()
		a.scene.stats.cancelled++
		return nil, nil
	}
	if err == ep.ErrInProgress {
		if err = p.Wait(ep.PhaseDone, -1); err == nil {
			err = p.Result(&h.res)
		}
	}
	if err != nil {
		return nil, err
	}
	a.scene.stats.dispatches++
	h.expectRows(a)
	if err := a.inTime(); err != nil {
		return nil, err
	}
	return h, h.checkRows(a)
}

// expectRows settles what a rank that cancels may have sent: all or nothing.
func (h *held) expectRows(a *actor) {
	h.ins, h.from = slices.Clone(h.act.ins), slices.Clone(h.mask)
	for src := range h.ins {
		rows := int64(0)
		for i := src; i < len(h.layout); i += a.scene.shape.ranks {
			rows += h.layout[i] & (1<<32 - 1)
		}
		if h.act.cancels>>src&1 == 1 && rows == 0 {
			h.ins[src] = input{}
		}
	}
}

// checkRows may be called as long as the handle is valid.
func (h *held) checkRows(a *actor) error {
	if h.act.flat {
		_, err := h.checkFlatRows(a)
		return err
	}
	broken, err := h.brokenOff(a)
	if err != nil {
		return err
	}
	return h.checkMasked(a.rank, a.scene.shape, h.ins, h.from, a.scene.ordered || broken)
}

// brokenOff reports whether a remote rank may have cancelled between two messages
// with rows: those that came first are holes then, and there are no more of
// these than it had rows.
func (h *held) brokenOff(a *actor) (is bool, err error) {
	sc, l := a.scene, a.scene.shape.experts/a.scene.shape.ranks
	most := make([]int, l)
	for src := range h.act.ins {
		if sc.hosts == nil || sc.hosts[src] == sc.hosts[a.rank] || h.act.cancels>>src&1 == 0 || h.ins[src].tokens != 0 {
			continue
		}
		for e := range l {
			n := len(wantRows(&h.act.ins[src], sc.shape.topk, int64(a.rank*l+e)))
			most[e], is = most[e]+n, is || n > 0
		}
	}
	for e := range h.counts {
		rows := 0
		for src := range sc.shape.ranks {
			rows += int(h.layout[e*sc.shape.ranks+src] & (1<<32 - 1))
			if h.from[src] == 0 {
				rows += len(wantRows(&h.act.ins[src], sc.shape.topk, int64(a.rank*l+e)))
			}
		}
		if is && int(h.counts[e]) > rows+most[e] {
			return is, fmt.Errorf("expert %d: count %d, %d rows and at most %d holes", e, h.counts[e], rows, most[e])
		}
	}
	return is, nil
}

// outputs computes outputs, times 2^variant, which is exact: a reader of
// an earlier combine's outputs gets other bits.
func (h *held) outputs(a *actor, variant int, x []byte) {
	a.st.yield(atCompute)
	s := a.scene.shape
	tmp := &dispatched{res: h.res, counts: h.counts}
	tmp.res.CombineX = x
	if h.act.flat {
		tmp.computeFlat(a.rank, a.scene.flat, h.rows, x)
	} else {
		tmp.compute(a.rank, s)
	}
	scale(x, variant)
	a.st.yield(atCompute)
}

// scale multiplies bf16 values by 2^n.
func scale(x []byte, n int) {
	for i := 0; n > 0 && i < len(x); i += 2 {
		v := bf16ToFloat(x[i:]) * float32(int(1)<<n)
		binary.LittleEndian.PutUint16(x[i:], floatToBF16(v))
	}
}

// combineX is where the outputs of a combine go: in place, or elsewhere.
func (h *held) combineX(a *actor, variant int) ([]byte, error) {
	if a.rng.IntN(2) == 0 {
		return make([]byte, len(h.res.CombineX)), nil
	}
	if variant == 0 {
		return h.res.CombineX, nil
	}
	return a.buf.CombineBuffer(h.res.Op, -1)
}

func (a *actor) combine(h *held, variant int) error {
	in, s := &h.act.ins[a.rank], a.scene.shape
	out := bytes.Repeat([]byte{0xaa}, in.tokens*s.hidden*2)
	a.begin(fmt.Sprintf(" combine %d of %d", variant, h.res.Op))
	x, err := h.combineX(a, variant)
	if err != nil {
		return err
	}
	h.outputs(a, variant, x)
	args := &ep.CombineArgs{
		X: x, TopkIdx: in.topk, TopkWeights: in.weights, Out: out,
		NumTokens: in.tokens, TopK: s.topk, Timeout: h.act.timeout[a.rank], ActiveRanks: h.mask,
	}
	if h.act.flat {
		args.Flat, args.TopkIdx, args.TopkWeights, args.TopK = true, nil, nil, 0
	}
	p, err := a.buf.Combine(h.res.Op, args, ep.PhaseDone, a.slice())
	for ; err == ep.ErrInProgress && p == nil; a.st.yield(atCall) {
		p, err = a.buf.Combine(h.res.Op, args, ep.PhaseDone, a.slice())
	}
	if err == ep.ErrInProgress {
		err = p.Wait(ep.PhaseDone, -1)
	}
	if err != nil {
		return err
	}
	return h.checkOutputs(a, variant, out)
}

// sliced: between two slices of a wait a rank is late by its own doing.
func (a *actor) sliced() bool { return !a.scene.single && a.rng.IntN(4) == 0 }

func (a *actor) slice() time.Duration {
	if a.sliced() {
		return time.Duration(a.rng.Int64N(int64(deadline)))
	}
	return -1
}

func (h *held) checkOutputs(a *actor, variant int, out []byte) error {
	s := a.scene.shape
	a.scene.stats.combines++
	lost := func(e int64) bool { return h.mask[int(e)/(s.experts/s.ranks)] == 0 }
	want := wantCombine(&h.act.ins[a.rank], s.hidden, s.topk, lost)
	if h.act.flat {
		want = h.wantFlatOutputs(a)
	}
	if scale(want, variant); !bytes.Equal(out, want) {
		return fmt.Errorf("operation %d, combine %d differs from the oracle without the ranks that %v leaves out", h.res.Op, variant, h.mask)
	}
	if err := a.inTime(); err != nil {
		return err
	}
	return h.checkRows(a)
}

// playAct plays one act. That a rank which cancelled gives no outputs is no
// error; it ends the act.
func (a *actor) playAct(act *sceneAct) error {
	err := a.playPattern(act)
	if act.cancels != 0 && errors.Is(err, ep.ErrNotCombined) {
		a.scene.stats.notCombined++
		return nil
	}
	return err
}

func (a *actor) playPattern(act *sceneAct) error {
	cancel := act.cancels>>a.rank&1 == 1
	h, err := a.dispatch(act, cancel)
	if err != nil {
		return err
	}
	if cancel {
		return a.goOn(act, h)
	}
	switch act.pattern {
	case patternD:
		return nil
	case patternDR:
		return a.buf.Release(h.res.Op)
	case patternDDCC:
		second, err := a.dispatch(act, false)
		if err != nil {
			return err
		}
		return a.combineBoth(act, h, second)
	case patternDCC:
		if err := a.combine(h, 0); err != nil {
			return err
		}
		return a.combine(h, 1)
	}
	return a.combine(h, 0)
}

// goOn is what a rank that cancels does instead: as many dispatches.
func (a *actor) goOn(act *sceneAct, h *held) error {
	if h != nil {
		if err := a.buf.Release(h.res.Op); err != nil {
			return err
		}
	}
	if act.pattern != patternDDCC {
		return nil
	}
	second, err := a.dispatch(act, false)
	if err != nil {
		return err
	}
	return a.combine(second, 0)
}

// combineBoth goes on with the second when the first was not combined by all.
func (a *actor) combineBoth(act *sceneAct, first, second *held) error {
	err := a.combine(first, 0)
	if err != nil && (act.cancels == 0 || !errors.Is(err, ep.ErrNotCombined)) {
		return err
	}
	return a.combine(second, 0)
}
