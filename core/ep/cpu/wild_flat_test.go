package cpu_test

import (
	"bytes"
	"fmt"

	"github.com/moewire/moewire/core/ep"
)

// wildFlatRound is wildRound of the flat form.
func (w *wildWorld) wildFlatRound(rank int, s flatShape, plain []input) (lacks uint64, err error) {
	ins := make([]flatInput, len(plain))
	for r := range plain {
		ins[r].input = plain[r]
	}
	d := new(dispatched)
	a := w.flatArgs(rank, s, &ins[rank], d)
	a.ActiveRanks, a.Timeout = ones(s.ranks), w.timeout
	if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
		return 0, err
	}
	missing := func(mask []int32) func(int) bool { return func(r int) bool { return mask[r] == 0 } }
	rows, wrong := d.checkFlatHoles(rank, s, ins, missing(a.ActiveRanks), true)
	if wrong != nil { // goes on, as a caller would
		rows = d.rowsWithIDs(s)
	}
	c := flatCombineArgs(d, s, &ins[rank], d.computeFlat(rank, s, rows, d.res.CombineX), true)
	c.ActiveRanks, c.Timeout = ones(s.ranks), w.timeout
	_, err = w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1)
	for r := range s.ranks {
		if a.ActiveRanks[r]&c.ActiveRanks[r] == 0 {
			lacks |= 1 << r
		}
	}
	switch {
	case err != nil:
		return lacks, err
	case wrong != nil:
		return lacks, fmt.Errorf("%w: after dispatch: %w", errWrong, wrong)
	case !bytes.Equal(c.Out, wantFlat(&ins[rank], s, missing(c.ActiveRanks))):
		return lacks, fmt.Errorf("%w: after combine, with the mask %v", errWrong, c.ActiveRanks)
	}
	return lacks, nil
}

// rowsWithIDs are those that a caller runs experts on.
func (d *dispatched) rowsWithIDs(s flatShape) (rows []flatRow) {
	for at := range int(d.counts[0]) {
		ids, weights := d.flatTopk(at, s)
		rows = append(rows, flatRow{at: at, ids: ids, weights: weights})
	}
	return rows
}
