package chaos

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/rankset"
)

// inFlight is one dispatch of this rank, and its results.
type inFlight struct {
	*shape
	r       *rank
	ins     []input
	mask    []int32
	res     ep.Result
	counts  []int32
	layout  []int64
	pending *cpu.Pending
	before  rankset.Set // members when it began
	apart   uint64
}

// send begins a dispatch; in two phases it returns when the rows are sent.
func (r *rank) send(st *step, d int, until ep.Phase) (*inFlight, error) {
	l := st.blocks()
	f := &inFlight{
		shape: &st.shape, r: r, ins: st.inputs(d), mask: make([]int32, st.ranks), apart: st.apart[r.num],
		counts: make([]int32, l), layout: make([]int64, l*st.ranks), before: r.members(),
	}
	for t := range f.mask {
		f.mask[t] = int32(^f.apart >> t & 1)
	}
	in := &f.ins[r.num]
	a := &ep.DispatchArgs{
		X: in.x, TopkIdx: in.topk, NumTokens: in.tokens, Hidden: st.hidden, TopK: st.topk, MaxTokens: st.maxTokens,
		NumExperts: st.experts, RowType: st.rowType(), ActiveRanks: f.mask, RecvCount: f.counts, LayoutRange: f.layout, Timeout: r.timeout,
	}
	if st.flat {
		in.flatten(a)
	}
	p, err := r.buffer().Dispatch(a, &f.res, until, -1)
	f.pending = p
	if err != nil || p != nil {
		return f, err
	}
	return f, f.check()
}

// receive ends the second phase of a dispatch.
func (f *inFlight) receive() error {
	p := f.pending
	if p == nil {
		return nil
	}
	f.pending = nil
	if err := p.Wait(ep.PhaseDone, -1); err != nil {
		return err
	}
	if err := p.Result(&f.res); err != nil {
		return err
	}
	return f.check()
}

// check compares what came with what the ranks sent that are 1 in the mask.
func (f *inFlight) check() error {
	if err := f.checkMask(); err != nil {
		return err
	}
	for e := range f.counts {
		if err := f.checkExpert(e); err != nil {
			return fmt.Errorf("operation %d, mask %v, expert %d: %w", f.res.Op, f.mask, e, err)
		}
	}
	return nil
}

// checkMask: exactly those ranks are 0 that the caller has left out or the group has
// lost; a rank that was lost before has not come back.
func (f *inFlight) checkMask() error {
	after := f.r.members()
	if after.Empty() {
		return nil // out meanwhile: the next call says so
	}
	for t, v := range f.mask {
		member := after.Has(t) && f.apart>>t&1 == 0
		if v == 0 && member || v == 1 && !f.before.Has(t) {
			return fmt.Errorf("operation %d: mask %v with members %v before and %v after, %b apart", f.res.Op, f.mask, f.before, after, f.apart)
		}
	}
	return nil
}

// checkExpert: each source's rows in one piece, the pieces apart.
func (f *inFlight) checkExpert(e int) error {
	taken := make([]bool, f.ranks*f.maxTokens)
	total, holes := 0, false
	for src := range f.ranks {
		begin, n := int(f.layout[e*f.ranks+src]>>32), int(f.layout[e*f.ranks+src]&(1<<32-1))
		want := f.wantTokens(&f.ins[src], f.r.num*len(f.counts)+e)
		if f.mask[src] == 0 {
			want, holes = nil, true
		}
		if n != len(want) || begin+n > int(f.counts[e]) {
			return fmt.Errorf("source %d: %d rows at %d of %d, want %d", src, n, begin, f.counts[e], len(want))
		}
		for i, token := range want {
			if taken[begin+i] {
				return fmt.Errorf("source %d: row %d is another's, too", src, begin+i)
			}
			taken[begin+i] = true
			if err := f.checkRow(e*f.ranks*f.maxTokens+begin+i, e, begin+i, src, token); err != nil {
				return err
			}
		}
		total += n
	}
	if total > int(f.counts[e]) || total < int(f.counts[e]) && !holes {
		return fmt.Errorf("count %d, rows %d", f.counts[e], total)
	}
	return nil
}

func (f *inFlight) checkRow(at, e, pos, src, token int) error {
	if got := int(binary.LittleEndian.Uint32(f.res.SrcInfo[at*4:])); got != token {
		return fmt.Errorf("source %d row %d is token %d, want %d", src, pos, got, token)
	}
	want := f.sent(f.ins[src].x[token*f.hidden*2 : (token+1)*f.hidden*2])
	n := len(want.bytes)
	if got := f.res.RecvX[at*n : (at+1)*n]; !bytes.Equal(got, want.bytes) {
		return fmt.Errorf("source %d token %d: row differs: %x, want %x", src, token, got, want.bytes)
	}
	for g, scale := range want.scales {
		if got := f.scale(e, g, pos); got != scale {
			return fmt.Errorf("source %d token %d: scale %d is %g, want %g", src, token, g, got, scale)
		}
	}
	if f.flat {
		return f.checkColumns(pos, src, token)
	}
	return nil
}

func (f *inFlight) scale(e, group, pos int) float32 {
	at := (e*(f.hidden/128)+group)*f.ranks*f.maxTokens + pos
	return math.Float32frombits(binary.LittleEndian.Uint32(f.res.Scales[at*4:]))
}

// compute runs the experts on all rows that came, holes too.
func (f *inFlight) compute(n int, y []byte) {
	capacity := f.ranks * f.maxTokens
	for e, count := range f.counts {
		f.r.trap.hit(atComputing)
		for pos := range int(count) {
			at := (e*capacity + pos) * f.hidden
			for h := range f.hidden {
				binary.LittleEndian.PutUint16(y[(at+h)*2:], apply(f.r.num*len(f.counts)+e, n, f.value(e, pos, at, h)))
			}
		}
	}
}

func (f *inFlight) value(e, pos, at, h int) float32 {
	if f.fp8 {
		return float32(fromE4M3(f.res.RecvX[at+h]) * f.scale(e, h/128, pos))
	}
	return fromBF16(f.res.RecvX[(at+h)*2:])
}

// landing is a combine that may have a second phase.
type landing struct {
	f       *inFlight
	n       int
	out     []byte
	pending *cpu.Pending
}

// combine computes and begins the n-th combine of the handle, in place or
// from the caller's own memory.
func (f *inFlight) combine(n int, inPlace bool, until ep.Phase) (*landing, error) {
	if err := f.receive(); err != nil {
		return nil, err
	}
	y := make([]byte, len(f.res.CombineX))
	if inPlace {
		var err error
		if y, err = f.r.buffer().CombineBuffer(f.res.Op, -1); err != nil {
			return nil, err
		}
	}
	if f.flat {
		f.computeFlat(n, y)
	} else {
		f.compute(n, y)
	}
	in := &f.ins[f.r.num]
	l := &landing{f: f, n: n, out: bytes.Repeat([]byte{0xaa}, in.tokens*f.hidden*2)}
	a := &ep.CombineArgs{
		X: y, ZeroCopy: inPlace, TopkIdx: in.topk, TopkWeights: in.weights, Out: l.out, NumTokens: in.tokens, TopK: f.topk,
		ActiveRanks: f.mask, Timeout: f.r.timeout,
	}
	if f.flat {
		a.Flat, a.TopkIdx, a.TopkWeights, a.TopK = true, nil, nil, 0
	}
	var err error
	l.pending, err = f.r.buffer().Combine(f.res.Op, a, until, -1)
	return l, err
}

// finish ends the second phase of a combine and checks it.
func (l *landing) finish() error {
	if l.pending != nil {
		if err := l.pending.Wait(ep.PhaseDone, -1); err != nil {
			return err
		}
	}
	if env("CHAOS_CORRUPT") != 0 && len(l.out) > 0 {
		l.out[0] ^= 1
	}
	if want := l.f.wantCombine(&l.f.ins[l.f.r.num], l.n, l.f.mask); !bytes.Equal(l.out, want) {
		return fmt.Errorf("combine %d of operation %d differs, mask %v: %x, want %x", l.n, l.f.res.Op, l.f.mask, l.out, want)
	}
	return l.f.checkMask()
}

// land is a combine in one phase.
func (f *inFlight) land(n int, inPlace bool) error {
	l, err := f.combine(n, inPlace, ep.PhaseDone)
	if err != nil {
		return err
	}
	return l.finish()
}

// play plays one step of the script.
func (r *rank) play(st *step) error {
	if st.pause && r.own.IntN(2) == 0 {
		time.Sleep(time.Duration(r.own.IntN(1500)) * time.Microsecond)
	}
	if st.pattern == hooks {
		return r.playHooks(st)
	}
	f, err := r.send(st, 0, ep.PhaseDone)
	switch {
	case err != nil:
		return err
	case st.pattern == dRelease:
		return r.buffer().Release(f.res.Op)
	case st.pattern == ddcc:
		return f.landTwo(st)
	}
	err = f.land(0, r.own.IntN(2) == 0)
	if err == nil && st.pattern == dcc {
		err = f.land(1, r.own.IntN(2) == 0)
	}
	return err
}

// landTwo dispatches once more before the first combine.
func (f *inFlight) landTwo(st *step) error {
	g, err := f.r.send(st, 1, ep.PhaseDone)
	if err != nil {
		return err
	}
	if err := f.land(0, true); err != nil {
		return err
	}
	return g.land(0, false)
}

// playHooks runs two dispatches and two combines in two phases each.
func (r *rank) playHooks(st *step) error {
	var dispatches [2]*inFlight
	var landings [2]*landing
	var err error
	for d := range dispatches {
		if dispatches[d], err = r.send(st, d, ep.PhaseSent); err != nil {
			return err
		}
	}
	for d, f := range dispatches {
		if landings[d], err = f.combine(0, true, ep.PhaseSent); err != nil {
			return err
		}
	}
	for _, l := range landings {
		if err := l.finish(); err != nil {
			return err
		}
	}
	return nil
}
