package cpu

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// Combine brings expert outputs back to the tokens of operation n (a
// Result.Op) and reduces them. Errors, the pending operation, and ErrInProgress
// without one as for Dispatch; besides, ErrNoHandle, ErrStaleHandle, and
// ErrNotCombined when an owner released the operation instead.
func (b *Buffer) Combine(n uint64, a *ep.CombineArgs, until ep.Phase, slice time.Duration) (*Pending, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.users.Done()
	limit := b.limitOf(slice)
	for {
		t, inWay, err := b.startCombine(n, a)
		if err != nil {
			return nil, err
		}
		if !inWay {
			err = b.drive(t, until, limit)
			return b.outcome(t, nil, err)
		}
		if err := b.clear(t, limit); err != nil {
			return nil, err
		}
	}
}

// inWay returns what a new combine of the slot's handle has to wait for: its
// dispatch, or a combine of it with a hook that has not run.
func (b *Buffer) inWay(s *slot) (t task, yes bool) {
	switch {
	case s.dispatch.pending():
		return b.hold(s, kindDispatch), true
	case s.combine.pending():
		return b.hold(s, kindCombine), true
	}
	return task{}, false
}

// find returns the slot of a live operation.
func (b *Buffer) find(n uint64) (*slot, error) {
	s := &b.slots[n%uint64(len(b.slots))]
	switch {
	case n >= b.next:
		return nil, fmt.Errorf("%w: operation %d, the buffer has started %d", ep.ErrNoHandle, n, b.next)
	case s.op != n:
		return nil, fmt.Errorf("%w: operation %d was released and its slot serves operation %d", ep.ErrStaleHandle, n, s.op)
	case !s.live:
		return nil, fmt.Errorf("%w: operation %d was released", ep.ErrStaleHandle, n)
	}
	return s, nil
}

func (b *Buffer) startCombine(n uint64, a *ep.CombineArgs) (t task, inWay bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.begin(); err != nil {
		return task{}, false, err
	}
	s, err := b.find(n)
	if err != nil {
		return task{}, false, err
	}
	if t, yes := b.inWay(s); yes {
		return t, true, nil
	}
	active, err := b.checkCombine(s, a)
	if err != nil {
		return task{}, false, err
	}
	b.releaseCombined(s)
	c := &s.combine
	c.begin(a.Timeout)
	b.rec.begin(s, kindCombine)
	c.args, c.active, c.published = *a, active.And(s.sent), false
	c.weigh(s)
	b.pick(s)
	c.args.TopkIdx, c.args.TopkWeights = nil, nil // no longer needed
	return b.hold(s, kindCombine), false, nil
}

func (b *Buffer) checkCombine(s *slot, a *ep.CombineArgs) (active rankset.Set, err error) {
	if active, err = b.activeSet(a.ActiveRanks); err != nil {
		return rankset.Set{}, err
	}
	p := &s.params
	switch {
	case p.use.OneWay():
		err = ep.Invalid("a combine of a %s, which has none", p.use)
	case a.Flat != p.flat:
		err = ep.Invalid("a %s combine of a handle whose dispatch was %s", formName(a.Flat), formName(p.flat))
	case !a.Flat && (a.NumTokens != int(p.tokens) || a.TopK != int(p.topK)):
		err = ep.Invalid("topk_idx is [%d, %d], the dispatch had [%d, %d]", a.NumTokens, a.TopK, p.tokens, p.topK)
	case a.NumTokens != int(p.tokens):
		err = ep.Invalid("out is for %d tokens, the dispatch had %d", a.NumTokens, p.tokens)
	case len(a.Out) < a.NumTokens*int(p.hidden)*2:
		err = ep.Invalid("out has %d bytes, [%d, %d] bf16 needs %d", len(a.Out), a.NumTokens, p.hidden, a.NumTokens*int(p.hidden)*2)
	case int64(len(a.X)) < s.outputBytes():
		err = ep.Invalid("x has %d bytes, the expert outputs have %d", len(a.X), s.outputBytes())
	case a.ZeroCopy && !inPlace(s, a):
		err = ep.Invalid("zero_copy needs x to be the combine buffer of this handle, and it lies elsewhere")
	case s.combines >= protocol.MaxCombines:
		err = ep.Invalid("handle was combined %d times, allowed %d", s.combines, protocol.MaxCombines)
	case !a.Flat:
		err = checkRouting(s, a)
	}
	return active, err
}

// outputBytes is the size of the expert outputs that a combine needs: all
// blocks, or the flat rows that were received.
func (s *slot) outputBytes() int64 {
	rows := s.slab.LocalExperts * s.slab.RowsPerExpert
	if s.params.flat {
		rows = s.rows
	}
	return rows * s.slab.OutputBytes()
}

// numRows is the number of rows in a block of our slab. The number of flat rows
// does not change once the caller knows it: x has as many.
func (s *slot) numRows(block int64) int64 {
	if s.params.flat {
		return s.rows
	}
	return int64(s.received[block])
}

// inPlace reports whether the outputs are in the slab already. Without any row (a flat
// dispatch may have none) there is nothing to copy.
func inPlace(s *slot, a *ep.CombineArgs) bool {
	return s.outputBytes() == 0 || &a.X[0] == &s.dispatch.res.CombineX[0]
}

func checkRouting(s *slot, a *ep.CombineArgs) error {
	if n := len(s.plan.topk); len(a.TopkIdx) < n || len(a.TopkWeights) < n {
		return ep.Invalid("topk_idx and topk_weights have %d and %d entries, need %d", len(a.TopkIdx), len(a.TopkWeights), n)
	}
	if s.params.preReduce {
		return sameAsSent(s, a)
	}
	return sameRouting(s.plan.topk, a)
}

func sameRouting(dispatched []int64, a *ep.CombineArgs) error {
	for i, id := range a.TopkIdx[:len(dispatched)] {
		if id != dispatched[i] && id != -1 {
			return ep.Invalid("topk_idx[%d, %d] is %d, the dispatch had %d (allowed: that, or -1)", i/a.TopK, i%a.TopK, id, dispatched[i])
		}
	}
	return nil
}

// weigh copies the caller's weights. The rank that added flat rows up has weighted
// them.
func (c *combineCall) weigh(s *slot) {
	if s.params.preReduce {
		c.weights = append(c.weights[:0], s.plan.factor...)
		return
	}
	if !c.args.Flat {
		c.weights = append(c.weights[:0], c.args.TopkWeights[:len(s.plan.topk)]...)
		return
	}
	c.weights = resize(c.weights, len(s.plan.jobOf))
	for i := range c.weights {
		c.weights[i] = 1
	}
}

// pick chooses the rows of this combine: those that were sent, less the ones
// that the caller leaves out now, and the owners that hold them.
func (b *Buffer) pick(s *slot) {
	c := &s.combine
	c.rows = append(c.rows[:0], s.plan.rows...)
	from, need := c.active.Minus(s.spoiled), rankset.Set{}
	byToken := !c.args.Flat && !s.params.preReduce // the caller may leave selections out
	for i := range c.rows {
		row := &c.rows[i]
		if row.Source < 0 {
			continue
		}
		if (byToken && c.args.TopkIdx[i] < 0) || !from.Has(int(row.Source)) {
			row.Source = -1
			continue
		}
		need = need.With(int(row.Source))
		if !s.placed.Has(int(row.Source)) {
			row.Source = -1 // zeros, if the owner does combine
		}
	}
	c.need = need
}

// stepCombine does what can be done now and returns the ranks it waits for.
func (b *Buffer) stepCombine(s *slot) (waiting rankset.Set, err error) {
	c := &s.combine
	out := b.outWithLast()
	if out.Has(b.self) {
		return rankset.Set{}, ep.ErrFenced
	}
	if !c.published {
		if waiting = b.readers(s).Minus(out); !waiting.Empty() {
			return waiting, nil
		}
		b.publishOutputs(s)
	}
	missing := rankset.Set{}
	for r := range c.need.All() {
		ready, err := b.outputsReady(s, r, out)
		if err != nil && err != ep.ErrFenced {
			b.releaseAs(s, op.Failed, err)
		}
		if err != nil {
			return rankset.Set{}, err
		}
		if !ready {
			missing = missing.With(r)
		}
	}
	if waiting = missing.Or(b.unsentOutputs(s)).Minus(out); !waiting.Empty() {
		return waiting, nil
	}
	c.forgo(missing)
	return rankset.Set{}, b.reduce(s)
}

// forgo drops the rows of owners that were lost before they had published.
// From here on the set of ranks that contribute to this result is fixed.
func (c *combineCall) forgo(owners rankset.Set) {
	if owners.Empty() {
		return
	}
	c.need = c.need.Minus(owners)
	for i := range c.rows {
		if row := &c.rows[i]; row.Source >= 0 && owners.Has(int(row.Source)) {
			row.Source = -1
		}
	}
}

// readers returns the ranks that have not finished the previous combine of
// this handle: the outputs that we published for it must stay until they have.
func (b *Buffer) readers(s *slot) (ranks rankset.Set) {
	if s.combines == 0 {
		return rankset.Set{}
	}
	for t := range s.counted.All() {
		if n, last, is := b.doneOf(s, t, s.op); !is || (n < s.combines && !last) {
			ranks = ranks.With(t)
		}
	}
	return ranks
}

// publishOutputs makes the expert outputs visible to every rank.
func (b *Buffer) publishOutputs(s *slot) {
	c := &s.combine
	if !inPlace(s, &c.args) {
		b.copyOutputs(s)
	}
	b.publishYReady(s.index, protocol.Counted(s.op, s.combines+1, false))
	c.published, c.args.X = true, nil
	b.rec.sent(s, kindCombine)
	b.wakeAll()
}

func (b *Buffer) copyOutputs(s *slot) {
	jobs, lay := b.scratch.copies[:0], &s.slab
	for l := range lay.LocalExperts {
		n := s.numRows(l)
		if n == 0 {
			continue
		}
		lo := l * lay.RowsPerExpert * lay.OutputBytes()
		hi := lo + n*lay.OutputBytes()
		jobs = append(jobs, device.CopyJob{Dst: s.dispatch.res.CombineX[lo:hi], Src: s.combine.args.X[lo:hi]})
		b.count.bytesCopied += uint64(hi - lo)
	}
	b.kern.Copy(jobs)
	clear(jobs) // do not keep the caller's memory reachable
	b.scratch.copies = jobs
}

// outputsReady reports whether owner r has published this combine's outputs.
// If an owner is out and has not published, that is no error: it was lost. An owner
// that has gone on without us, because we are out ourselves, writes nothing for us.
func (b *Buffer) outputsReady(s *slot, r int, out rankset.Set) (bool, error) {
	word := yReadyWord(&b.peers[r], s.index).Load()
	if n := protocol.Combines(word); protocol.IsFor(word, s.op) && n > s.combines {
		if n > s.combines+1 && b.isMember() { // it waits for us in between
			b.violates(violation{r, inSlot("y_ready", s.index), word, fmt.Sprintf("%d combines of operation %d", s.combines+1, s.op)})
			return false, nil
		}
		return true, nil
	}
	if (protocol.IsFor(word, s.op) && protocol.IsLast(word)) || protocol.IsPast(word, s.op) {
		switch out = out.Or(b.out()); {
		case out.Has(b.self):
			return false, ep.ErrFenced // it did not wait for us
		case out.Has(r):
			return false, nil
		case protocol.IsPast(word, s.op): // it does not go on without our done
			b.violates(violation{r, inSlot("y_ready", s.index), word, fmt.Sprintf("operations up to %d", s.op)})
			return false, nil
		}
		return false, fmt.Errorf("%w: rank %d released operation %d without its combine %d", ep.ErrNotCombined, r, s.op, s.combines+1)
	}
	return false, nil
}

// reduce pulls the rows and ends the combine.
func (b *Buffer) reduce(s *slot) error {
	c, lay := &s.combine, &s.slab
	b.rec.seen(s, kindCombine)
	for r := range c.need.All() {
		b.scratch.sources[r] = bytesOf(s.dst[r], lay.Y())
	}
	b.scratch.reduce = device.ReduceBatch{
		Out: c.args.Out[:c.args.NumTokens*int(lay.Hidden)*2], Hidden: int(lay.Hidden), TopK: s.plan.width,
		Sources: b.scratch.sources, RowType: lay.OutputType, Runs: s.params.preReduce, Jobs: c.rows, Weights: c.weights,
	}
	b.kern.Reduce(&b.scratch.reduce)
	b.scratch.reduce.Out = nil
	// After the last read: an owner that no longer waits for us may have
	// reused its slab under our reads.
	if !b.isMember() {
		return ep.ErrFenced
	}
	b.finishCombine(s)
	return nil
}

// finishCombine tells the owners that this rank will not read this combine again.
func (b *Buffer) finishCombine(s *slot) {
	s.combines++
	for r := range s.sent.All() {
		s.dst[r].Word(layout.Done(b.self)).Store(protocol.Counted(s.op, s.combines, false))
		b.dom.Wake(r)
	}
	b.count.combines++
	rows := uint64(0)
	for i := range s.combine.rows {
		if s.combine.rows[i].Source >= 0 {
			rows++
		}
	}
	b.count.rowsReduced += rows
	b.count.bytesReduced += rows * uint64(s.slab.OutputBytes())
	if mask := s.combine.args.ActiveRanks; mask != nil { // else it need not be known
		showActive(mask, b.out().Minus(s.combine.need).Or(s.spoiled))
	}
	s.combine.args = ep.CombineArgs{}
	s.combine.end(op.Done, nil)
}
